"""The short measurement of a replica, and what a node remembers of it."""

from dataclasses import replace
from pathlib import Path

import pytest

import builders
from workhorse.fleet.first_speeds import Speeds, forecast_of, scenarios, speeds_in
from workhorse.fleet.replica_record import (
    MOST_DEATHS,
    ReplicaRecord,
    after_death,
    delay_s,
    digest_of,
    path_of,
    read_record,
    write_record,
)
from workhorse.plan.planner import make_plan
from workhorse.plan.wish import Wish
from workhorse.records import Run
from workhorse.run.policy import DELAYS_S, STEADY_S
from workhorse.text import same

PLAN = make_plan(
    builders.machine(), builders.model(), builders.EMBEDDED, Wish(context_tokens=4096, slots=4)
)
ONE_SLOT = replace(PLAN, slots=1)


def run(stream: int, first_s: float, gap_s: float, tokens: int = 11) -> Run:
    arrivals = tuple(first_s + gap_s * n for n in range(tokens))
    return Run(stream, 100, 0, tokens, arrivals, arrivals[-1])


def test_it_keeps_to_its_time_by_the_forecast() -> None:
    told = forecast_of(PLAN)
    assert told.prefill_tokens_per_s is not None
    assert told.decode_tokens_per_s is not None
    for budget_s in (0.001, 5.0, 60.0, 1e9):
        alone, together = scenarios(PLAN, budget_s)
        assert (alone.streams, together.streams) == (1, 4)
        took_s = (
            2 * alone.prompt_tokens / told.prefill_tokens_per_s
            + alone.output_tokens / told.decode_tokens_per_s
        )
        assert took_s <= max(budget_s, 48 / told.decode_tokens_per_s)
    assert scenarios(PLAN, 1e9)[0].prompt_tokens == 512


def test_prompt_and_answer_fit_into_a_short_context() -> None:
    for one in scenarios(replace(PLAN, context_tokens=64), 1e9):
        assert one.prompt_tokens + one.output_tokens <= 64


def test_one_slot_is_measured_once() -> None:
    (alone,) = scenarios(ONE_SLOT)
    speeds = speeds_in(ONE_SLOT, (run(0, 0.5, 0.1),), ())
    assert alone.streams == 1
    assert speeds is not None
    assert speeds.prefill_tokens_per_s == pytest.approx(200.0)
    assert speeds.decode_tokens_per_s == speeds.total_tokens_per_s == pytest.approx(10.0)


def test_all_slots_together_are_the_sum_of_each() -> None:
    together = tuple(run(stream, 0.5, 0.2) for stream in range(4))
    speeds = speeds_in(PLAN, (run(0, 0.5, 0.125),), together)
    assert speeds is not None
    assert speeds.decode_tokens_per_s == pytest.approx(8.0)
    assert speeds.total_tokens_per_s == pytest.approx(20.0)


def test_what_failed_says_nothing() -> None:
    broken = replace(run(0, 0.5, 0.1), error="it died")
    assert speeds_in(PLAN, (broken,), ()) is None
    told = speeds_in(PLAN, (run(0, 0.5, 0.1),), (broken, *(run(n, 0.5, 0.1) for n in (1, 2, 3))))
    assert told is not None
    assert told.total_tokens_per_s is None


def test_a_node_remembers_a_replica_by_its_plan(tmp_path: Path) -> None:
    record = ReplicaRecord(digest_of(PLAN), (1.0,), same("it died"), Speeds(1.0, 2.0, None))
    write_record(tmp_path / "run", "a-1", record)
    assert read_record(tmp_path / "run", "a-1", PLAN) == record
    assert read_record(tmp_path / "run", "a-1", ONE_SLOT) == ReplicaRecord(digest_of(ONE_SLOT))
    assert read_record(tmp_path / "run", "a-2", PLAN) == ReplicaRecord(digest_of(PLAN))


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b"[" * 100_000, b" " * (2 << 20)])
def test_a_broken_record_is_none(tmp_path: Path, content: bytes) -> None:
    path_of(tmp_path, "a-1").write_bytes(content)
    assert read_record(tmp_path, "a-1", PLAN) == ReplicaRecord(digest_of(PLAN))


def test_a_record_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    write_record(tmp_path / "file" / "run", "a-1", ReplicaRecord(""))


def test_deaths_in_a_row_make_it_wait_and_then_give_up() -> None:
    record, now_s, waits = ReplicaRecord(""), 1000.0, []
    while (wait_s := delay_s(record, now_s)) is not None:
        waits.append(wait_s)
        now_s += wait_s
        record = after_death(record, now_s, 1.0, same("no memory"))
    assert waits == [0.0, *DELAYS_S]
    assert record.reason == same("no memory")
    assert len(record.deaths_unix_s) <= MOST_DEATHS


def test_a_long_life_wipes_the_slate(tmp_path: Path) -> None:
    record = ReplicaRecord("", tuple(range(MOST_DEATHS)))
    assert delay_s(record, 1e6) is None
    assert delay_s(after_death(record, 1e6, STEADY_S, same("x")), 1e6) == 0.0


def test_a_clock_that_was_set_back_delays_no_start() -> None:
    record = after_death(ReplicaRecord(""), 9e9, 1.0, same("x"))
    record = after_death(record, 9e9, 1.0, same("x"))
    assert delay_s(record, 1000.0) == DELAYS_S[1]
