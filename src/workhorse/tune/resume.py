"""Where a tuning stands: begun anew, or gone on with where the last one of its kind ended."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from workhorse.errors import EXIT_NO, AppError
from workhorse.run.run_file import service_files
from workhorse.text import Text
from workhorse.tune.fingerprint import build_key, changed, fingerprint, model_key
from workhorse.tune.given import Given
from workhorse.tune.history import About, History, Tuning, who_tunes
from workhorse.tune.trial import Trial


@dataclass(frozen=True, slots=True)
class Standing:
    """A tuning that may go on, what it has tried, and why it begins anew where it does."""

    tuning: Tuning
    trials: tuple[Trial, ...]
    note: Text | None


def about(given: Given) -> About:
    """What the trials of a tuning hold for."""
    limits = given.constraints
    asked = (
        f"context {limits.context_tokens}, slots {limits.slots}, headroom "
        f"{limits.memory_headroom_share:g}, KL {limits.kl_divergence}"
    )
    if given.files:
        asked += f", files {', '.join(sorted(map(model_key, given.files)))}"
    builds = (given.plan.engine, *given.builds)
    return About(
        fingerprint(given.machine),
        model_key(given.model),
        given.goal,
        asked,
        tuple(sorted(map(build_key, builds))),
    )


def standing(given: Given, history: History) -> Standing:
    """Go on with the latest tuning of this model for this goal, or begin a new one.

    It goes on with the start plan of then: what was accepted was measured against that.
    """
    here = about(given)
    latest = history.latest(here.model, here.goal)
    note = None if latest is None else why_anew(latest, here)
    if latest is not None and note is None:
        return Standing(latest, history.trials(latest), None)
    return Standing(history.begin(here, given, now()), (), note)


def why_anew(latest: Tuning, here: About) -> Text | None:
    """Why the trials of then say nothing now; None: they hold."""
    date, then = latest.began_at[:10], latest.about
    if (other := changed(then.machine, here.machine)) is not None:
        return Text(
            f"This machine has changed since {date} ({other.en}): tuning begins anew.",
            f"自 {date} 以来机器已变化（{other.zh}）：重新开始调优。",
        )
    if then.builds != here.builds:
        return Text(
            f"The engine builds have changed since {date}: tuning begins anew.",
            f"自 {date} 以来引擎构建已变化：重新开始调优。",
        )
    if then.asked != here.asked:
        return Text(
            f"On {date} something else was asked for ({then.asked}): tuning begins anew.",
            f"{date} 的要求不同（{then.asked}）：重新开始调优。",
        )
    if latest.finished_at is not None:
        return Text(
            f"The tuning of {date} had tried everything: another one begins.",
            f"{date} 的调优已试完全部取值：开始新的调优。",
        )
    return None


def here_and_now(tuning: Tuning, given: Given) -> Given:
    """What a tuning was given then, on the machine as it is now."""
    return replace(tuning.given, machine=given.machine)


def refuse_beside_service(run_folder: Path) -> None:
    """AppError, exit code 3, while a service of this installation runs on this machine."""
    for _, file in service_files(run_folder):
        if file.lives():
            pid, port = file.service.pid, file.port
            raise AppError(
                Text(
                    f"A service runs on port {port} (process {pid}): its requests and the tuning "
                    "would disturb each other.",
                    f"端口 {port} 上有服务在运行（进程 {pid}）：它的请求会与调优互相干扰。",
                ),
                Text(
                    f"Stop it first: `kill {pid}`, or Ctrl-C where it runs.",
                    f"请先停止它：`kill {pid}`，或在其终端按 Ctrl-C。",
                ),
                exit_code=EXIT_NO,
            )


def refuse_beside_tuning(lock: Path) -> None:
    """AppError, exit code 3, while a tuning of this installation runs on this machine.

    A service asks once it is written down, and a tuning looks for services once it holds the lock:
    of two that start at once, at least one sees the other.
    """
    tuner = who_tunes(lock)
    if tuner is None:
        return
    who, stop = tuner.named, Text("Ctrl-C where it runs", "在其终端按 Ctrl-C")
    if tuner.pid is not None:
        kill = f"`kill {tuner.pid}`"
        stop = Text(f"{kill}, or {stop.en}", f"{kill} 或{stop.zh}")
    raise AppError(
        Text(
            f"A tuning runs on this machine{who.en}: it and a service would take the same memory, "
            "and its figures would be worth nothing.",
            f"本机正在调优{who.zh}：与服务同时运行会争用内存，测得的数据也会失真。",
        ),
        Text(
            f"Wait for its end, or stop it ({stop.en}): its trials stay, and the next "
            "`workhorse tune` goes on from there. Then start the service again.",
            f"请等待其结束，或停止它（{stop.zh}）：已有试验会保留，下次 `workhorse tune` "
            "会继续。之后再启动服务。",
        ),
        exit_code=EXIT_NO,
    )


def unknown_variables(only: Sequence[str], known: Sequence[str]) -> AppError:
    """`--only` names what is no variable here."""
    listed = ", ".join(known)
    return AppError(
        Text(
            f"{', '.join(only)} cannot be tuned here.",
            f"{', '.join(only)} 在本机不可调。",
        ),
        Text(f"There are: {listed}.", f"可选：{listed}。"),
        exit_code=2,
    )


def now() -> str:
    """The time as ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")
