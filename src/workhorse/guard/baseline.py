"""What decode speed to expect of a service at a depth and a number of streams. Pure.

The shape over depth and streams is the plan's forecast; its height is what was measured here. A
live service teaches it: how fast it is where nobody measured, and how much it scatters.
"""

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from workhorse.plan.speed import PROTOCOL_DEPTH_TOKENS
from workhorse.records import Basis, Forecast

# A forecast rests on tables alone until this machine was measured: only far below it is certain.
DOUBT_OF_FORECAST = 0.5
MEASURED: tuple[Basis, ...] = ("measured", "learned", "twin")
# What one service scatters around its own measurement, with sampling, logging and clients on the
# same cores (answers of one engine on two quiet cores scatter by 3 to 8 %; 2026-11).
SCATTER = 0.85
LEARN_FROM = 12  # readings: a minute at the usual period
LEARN_UP_TO = 720  # an hour of them
# Learning lowers a measurement by no more than this, so that a slow decline is seen.
LEARNED_LEAST = 0.8
LEARN_ABOVE = 0.7  # of what is expected; below it may be a collapse


@dataclass(frozen=True, slots=True)
class Expected:
    """Tokens a second of each stream, and the least that is not worth a word."""

    tokens_per_s: float
    low_tokens_per_s: float
    basis: Basis


@dataclass(slots=True)
class _Cell:
    """What the live service showed at like depth and streams, as shares of the shape."""

    shares: list[float] = field(default_factory=list)  # ascending

    @property
    def known(self) -> bool:
        return len(self.shares) >= LEARN_FROM

    def quantile(self, share: float) -> float:
        return self.shares[min(len(self.shares) - 1, int(share * len(self.shares)))]


class Baseline:
    """What one service is expected to do. `learn` and `accept` change it, nothing else does."""

    def __init__(self, forecast: Forecast) -> None:
        self._forecast = forecast
        estimate = forecast.decode_tokens_per_s
        self._basis: Basis | None = None if estimate is None else estimate.basis
        self._value = None if estimate is None else estimate.value
        self._low_share = 0.0
        if estimate is not None:
            self._low_share = min(SCATTER, estimate.low / estimate.value)
            if estimate.basis not in MEASURED:
                self._low_share *= DOUBT_OF_FORECAST
        self._cells: dict[tuple[int, int], _Cell] = {}

    def accept(self, tokens_per_s: float) -> None:
        """Take over a measurement of this service: one stream by the standard protocol."""
        if tokens_per_s <= 0:
            return
        self._value, self._basis, self._low_share = tokens_per_s, "measured", SCATTER
        self._cells.clear()  # shares of another height

    def expect(self, depth_tokens: int | None, streams: int | None) -> Expected | None:
        """The speed of each stream; None where nothing was forecast, measured or learned."""
        depth, count = depth_tokens or PROTOCOL_DEPTH_TOKENS, max(1, streams or 1)
        cell = self._cells.get(_key(depth, count))
        shape = self._shape(depth, count)
        if shape is None or self._basis is None:
            return None
        if cell is None or not cell.known:
            if self._value is None:
                return None
            return Expected(shape, shape * self._low_share * self._doubt(count), self._basis)
        middle = cell.quantile(0.5)
        if self._basis in MEASURED:
            middle = max(middle, LEARNED_LEAST)
        # Widened by what it scatters, never by what it once was: the lowest tenth of the hour.
        low = min(middle * SCATTER, max(cell.quantile(0.1) * SCATTER, middle * LEARN_ABOVE))
        return Expected(shape * middle, shape * low, "learned")

    def learn(self, tokens_per_s: float, depth_tokens: int | None, streams: int | None) -> bool:
        """Learn from one reading of a healthy service; False: it was not taken.

        The caller says that nothing else is wrong; this refuses what may be a collapse, and
        stops after an hour of readings at like depth and streams.
        """
        depth, count = depth_tokens or PROTOCOL_DEPTH_TOKENS, max(1, streams or 1)
        if self._basis is None:
            # Nothing was forecast: the first reading gives the height, the next ones teach.
            height = tokens_per_s / (self._depth_share(depth) * self._streams_share(count))
            self._value, self._basis, self._low_share = height, "estimated", 0.0
        shape, expected = self._shape(depth, count), self.expect(depth, count)
        cell = self._cells.setdefault(_key(depth, count), _Cell())
        if not shape or expected is None or len(cell.shares) >= LEARN_UP_TO:
            return False
        certain = self._basis in MEASURED or cell.known
        least = LEARN_ABOVE * expected.tokens_per_s if certain else expected.low_tokens_per_s
        if tokens_per_s < least:
            return False
        insort(cell.shares, tokens_per_s / shape)
        return True

    def _shape(self, depth: int, streams: int) -> float | None:
        """Tokens a second of each stream before learning."""
        if self._value is None:
            return None
        return self._value * self._depth_share(depth) * self._streams_share(streams)

    def _depth_share(self, depth: int) -> float:
        one = self._forecast.decode_tokens_per_s
        points = [(PROTOCOL_DEPTH_TOKENS, 1.0)]
        if one is not None:
            points += [
                (d.depth_tokens, one.value / d.tokens_per_s.value)
                for d in self._forecast.depths
                if d.tokens_per_s.value > 0
            ]
        return 1 / max(0.1, _line(points, depth))

    def _streams_share(self, streams: int) -> float:
        one = self._forecast.decode_tokens_per_s
        points = [(1, 1.0)]
        if one is not None:
            points += [
                (s.streams, one.value / s.each_tokens_per_s.value)
                for s in self._forecast.streams
                if s.streams > 1 and s.each_tokens_per_s.value > 0
            ]
        if len(points) == 1:
            return 1 / streams  # the least that a batch gives each
        return 1 / max(0.1, _line(points, streams))

    def _doubt(self, streams: int) -> float:
        """How much lower a batch may be than its shape: its forecast's own interval."""
        found = [
            s.each_tokens_per_s.low / s.each_tokens_per_s.value
            for s in self._forecast.streams
            if s.streams > 1 and s.each_tokens_per_s.value > 0
        ]
        return 1.0 if streams == 1 else min(found, default=1.0)


def _key(depth: int, streams: int) -> tuple[int, int]:
    """Like depths share a cell: each is twice as deep as the one before."""
    return max(depth, PROTOCOL_DEPTH_TOKENS).bit_length(), streams


def _line(points: Sequence[tuple[int, float]], at: int) -> float:
    """Time a token at `at`, on straight lines through the points and beyond the last two."""
    known = sorted(dict(points).items())
    if len(known) == 1 or at <= known[0][0]:
        return known[0][1]
    for (x, y), (next_x, next_y) in pairwise(known):
        if at <= next_x or next_x == known[-1][0]:
            return y + (next_y - y) * (at - x) / (next_x - x)
    return known[-1][1]
