"""The history: what it keeps, for how long, in how much room, and what it answers with."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from workhorse.errors import AppError
from workhorse.records import CardReading, EngineReading, Reading
from workhorse.serve.history import EVENTS_KEPT, History
from workhorse.serve.points import (
    DAY_S,
    LARGEST_FIGURES,
    POINTS_OF_A_FIGURE,
    TIERS,
    UNITS,
    Event,
    points_of,
    span_for,
)
from workhorse.text import Text

NOON = 1_800_000_000  # a whole ten minutes
LARGEST_BYTES_A_POINT = 40


class Clock:
    """The time as the test says."""

    def __init__(self, now: float = NOON) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def reading(at: float, speed: float | None = 20.0, cards: int = 1, name: str = "horse") -> Reading:
    engine = EngineReading(
        name, "ready", 0, 1, 0, 4, speed, speed, None, 0.5, None, None, resident_bytes=5 * 2**30
    )
    card = [CardReading(i, None, "V100", used_bytes=2**33, power_w=150.5) for i in range(cards)]
    return Reading(at, (engine,), tuple(card), 2**36, 2**35)


def kept(path: Path) -> list[int]:
    """The points of one figure in each tier."""
    sql = """SELECT tier, count(*) FROM history_point WHERE figure_id =
        (SELECT min(id) FROM history_figure) GROUP BY tier ORDER BY tier"""
    with closing(sqlite3.connect(path)) as connection:
        return [count for _, count in connection.execute(sql)]


def test_every_figure_has_a_unit_and_unknown_ones_have_no_point() -> None:
    points = list(points_of(reading(NOON, speed=None)))
    assert {point.figure for point in points} <= UNITS.keys()
    assert "decode_tokens_per_s" not in {point.figure for point in points}
    assert {(p.subject, p.value) for p in points if p.figure == "card_power_w"} == {("0", 150.5)}


def test_two_engines_of_one_model_have_one_curve() -> None:
    one = reading(NOON).engines[0]
    both = replace(reading(NOON), engines=(one, replace(one, decode_tokens_per_s=40.0, waiting=0)))
    found = {(point.figure, point.subject): point.value for point in points_of(both)}
    assert found["decode_tokens_per_s", "horse"] == 30.0
    assert found["generating", "horse"] == 2
    assert found["resident_bytes", "horse"] == 10 * 2**30


def test_a_year_stays_within_its_bounds(tmp_path: Path) -> None:
    """Coarse for a year, then as dense as each tier can be, so that every tier is full."""
    path, clock = tmp_path / "service.sqlite", Clock()
    history = History(path, clock)
    end = NOON + 365 * DAY_S
    at = float(NOON)
    for until, step_s in ((end - 3 * DAY_S, 600), (end - 3600, 60), (end, 5)):
        while at < until:
            batch_end = min(until, at + 200 * step_s)
            while at < batch_end:
                history.take(Reading(at, (), (), 2**36, 2**35 + int(at) % 977 * 2**20))
                at += step_s
            clock.now = at
            history.write()
    clock.now += 600
    history.write()
    counts = kept(path)
    for tier, count in zip(TIERS, counts, strict=True):
        most = tier.kept_s // tier.step_s
        assert most * 0.8 < count <= most + 1
    with closing(sqlite3.connect(path)) as connection:
        (free,) = connection.execute("PRAGMA freelist_count").fetchone()
        connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    bytes_a_point = path.stat().st_size / sum(counts)
    assert bytes_a_point < LARGEST_BYTES_A_POINT
    # Pages that pruning freed are used again: the file does not grow beyond its fullest day.
    assert free * 4096 < path.stat().st_size
    assert LARGEST_FIGURES * POINTS_OF_A_FIGURE * LARGEST_BYTES_A_POINT < 90 * 2**20


def test_more_figures_than_the_bound_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "service.sqlite"
    history = History(path, Clock())
    history.take(reading(NOON, cards=LARGEST_FIGURES))
    history.write()
    with closing(sqlite3.connect(path)) as connection:
        (there,) = connection.execute("SELECT count(*) FROM history_figure").fetchone()
    assert there == LARGEST_FIGURES


def test_a_new_model_is_kept_after_many_others(tmp_path: Path) -> None:
    clock = Clock()
    history = History(tmp_path / "service.sqlite", clock)
    days = range(LARGEST_FIGURES)  # one model a day, each with several figures
    for day in days:
        clock.now = NOON + day * DAY_S
        history.take(reading(clock.now, name=f"model-{day}"))
        history.write()
    told = history.read(["decode_tokens_per_s"], NOON, clock.now, 400).series
    assert f"model-{days[-1]}" in {one.subject for one in told}
    assert 1 < len(told) < len(days)


def test_a_coarse_point_keeps_the_extremes_and_a_gap_stays_a_gap(tmp_path: Path) -> None:
    clock = Clock()
    history = History(tmp_path / "service.sqlite", clock)
    for second, speed in ((0, 10.0), (20, 40.0), (40, 10.0), (600, 30.0)):
        history.take(reading(NOON + second, speed))
    clock.now = NOON + 2 * 3600  # too old for the fine tier
    (series,) = history.read(["decode_tokens_per_s"], NOON, clock.now, 400).series
    assert (series.subject, series.unit) == ("horse", "tok/s")
    assert series.points == ((NOON, 10.0, 20.0, 40.0), (NOON + 600, 30.0, 30.0, 30.0))


def test_the_fine_points_of_the_last_hour_as_they_were(tmp_path: Path) -> None:
    clock = Clock(NOON + 30)
    history = History(tmp_path / "service.sqlite", clock)
    for second in range(0, 30, 5):
        history.take(reading(NOON + second, 20.0 + second))
    stretch = history.read(["decode_tokens_per_s", "waiting"], NOON, NOON + 30, 400)
    assert stretch.step_s == 5
    assert {one.figure for one in stretch.series} == {"decode_tokens_per_s", "waiting"}
    assert stretch.series[0].points[3] == (NOON + 15, 35.0, 35.0, 35.0)


@pytest.mark.parametrize(
    ("age_s", "pixels", "tier", "step_s"),
    [
        (900, 300, 0, 5),
        (3600, 300, 0, 15),
        (3601, 10_000, 1, 60),
        (DAY_S, 300, 1, 300),
        (30 * DAY_S, 300, 2, 9000),
        (4000 * DAY_S, 1, 2, 4000 * DAY_S),
    ],
)
def test_what_is_asked_of_which_tier(age_s: int, pixels: int, tier: int, step_s: int) -> None:
    span = span_for(NOON - age_s, NOON, NOON, pixels)
    assert (span.tier, span.step_s) == (tier, step_s)


def test_a_clock_that_was_ahead_leaves_nothing_behind(tmp_path: Path) -> None:
    clock = Clock(NOON + 1000 * DAY_S)
    history = History(tmp_path / "service.sqlite", clock)
    history.take(reading(clock.now))
    history.write()
    clock.now = NOON
    history.take(reading(NOON))
    stretch = history.read(["ttft_s"], NOON - 60, NOON + 2000 * DAY_S, 100)
    assert [len(series.points) for series in stretch.series] == [1]


def test_a_restart_goes_on_where_it_was(tmp_path: Path) -> None:
    clock = Clock(NOON + 20)
    for second in (0, 10):
        history = History(tmp_path / "service.sqlite", clock)
        history.take(reading(NOON + second))
        history.write()
    (series,) = (
        History(tmp_path / "service.sqlite", clock).read(["ttft_s"], NOON, NOON + 20, 99).series
    )
    assert len(series.points) == 2


def test_events_newest_first_and_bounded(tmp_path: Path) -> None:
    path = tmp_path / "service.sqlite"
    history = History(path, Clock())
    for number in range(EVENTS_KEPT + 50):
        history.note(Event(NOON + number, "horse", "restarting", Text(f"no {number}", "无")))
        if number % 100 == 0:
            history.write()
    history.note(Event(NOON + 999, "horse", "ready", None))
    latest = history.events(2)
    assert [(event.state, event.reason) for event in latest] == [
        ("ready", None),
        ("restarting", Text(f"no {EVENTS_KEPT + 49}", "无")),
    ]
    History(path, Clock()).write()
    assert len(history.events(10_000)) == EVENTS_KEPT


def test_a_file_that_is_no_database(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Writing goes on without it, and says so once; reading says what to do."""
    path = tmp_path / "service.sqlite"
    path.write_bytes(b"no database" * 1000)
    history = History(path, Clock())
    for _ in range(3):
        history.take(reading(NOON))
        history.write()
    assert len(caplog.records) == 1
    with pytest.raises(AppError, match="move it away"):
        history.read(["ttft_s"], NOON - 60, NOON, 100)
    path.unlink()
    history.take(reading(NOON))
    assert history.read(["ttft_s"], NOON - 60, NOON, 100).series
