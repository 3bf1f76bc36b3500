"""Hours of the day: what may be typed, and what the clock on the wall makes of them."""

import pytest

from workhorse.batch.job import Window
from workhorse.batch.windows import (
    changes_in_s,
    ends_at_s,
    is_open,
    open_s_a_day,
    show_window,
    window_of,
)

HOUR_S = 3600.0
NIGHT = (window_of("20:00-07:00"),)


def clock(unix_s: float, *, change_s: float = 1e18, before_h: float = 1, after_h: float = 1) -> int:
    """A wall clock ahead of UTC by hours that change once."""
    ahead_h = before_h if unix_s < change_s else after_h
    return int((unix_s + ahead_h * HOUR_S) // 60) % 1440


@pytest.mark.parametrize(
    ("word", "begin_min", "end_min"),
    [("20:00-07:00", 1200, 420), ("9:05 - 17:30", 545, 1050), ("00:00–24:00", 0, 1440)],
)
def test_a_span_is_read_and_shown(word: str, begin_min: int, end_min: int) -> None:
    window = window_of(word)
    assert window == Window(begin_min=begin_min, end_min=end_min)
    assert window_of(show_window(window)) == window


@pytest.mark.parametrize(
    "word", ["", "20-7", "20:00", "24:00-07:00", "20:60-07:00", "07:00-07:00", "20:00-25:00", "x"]
)
def test_anything_else_is_no_span(word: str) -> None:
    with pytest.raises(ValueError):
        window_of(word)


def test_a_span_over_midnight_is_open_on_both_sides() -> None:
    assert [is_open(NIGHT, hour * 60) for hour in (19, 20, 23, 0, 6, 7, 12)] == [
        False, True, True, True, True, False, False,
    ]  # fmt: skip
    assert is_open((), 720)
    assert open_s_a_day(NIGHT) == 11 * HOUR_S


def test_it_opens_and_shuts_by_the_wall_clock() -> None:
    noon_s = 11 * HOUR_S + 17  # 12:00:17 on the wall
    assert changes_in_s(NIGHT, noon_s, clock, to_open=True) == 8 * HOUR_S - 17
    assert changes_in_s(NIGHT, noon_s, clock, to_open=False) == 0
    assert changes_in_s((), noon_s, clock, to_open=True) == 0
    assert changes_in_s((), noon_s, clock, to_open=False) is None


@pytest.mark.parametrize(
    ("after_h", "work_h"),
    [(2, 10), (0, 12)],
    ids=["clocks go forward at night", "clocks go back at night"],
)
def test_the_night_of_a_clock_change_is_as_long_as_the_wall_makes_it(
    after_h: float, work_h: float
) -> None:
    """From 20:00 to 07:00 on the wall: ten hours, or twelve."""
    evening_s, change_s = 19 * HOUR_S, 25 * HOUR_S

    def wall(unix_s: float) -> int:
        return clock(unix_s, change_s=change_s, after_h=after_h)

    assert changes_in_s(NIGHT, evening_s, wall, to_open=False) == work_h * HOUR_S
    assert ends_at_s(NIGHT, evening_s, work_h * HOUR_S, wall) == evening_s + work_h * HOUR_S
    # One minute more of work waits for the next evening.
    later_s = ends_at_s(NIGHT, evening_s, work_h * HOUR_S + 60, wall)
    assert later_s == (24 + 20 - after_h) * HOUR_S + 60


def test_an_hour_that_the_day_does_not_have_never_opens_that_day() -> None:
    """02:00 to 03:00 is left out when the clocks go forward at 02:00."""
    change_s = 25 * HOUR_S

    def wall(unix_s: float) -> int:
        return clock(unix_s, change_s=change_s, after_h=2)

    gap = (window_of("02:00-03:00"),)
    assert changes_in_s(gap, 24 * HOUR_S, wall, to_open=True) == 24 * HOUR_S


def test_the_end_of_work_skips_the_shut_hours() -> None:
    evening_s = 22 * HOUR_S  # 23:00 on the wall, eight hours to go
    assert ends_at_s(NIGHT, evening_s, HOUR_S, clock) == evening_s + HOUR_S
    assert ends_at_s(NIGHT, evening_s, 9 * HOUR_S, clock) == evening_s + 22 * HOUR_S
    assert ends_at_s((), evening_s, 9 * HOUR_S, clock) == evening_s + 9 * HOUR_S
    assert ends_at_s(NIGHT, evening_s, 1e9, clock) is None
