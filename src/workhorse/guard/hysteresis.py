"""When a condition that comes and goes is an alarm, and when it is told. Pure."""

from collections import deque
from typing import Literal

from workhorse.guard.limits import Limits

News = Literal["raised", "over"]


class Condition:
    """One condition over time: bad in N of the latest M looks raises it, K good ones clear it.

    It opens and closes by these counts alone. It is *told* at most once in `repeat_s`: a
    condition that flaps is one alarm, that came so many `times`.
    """

    def __init__(self, limits: Limits, *, at_once: bool = False) -> None:
        self.open = False
        self.since_s = 0.0
        self.over_s: float | None = None
        self.times = 0
        self._limits = limits
        self._raise_after = 1 if at_once else limits.raise_after
        self._latest: deque[bool] = deque(maxlen=1 if at_once else limits.of_latest)
        self._good = 0
        self._told_open = False
        self._told_s: float | None = None

    @property
    def suspected(self) -> bool:
        """True while any of the latest looks was bad."""
        return self.open or any(self._latest)

    def look(self, bad: bool, at_s: float) -> None:
        """Count one look at time `at_s`, in Unix seconds."""
        self._latest.append(bad)
        self._good = 0 if bad else self._good + 1
        if not self.open and sum(self._latest) >= self._raise_after:
            self._raise(at_s)
        elif self.open and self._good >= self._limits.clear_after:
            self.close(at_s)

    def close(self, at_s: float) -> None:
        """It is over, by what is known otherwise."""
        if self.open:
            self.open, self.over_s = False, at_s
            self._latest.clear()

    def _raise(self, at_s: float) -> None:
        again = self.over_s is not None and at_s - self.over_s < self._limits.repeat_s
        self.times = self.times + 1 if again else 1
        if not again:
            self.since_s = at_s
        self.open, self.over_s, self._good = True, None, 0

    def news(self, at_s: float) -> News | None:
        """What is to be told now; each thing once."""
        if self.open and not self._told_open:
            told = self._told_s
            # A clock that was set back must not silence it for ever.
            if told is not None and 0 <= at_s - told < self._limits.repeat_s:
                return None
            self._told_open, self._told_s = True, at_s
            return "raised"
        if not self.open and self._told_open:
            self._told_open = False
            return "over"
        return None
