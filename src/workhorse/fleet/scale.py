"""How many replicas there should be, by what waits and what runs. Pure.

More when requests have waited too long for a while, fewer when the others could have done the work
for much longer: a replica takes minutes to load, and a queue comes and goes within seconds.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

# A client that waits longer for its slot than this wishes for one more replica …
LONG_WAIT_S = 10.0
# … and gets it when that is so for most of this time.
PRESSED_S = 30.0
PRESSED_SHARE = 0.8
# One goes when for this long the rest would have been enough, with so much of their slots taken.
IDLE_S = 600.0
BUSY_SHARE = 0.6
# People who chat read, think and type between their questions: so many share a slot and seldom wait
# for one another. Our own judgement; `fleet plan --users` simulates it.
USERS_A_SLOT = 3
# A window with fewer looks in it says nothing.
LOOKS_MIN = 5


@dataclass(frozen=True, slots=True)
class Bounds:
    """How few and how many replicas there may be."""

    least: int
    most: int

    def within(self, count: int) -> int:
        """The nearest allowed number."""
        return max(self.least, min(self.most, count))


@dataclass(frozen=True, slots=True)
class Load:
    """What one look at the service saw; of one model."""

    at_s: float
    ready: int  # replicas that take requests
    coming: int  # that are being placed or started, or started again
    slots: int  # of the ready ones
    running: int  # requests in slots
    waiting: int
    expected_wait_s: float | None = None  # of who came last; None: nobody waits, or not known

    @property
    def pressed(self) -> bool:
        """Does somebody wait too long, or are more in line than all slots take at once?"""
        if not self.waiting:
            return False
        return self.waiting >= self.slots or (self.expected_wait_s or 0.0) >= LONG_WAIT_S

    @property
    def roomy(self) -> bool:
        """Would one replica less have been enough, with room to spare?"""
        if self.ready < 2 or self.waiting:
            return False
        rest = self.slots * (self.ready - 1) / self.ready
        return self.running <= rest * BUSY_SHARE


class Scale:
    """Takes in one look after the other and says how many replicas there should be."""

    def __init__(
        self, bounds: Bounds, *, pressed_s: float = PRESSED_S, idle_s: float = IDLE_S
    ) -> None:
        self.bounds = bounds
        self._pressed_s, self._idle_s = pressed_s, idle_s
        self._looks: deque[Load] = deque()

    def wanted(self, load: Load) -> int:
        """The number of replicas that there should be now, those that are coming included."""
        have = load.ready + load.coming
        if self._looks and have != self._looks[-1].ready + self._looks[-1].coming:
            self._looks.clear()  # what was seen with another number says little of this one
        self._looks.append(load)
        keep_s = max(self._pressed_s, self._idle_s)
        while len(self._looks) > 2 and load.at_s - self._looks[1].at_s >= keep_s:
            self._looks.popleft()
        wanted = self.bounds.within(have)
        if wanted != have or load.coming:
            return wanted
        if self._is_pressed(load.at_s):
            return self.bounds.within(more(load))
        if self._is_roomy(load.at_s):
            return self.bounds.within(have - 1)
        return have

    def _is_pressed(self, now_s: float) -> bool:
        seen = self._over(now_s, self._pressed_s)
        return bool(seen) and sum(one.pressed for one in seen) >= PRESSED_SHARE * len(seen)

    def _is_roomy(self, now_s: float) -> bool:
        seen = self._over(now_s, self._idle_s)
        return bool(seen) and all(one.roomy for one in seen)

    def _over(self, now_s: float, for_s: float) -> list[Load]:
        """The looks of the latest `for_s` seconds; none when they do not reach back so far."""
        if now_s - self._looks[0].at_s < for_s:
            return []
        seen = [one for one in self._looks if now_s - one.at_s <= for_s]
        return seen if len(seen) >= LOOKS_MIN else []


def more(load: Load) -> int:
    """As many as would take all who wait at once, but at most twice as many as now."""
    if not load.ready or not load.slots:
        return load.ready + 1
    all_at_once = ceil((load.running + load.waiting) * load.ready / load.slots)
    return max(load.ready + 1, min(all_at_once, 2 * load.ready))


def replicas_for(users: int, slots: Sequence[int]) -> int:
    """How many of the replicas with these slots, in this order, so many people need; at least 1."""
    needed, have = ceil(users / USERS_A_SLOT), 0
    for count, each in enumerate(slots, 1):
        have += each
        if have >= needed:
            return count
    return max(1, len(slots))
