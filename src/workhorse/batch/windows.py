"""When a job may run: spans of the day by the clock on the wall, also over its changes. Pure.

Local time is asked minute by minute (`LocalMinute`): on the day on which the clocks are put
forward or back a span is as long as the clock on the wall makes it, with no rule of our own.
"""

import re
from collections.abc import Callable, Sequence

from workhorse.batch.job import Window

DAY_MIN = 24 * 60
LOOK_AHEAD_S = 400 * 86400.0  # longer forecasts have no date: nothing else ends the search
_SPAN = re.compile(r"(\d{1,2}):(\d{2})\s*[-–—]\s*(\d{1,2}):(\d{2})")

# The minute of the local day, 0 to 1439, at a moment in Unix seconds.
LocalMinute = Callable[[float], int]


def window_of(word: str) -> Window:
    """The span that `20:00-07:00` stands for; a ValueError for anything else."""
    match = _SPAN.fullmatch(word.strip())
    if match is None:
        raise ValueError(word)
    begin_min, end_min = (int(match[at]) * 60 + int(match[at + 1]) for at in (1, 3))
    minutes_are_wrong = int(match[2]) > 59 or int(match[4]) > 59
    if minutes_are_wrong or begin_min >= DAY_MIN or end_min > DAY_MIN or begin_min == end_min:
        raise ValueError(word)
    return Window(begin_min=begin_min, end_min=end_min)


def show_window(window: Window) -> str:
    """The span as it is typed: `20:00-07:00`."""
    ends = (window.begin_min, window.end_min)
    return "-".join(f"{at_min // 60:02}:{at_min % 60:02}" for at_min in ends)


def is_open(windows: Sequence[Window], minute: int) -> bool:
    """Whether a job may run at this minute of the day; always, without windows."""
    return not windows or any(_holds(one, minute) for one in windows)


def _holds(window: Window, minute: int) -> bool:
    if window.begin_min < window.end_min:
        return window.begin_min <= minute < window.end_min
    return minute >= window.begin_min or minute < window.end_min


def changes_in_s(
    windows: Sequence[Window], unix_s: float, local_minute: LocalMinute, *, to_open: bool
) -> float | None:
    """Seconds until it is open (or shut); 0 when it is so now, None when that never comes."""
    at_s = unix_s
    while at_s - unix_s <= LOOK_AHEAD_S:
        if is_open(windows, local_minute(at_s)) == to_open:
            return at_s - unix_s
        if not windows:
            return None
        at_s = _next_minute(at_s)
    return None


def ends_at_s(
    windows: Sequence[Window], unix_s: float, work_s: float, local_minute: LocalMinute
) -> float | None:
    """The moment at which so much time of work has passed; None: in more than a year."""
    if not windows:
        return unix_s + work_s
    at_s, left_s = unix_s, work_s
    while at_s - unix_s <= LOOK_AHEAD_S:
        until_s = _next_minute(at_s)
        if is_open(windows, local_minute(at_s)):
            if left_s <= until_s - at_s:
                return at_s + left_s
            left_s -= until_s - at_s
        at_s = until_s
    return None


def open_s_a_day(windows: Sequence[Window]) -> float:
    """How long a job may run on a usual day, in seconds."""
    return 60.0 * sum(is_open(windows, minute) for minute in range(DAY_MIN))


def _next_minute(at_s: float) -> float:
    return (at_s // 60 + 1) * 60
