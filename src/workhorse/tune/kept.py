"""The best plan of a tuning, kept for the next `up` and `plan` of its model on this machine."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from workhorse.codec import from_json, to_line
from workhorse.errors import AppError
from workhorse.plan.wish import Purpose, Wish
from workhorse.records import (
    EngineBuild,
    Estimate,
    Finding,
    Forecast,
    Machine,
    Model,
    Plan,
    Reason,
    Stored,
    Verdict,
)
from workhorse.text import Text
from workhorse.tune.apply import apply
from workhorse.tune.fingerprint import build_key, changed, fingerprint, model_key
from workhorse.tune.given import Given, Refusal
from workhorse.tune.history import tables
from workhorse.tune.trial import Change, Constraints, Goal

SCHEMA = """
CREATE TABLE IF NOT EXISTS kept (
    id INTEGER PRIMARY KEY,
    kept_at TEXT NOT NULL,              -- ISO 8601, UTC
    undone_at TEXT,                     -- NULL: in use
    model TEXT NOT NULL,                -- name, quant and bytes of the weights
    goal TEXT NOT NULL,
    document TEXT NOT NULL              -- the Kept, JSON
)
"""
# What one is to be fast at, by what it is for: long documents are read more than answered.
GOALS: dict[Purpose, Goal] = {"chat": "decode", "long": "prefill", "batch": "total"}

# Which setting of a plan's reasons a variable answers for, where it has another name there.
SETTING_OF = {
    "cpus": "threads",
    "numa": "threads",
    "load": "pages",
    "micro-batch": "batch",
    "gpu layers": "device",
    "expert layers": "experts in RAM",
    "split": "layer split",
}


@dataclass(frozen=True, slots=True)
class Kept:
    """What a tuning ended with: the changes to the plan, and how sure their gain is."""

    kept_at: str
    machine: dict[str, str]  # its fingerprint
    model: str
    goal: Goal
    build: str  # of the tuned plan
    changes: tuple[Change, ...]
    ratio: float  # tuned over the start, measured in turns at the end
    interval: tuple[float, float] | None
    tokens_per_s: float  # of the goal, median at the end
    low_tokens_per_s: float
    high_tokens_per_s: float
    prompt_tokens: int  # of the rounds that it was measured in
    streams: int
    file: str | None = None  # the key of another file of the model; None: it is the start's


@dataclass(frozen=True, slots=True)
class KeptPlans:
    """The tuned plans of one installation, in the SQLite file of its history."""

    path: Path

    def put(self, kept: Kept) -> None:
        """Keep a tuned plan: the next `up` of its model uses it."""
        with tables(self.path, SCHEMA) as connection, connection:
            connection.execute(
                "INSERT INTO kept (kept_at, model, goal, document) VALUES (?, ?, ?, ?)",
                (kept.kept_at, kept.model, kept.goal, to_line(kept)),
            )

    def latest(self, model: str, goal: Goal) -> Kept | None:
        """The tuned plan in use; None without one, or when another version wrote its form."""
        if not self.path.exists():
            return None
        with tables(self.path, SCHEMA) as connection:
            row = connection.execute(
                "SELECT document FROM kept WHERE model = ? AND goal = ? AND undone_at IS NULL "
                "ORDER BY id DESC LIMIT 1",
                (model, goal),
            ).fetchone()
        try:
            return None if row is None else from_json(Kept, row[0], what=str(self.path))
        except AppError:
            return None

    def undo(self, model: str, goal: Goal | None, undone_at: str) -> int:
        """Use the tuned plans of a model no more, the latest of each goal (None: of all goals).

        The ones before them come back. Returns how many there were; the trials stay.
        """
        if not self.path.exists():
            return 0
        with tables(self.path, SCHEMA) as connection, connection:
            cursor = connection.execute(
                "UPDATE kept SET undone_at = ?1 WHERE id IN (SELECT max(id) FROM kept "
                "WHERE model = ?2 AND undone_at IS NULL AND (?3 IS NULL OR goal = ?3) "
                "GROUP BY goal)",
                (undone_at, model, goal),
            )
            return cursor.rowcount


def goal_of(wish: Wish) -> Goal:
    """What a service that is for this has to be fast at."""
    return GOALS[wish.purpose or "chat"]


def with_kept(
    path: Path,
    machine: Machine,
    model: Model,
    plan: Plan,
    wish: Wish,
    builds: Callable[[], Sequence[EngineBuild]] = tuple,
    file_at: Callable[[str], Model | None] = lambda _: None,
    stored: Stored | None = None,
) -> Plan:
    """The plan as it was tuned on this machine, where it was; else the plan itself.

    `builds` gives those at hand beside the plan's, none where the user named one; `file_at` another
    file of the model by its path, None where it has gone; `stored` is the checkpoint of an engine
    with one pool of KV. Slots that were asked for stay. A history that cannot be read, or that is
    of another machine, build or file, is a note.
    """
    try:
        kept = KeptPlans(path).latest(model_key(model), goal_of(wish))
    except AppError as error:
        return noted(plan, "tune.history_unreadable", error.what, error.next_step)
    if kept is None or plan.verdict.blocked:
        return plan
    other = changed(kept.machine, fingerprint(machine))
    if other is not None:
        return noted(plan, "tune.machine_changed", other_machine(kept, other), tune_again())
    others = () if kept.build == build_key(plan.engine) else tuple(builds())
    if kept.build not in {build_key(build) for build in (plan.engine, *others)}:
        words = Text(
            f"Tuned on {kept.kept_at[:10]} with {kept.build}, which is not here any more.",
            f"{kept.kept_at[:10]} 的调优基于 {kept.build}，该构建已不在。",
        )
        return noted(plan, "tune.build_changed", words, tune_again())
    asked = {"slots"} if wish.slots is not None else set()
    changes = tuple(change for change in kept.changes if change.variable not in asked)
    files = other_file(kept, file_at)
    if files is None:
        return noted(plan, "tune.file_gone", file_gone(kept), tune_again())
    least = least_of(plan, wish)
    given = Given(machine, model, plan, kept.goal, least, others, files, stored=stored)
    tuned = apply(given, changes)
    if isinstance(tuned, Refusal):
        words = Text(
            f"The plan tuned on {kept.kept_at[:10]} cannot be used now: {tuned.because.en}",
            f"{kept.kept_at[:10]} 的调优方案现在无法使用：{tuned.because.zh}",
        )
        return noted(plan, "tune.cannot_be_used", words, tune_again())
    return explained(tuned, kept, changes)


def other_file(kept: Kept, file_at: Callable[[str], Model | None]) -> tuple[Model, ...] | None:
    """The file that the tuned plan takes instead of the start's; None: it is not there any more."""
    path = file_of(kept)
    if path is None:
        return ()
    found = file_at(path)
    return (found,) if found is not None and model_key(found) == kept.file else None


def file_of(kept: Kept) -> str | None:
    """The path of another file that the tuned plan takes."""
    parts = (part for change in kept.changes for part in change.parts)
    paths = [part.value for part in parts if part.variable == "quant"]
    return paths[-1] if paths and kept.file is not None else None


def file_gone(kept: Kept) -> Text:
    """The tuned plan takes a file that has gone, or that is another one now."""
    date, path = kept.kept_at[:10], file_of(kept)
    return Text(
        f"The plan tuned on {date} takes {path}, which is not there or another file now.",
        f"{date} 的调优方案使用 {path}，该文件已不在或已被更换。",
    )


def least_of(plan: Plan, wish: Wish) -> Constraints:
    """What a plan may not give up: what it has."""
    slots = plan.slots if wish.slots is not None else 1
    return Constraints(plan.context_tokens, slots, wish.headroom)


def explained(plan: Plan, kept: Kept, changes: Sequence[Change]) -> Plan:
    """The tuned plan with the reason for each change, and the measured speed as its forecast."""
    date = kept.kept_at[:10]
    gain = f"{(kept.ratio - 1) * 100:+.0f} %"
    because = Text(
        f"Tuned on {date}: {gain}{sure(kept)}. `workhorse tune --undo` takes it back.",
        f"{date} 调优：{gain}{sure_zh(kept)}。`workhorse tune --undo` 可撤销。",
    )
    each = Text(f"As measured on {date}.", f"{date} 实测。")
    settings = {SETTING_OF.get(change.variable, change.variable) for change in changes}
    reasons = (
        Reason("tuned", gain, because),
        *(reason for reason in plan.reasons if reason.setting not in settings),
        *(Reason(change.variable, change.value, each) for change in changes),
    )
    return replace(plan, reasons=reasons, forecast=measured_forecast(plan, kept))


def measured_forecast(plan: Plan, kept: Kept) -> Forecast:
    """The forecast with what was measured of the tuned plan; other figures stay reckoned."""
    source = Text(
        f"tuned on {kept.kept_at[:10]}, prompts of {kept.prompt_tokens} tokens",
        f"{kept.kept_at[:10]} 调优实测，提示词 {kept.prompt_tokens} 词元",
    )
    figure = Estimate(
        kept.tokens_per_s,
        kept.low_tokens_per_s,
        kept.high_tokens_per_s,
        "tok/s",
        "measured",
        source,
    )
    if kept.goal == "decode":
        return replace(plan.forecast, decode_tokens_per_s=figure)
    if kept.goal == "prefill":
        return replace(plan.forecast, prefill_tokens_per_s=figure)
    return plan.forecast


def sure(kept: Kept) -> str:
    """The interval of the gain, in English."""
    if kept.interval is None:
        return ""
    low, high = kept.interval
    return f" (95 % sure: {(low - 1) * 100:+.0f} to {(high - 1) * 100:+.0f} %)"


def sure_zh(kept: Kept) -> str:
    """The interval of the gain, in Chinese."""
    if kept.interval is None:
        return ""
    low, high = kept.interval
    return f"（95% 区间 {(low - 1) * 100:+.0f} 至 {(high - 1) * 100:+.0f} %）"


def other_machine(kept: Kept, what: Text) -> Text:
    """The tuned plan is of a machine that was another one."""
    return Text(
        f"The plan tuned on {kept.kept_at[:10]} is not used: this machine has changed ({what.en}).",
        f"未使用 {kept.kept_at[:10]} 的调优方案：机器已变化（{what.zh}）。",
    )


def tune_again() -> Text:
    """The next step for a tuned plan that does not hold any more."""
    return Text("Tune it again: `workhorse tune`.", "请重新调优：`workhorse tune`。")


def noted(plan: Plan, code: str, seen: Text, remedy: Text) -> Plan:
    """The plan with a note that its tuned settings are not used."""
    note = Finding(
        code=code,
        level="note",
        seen=seen,
        why=Text("The plan is the one without tuning.", "当前方案未经调优。"),
        remedy=remedy,
        source="history of tuning",
    )
    return replace(plan, verdict=Verdict((*plan.verdict.findings, note)))
