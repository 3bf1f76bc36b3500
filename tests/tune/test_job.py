"""A whole tuning on a fake engine: what it finds, keeps, and goes on with."""

import asyncio
import json
import os
import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from fake_bed import Listener, fake_server, given, rule, speak_as_told, two_cores

import builders
from workhorse.codec import from_json
from workhorse.config import Places
from workhorse.errors import EXIT_NO, AppError
from workhorse.models.gguf import read_gguf
from workhorse.plan.planner import make_plan
from workhorse.plan.wish import Wish
from workhorse.run.live_processes import birthplace, read_process
from workhorse.run.run_file import ServiceFile, write_service_file
from workhorse.tune.builds import builds_at_hand
from workhorse.tune.history import Circumstances, History
from workhorse.tune.job import Wanted, tune
from workhorse.tune.kept import with_kept
from workhorse.tune.tell import conclusion, story
from workhorse.tune.trial import Pair, Trial

# One thing that helps, one that hinders, some that fail.
RULES = (
    rule(threads="1", speed_times=0.2),
    rule(cache_type_k="q8_0", speed_times=6.0),
    rule("out of memory", flash_attn="off"),
    rule("other words", load_mode="mmap"),
)
QUICK = ("--gap-ms", "8")


@pytest.fixture(autouse=True)
def short_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workhorse.tune.load.MOST_OUTPUT_TOKENS", 30)
    monkeypatch.setattr("workhorse.tune.job.FINAL_PAIRS", 7)
    monkeypatch.setattr("workhorse.tune.job.PAIRS_MAX", 8)
    speak_as_told(monkeypatch)


async def test_it_finds_the_best_keeps_it_and_tells_the_story(tmp_path: Path) -> None:
    wanted = given(fake_server(tmp_path / "bin", RULES, *QUICK))
    where, heard = Places(tmp_path / "home"), Listener()
    only = ("threads", "kv", "flash attention", "load")
    tuned = await tune(Wanted(wanted, only=only), where, heard)

    outcomes = heard.outcomes()
    assert outcomes["kv q8_0"] == "accepted"
    assert outcomes["flash attention off"] in ("out of memory", "refused")  # refused: KV is q8_0
    assert outcomes["load mmap"] == "wrong output"
    assert "threads 1" not in {key for key, said in outcomes.items() if said == "accepted"}
    assert [change.value for change in tuned.changes] == ["q8_0"]
    assert tuned.kept, tuned
    assert tuned.ratio is not None
    assert tuned.ratio > 1
    assert len(tuned.pairs) == 7

    plan = with_kept(where.tuning, wanted.machine, wanted.model, wanted.plan, Wish())
    assert plan.kv_type_k == "q8_0"
    assert plan.forecast.decode_tokens_per_s is not None
    assert plan.forecast.decode_tokens_per_s.basis == "measured"

    # The negative results are there too, each with its conditions.
    history = History(where.tuning)
    tuning = history.latest()
    assert tuning is not None
    assert history.trials(tuning) == tuned.trials == tuple(heard.trials)
    assert history.result(tuning) == tuned
    with closing(sqlite3.connect(where.tuning)) as connection:
        rows = connection.execute("SELECT outcome, conditions FROM trial").fetchall()
    assert all('"plan"' in conditions for _, conditions in rows)
    for language, words in (("en", "KV type q8_0"), ("zh", "KV 类型 q8_0")):
        told = story(tuned, language)  # type: ignore[arg-type]
        assert words in told
        assert len([line for line in told.splitlines() if line.startswith("|")]) == (
            len(tuned.trials) + 5
        )


async def test_stopped_midway_it_goes_on_where_it_was(tmp_path: Path) -> None:
    wanted = Wanted(given(fake_server(tmp_path / "bin", RULES, *QUICK)), only=("kv", "spin"))
    where = Places(tmp_path / "home")

    class Impatient(Listener):
        def pair(self, pairs: Sequence[Pair]) -> None:
            if self.trials:  # in the middle of the second trial
                job.cancel()

    first = Impatient()
    job = asyncio.ensure_future(tune(wanted, where, first))
    with pytest.raises(asyncio.CancelledError):
        await job
    assert len(first.trials) == 1

    second = Listener()
    tuned = await tune(wanted, where, second)
    assert second.notes == []
    assert second.earlier == first.trials
    assert [trial.number for trial in tuned.trials] == list(range(1, len(tuned.trials) + 1))
    tried = [(trial.change, trial.kept) for trial in tuned.trials]
    assert len(set(tried)) == len(tried)  # nothing twice
    assert [change.value for change in tuned.changes] == ["q8_0"]


async def test_the_time_is_kept_and_what_is_left_is_tried_the_next_time(tmp_path: Path) -> None:
    engine = fake_server(tmp_path / "bin", RULES, *QUICK)
    where, heard = Places(tmp_path / "home"), Listener()
    tuned = await tune(Wanted(given(engine), budget_s=0.01, only=("kv",)), where, heard)
    assert (tuned.trials, tuned.changes, tuned.kept) == ((), (), False)
    assert tuned.finished.reason == "budget"
    assert conclusion(tuned).en == "No trial was decided."
    # It is told before the time is spent, with a time that would do.
    (told,) = heard.notes
    assert re.search(r"A trial takes about .+ are left.* --budget \d+m", told), told
    heard = Listener()
    tuned = await tune(Wanted(given(engine), only=("kv",)), where, heard)
    assert heard.notes == []
    assert [change.value for change in tuned.changes] == ["q8_0"]


async def test_a_gain_that_does_not_come_again_is_not_kept(tmp_path: Path) -> None:
    """The engine gets slow once it was accepted: the last measurement tells."""
    surface = tmp_path / "bin" / "surface.json"
    engine = fake_server(tmp_path / "bin", [rule(cache_type_k="q8_0", speed_times=6.0)], *QUICK)

    class Spoiler(Listener):
        def confirming(self, changes: Sequence[object]) -> None:
            slow = rule(cache_type_k="q8_0", speed_times=0.2)
            surface.write_text(json.dumps({"rules": [slow]}))

    where = Places(tmp_path / "home")
    tuned = await tune(Wanted(given(engine), only=("kv",)), where, Spoiler())
    assert [change.value for change in tuned.changes] == ["q8_0"]
    assert not tuned.kept
    assert tuned.not_kept_because is not None
    assert "does not confirm" in tuned.not_kept_because.en
    unused = with_kept(where.tuning, two_cores(), builders.model(), given(engine).plan, Wish())
    assert unused.kv_type_k == "f16"


async def test_a_gain_that_answers_in_other_words_is_kept(tmp_path: Path) -> None:
    """Other kernels round otherwise, in the last measurement as in the trial before it."""
    faster = rule("other words", flash_attn="off", speed_times=6.0)
    where = Places(tmp_path / "home")
    wanted = given(fake_server(tmp_path / "bin", [faster], *QUICK))
    tuned = await tune(Wanted(wanted, only=("flash attention",)), where, Listener())
    assert [change.value for change in tuned.changes] == ["off"]
    assert tuned.not_kept_because is None
    assert tuned.kept
    assert tuned.ratio is not None
    assert tuned.ratio > 1


async def test_beside_a_running_service_it_refuses(tmp_path: Path) -> None:
    where = Places(tmp_path / "home")
    me = read_process(os.getpid())
    assert me is not None
    file = ServiceFile(birthplace(), me, "127.0.0.1", 8080, 0.0, "m", "t")
    write_service_file(where.run, file)
    with pytest.raises(AppError, match="A service runs on port 8080") as refused:
        await tune(Wanted(given(fake_server(tmp_path / "bin"))), where, Listener())
    assert refused.value.exit_code == EXIT_NO
    assert f"kill {os.getpid()}" in refused.value.next_step.en
    # One that has ended without a word is in nobody's way.
    gone = replace(file, service=replace(me, start_ticks=me.start_ticks + 1))
    write_service_file(where.run, gone)
    wanted = Wanted(given(fake_server(tmp_path / "bin")), budget_s=0.01)
    assert (await tune(wanted, where, Listener())).trials == ()


async def test_a_service_that_is_started_meanwhile_ends_it_and_the_trials_stay(
    tmp_path: Path,
) -> None:
    where = Places(tmp_path / "home")
    me = read_process(os.getpid())
    assert me is not None

    class Served(Listener):
        def tried(self, trial: Trial, spent_s: float) -> None:
            super().tried(trial, spent_s)
            file = ServiceFile(birthplace(), me, "127.0.0.1", 8080, 0.0, "m", "t")
            write_service_file(where.run, file)

    engine = fake_server(tmp_path / "bin", [rule("die", flash_attn="off")], *QUICK)
    heard = Served()
    with pytest.raises(AppError, match="A service runs on port 8080"):
        await tune(Wanted(given(engine), only=("flash attention", "spin")), where, heard)
    history = History(where.tuning)
    tuning = history.latest()
    assert tuning is not None
    assert [trial.outcome for trial in history.trials(tuning)] == ["crashed"]


async def test_a_trial_that_cannot_be_written_down_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = fake_server(tmp_path / "bin", RULES, *QUICK)
    where = Places(tmp_path / "home")
    await tune(Wanted(given(engine), budget_s=0.01), where, Listener())
    pages = "PRAGMA page_count"
    with closing(sqlite3.connect(where.tuning)) as connection:
        (most,) = connection.execute(pages).fetchone()
    real = sqlite3.connect

    def full(*args: object, **more: object) -> sqlite3.Connection:
        connection = real(*args, **more)  # type: ignore[call-overload]
        connection.execute(f"PRAGMA max_page_count = {most}")  # as on a full disk
        return connection  # type: ignore[no-any-return]

    monkeypatch.setattr("workhorse.tune.history.sqlite3.connect", full)
    heard = Listener()
    with pytest.raises(AppError, match="database or disk is full") as told:
        await tune(Wanted(given(engine), only=("kv", "load", "spin")), where, heard)
    assert "Free space" in told.value.next_step.en
    monkeypatch.undo()
    monkeypatch.setattr("workhorse.tune.load.MOST_OUTPUT_TOKENS", 30)
    again = Listener()
    await tune(Wanted(given(engine), budget_s=0.01, only=("kv",)), where, again)
    assert again.earlier == heard.trials


async def test_a_variable_that_is_none_here(tmp_path: Path) -> None:
    wanted = Wanted(given(fake_server(tmp_path / "bin")), only=("gpu layers",))
    with pytest.raises(AppError, match="gpu layers cannot be tuned here") as told:
        await tune(wanted, Places(tmp_path / "home"), Listener())
    assert "threads" in told.value.next_step.en


@pytest.mark.real
@pytest.mark.timeout(1800)
async def test_on_the_real_engine(
    tmp_path: Path, real_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What real answers say: the golden text, the log, the quality of a smaller KV."""
    monkeypatch.setattr("workhorse.tune.load.PROMPTS_TOKENS", (64,))
    monkeypatch.setattr("workhorse.tune.job.PAIRS_MAX", 3)
    where = Places(tmp_path)
    plain = given(fake_server(tmp_path / "bin"))
    (build,) = builds_at_hand(where.engines, plain.machine)
    model = read_gguf(real_model)
    plan = make_plan(plain.machine, model, build, Wish(context_tokens=2048, slots=1))
    plan = replace(plan, threads=1)  # two would wait for each other on a busy machine
    limits = replace(plain.constraints, kl_divergence=0.05)
    wanted = replace(plain, model=model, plan=plan, constraints=limits)
    tuned = await tune(Wanted(wanted, only=("kv",)), where, Listener())
    assert {trial.change.value for trial in tuned.trials} <= {"q8_0", "q4_0", "keys q8_0"}
    assert {trial.outcome for trial in tuned.trials} <= {
        "accepted", "worse", "no difference", "refused",
    }  # fmt: skip
    with closing(sqlite3.connect(where.tuning)) as connection:
        found = connection.execute("SELECT value, conditions FROM trial").fetchall()
    assert found
    for value, conditions in found:
        distance = from_json(Circumstances, conditions, what="trial").divergence
        assert distance is not None
        assert 0 < distance < (0.05 if value == "q8_0" else 5)
