"""In which order waiting requests get the free slots. Pure.

1. Chat before batch, until a batch request has given way for `BATCH_YIELDS_S`.
2. Between keys: whoever has had less of the engines' time. That is start-time fair queueing
   (Goyal, Vin, Cheng 1996): each request of a key starts in virtual time where the one before
   it ended; a key that comes back starts at the present and has saved up nothing.
3. Within a key: by the moment of arrival plus `STRETCH` times the expected cost. A short chat
   passes a long prompt that came shortly before it, but nobody who comes later than that moment
   does: no request waits for ever.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from operator import itemgetter

BATCH_YIELDS_S = 300.0
# A request may wait so many times what it costs before shorter ones stop passing it ...
STRETCH = 4.0
# ... and no longer than this, whatever it costs.
LONGEST_YIELD_S = 300.0


@dataclass(frozen=True, slots=True)
class Waiter:
    """One request in the line."""

    ticket: int
    key: str
    batch: bool
    arrived_s: float
    cost_s: float  # expected, in a slot
    slots: int = 1  # that it takes at once

    @property
    def taken_s(self) -> float:
        """What it will have had of the slots' time."""
        return self.cost_s * self.slots

    @property
    def due_s(self) -> float:
        """Within its key, nobody who comes after this moment goes first."""
        return self.arrived_s + min(STRETCH * self.cost_s, LONGEST_YIELD_S)


class FairOrder:
    """How much of the slots' time each key has had, and the order that follows from it."""

    def __init__(self) -> None:
        self._clock_s = 0.0  # virtual: where the latest request that was let through started
        self._had_s: dict[str, float] = {}

    def line(self, waiters: Iterable[Waiter], now_s: float) -> list[Waiter]:
        """All waiters, the next one first."""
        by_key: dict[str, list[tuple[bool, float, int, Waiter]]] = {}
        for one in waiters:
            yields = one.batch and now_s - one.arrived_s < BATCH_YIELDS_S
            by_key.setdefault(one.key, []).append((yields, one.due_s, one.ticket, one))
        ranked: list[tuple[bool, float, float, int, Waiter]] = []
        for key, own in by_key.items():
            start_s = self._start_s(key)
            for yields, due_s, ticket, one in sorted(own, key=itemgetter(0, 1, 2)):
                ranked.append((yields, start_s, due_s, ticket, one))
                start_s += one.taken_s
        return [rank[-1] for rank in sorted(ranked, key=itemgetter(0, 1, 2, 3))]

    def granted(self, key: str, taken_s: float) -> None:
        """A request of the key was let through that should take so much of the slots' time."""
        start_s = self._start_s(key)
        self._clock_s = start_s
        self._had_s[key] = start_s + taken_s

    def corrected(self, key: str, by_s: float) -> None:
        """It took so much longer than expected; negative: less."""
        if key in self._had_s:
            self._had_s[key] += by_s

    def restart(self) -> None:
        """Nobody waits or is served: what was before decides nothing any more."""
        self._clock_s = 0.0
        self._had_s.clear()

    def _start_s(self, key: str) -> float:
        return max(self._clock_s, self._had_s.get(key, 0.0))
