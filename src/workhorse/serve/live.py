"""How fast each engine answers right now, as its answers say."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from workhorse.records import AnswerSpeed, EngineReading
from workhorse.serve.backend import Backend, Roster, Served
from workhorse.serve.figures import TokenCount

LATEST_ANSWERS = 8
# What was answered before that says nothing of now.
LATEST_S = 300.0
# Over how many seconds the speed of all streams together is reckoned.
FLOW_S = 5.0


@dataclass(frozen=True, slots=True)
class Answered:
    """What one answer said of its engine's speed; `None`: it did not say."""

    at_s: float
    decode_tokens_per_s: float | None
    prefill_tokens_per_s: float | None
    ttft_s: float | None
    depth_tokens: float | None
    streams: float | None
    prefill_share: float | None  # of its time in a slot


@dataclass(slots=True)
class Flow:
    """What goes through one engine; `generating` and `tokens` are counted by who serves."""

    generating: int = 0
    giving_way: int = 0  # of them, those that let others go first
    tokens: int = 0  # pieces of text that came, since the start
    answers: deque[Answered] = field(default_factory=lambda: deque(maxlen=LATEST_ANSWERS))
    marks: deque[tuple[float, int]] = field(default_factory=deque)  # seconds, tokens until then

    def tokens_per_s(self, now_s: float) -> float | None:
        """Of all streams together, over the latest seconds; None when first asked."""
        if not self.marks or now_s - self.marks[-1][0] >= FLOW_S / 5:
            self.marks.append((now_s, self.tokens))
        while len(self.marks) > 2 and now_s - self.marks[1][0] >= FLOW_S:
            self.marks.popleft()
        since_s, before = self.marks[0]
        return None if now_s <= since_s else (self.tokens - before) / (now_s - since_s)

    def latest(self, now_s: float) -> list[Answered]:
        """The answers that still say something of now."""
        return [one for one in self.answers if now_s - one.at_s <= LATEST_S]


class Live:
    """Learns of each answer what it says of its engine's speed."""

    def __init__(self, roster: Roster, clock: Callable[[], float] = time.monotonic) -> None:
        # Set by who holds the queue: how many wait, and how many of them let others go first.
        self.waiting: Callable[[Served], int] = lambda _: 0
        self.waiting_batch: Callable[[Served], int] = lambda _: 0
        self.queue_limit: int | None = None
        self._roster = roster
        self._clock = clock
        self._flows: dict[Backend, Flow] = {}

    def flow(self, served: Served) -> Flow:
        """What goes through an engine."""
        if (found := self._flows.get(served.backend)) is None:
            there = {one.backend for one in self._roster.known}
            self._flows = {
                backend: flow
                for backend, flow in self._flows.items()
                if backend in there or flow.generating
            }
            found = self._flows[served.backend] = Flow()
        return found

    def answered(
        self,
        served: Served,
        counts: Sequence[TokenCount],
        *,
        ttft_s: float | None,
        streams: float | None,
        took_s: float,
    ) -> None:
        """Take in an answer that is complete."""
        for count in counts:
            self.flow(served).answers.append(
                Answered(
                    self._clock(),
                    count.decode_tokens_per_s,
                    count.prefill_tokens_per_s,
                    ttft_s,
                    _depth_tokens(count),
                    streams,
                    _prefill_share(count, took_s),
                )
            )

    def speeds(self, served: Served) -> tuple[float | None, float | None]:
        """Prefill and decode speed of one stream, as the latest answers say."""
        latest = self.flow(served).latest(self._clock())
        return (
            _middle(one.prefill_tokens_per_s for one in latest),
            _middle(one.decode_tokens_per_s for one in latest),
        )

    def engine_readings(self) -> tuple[EngineReading, ...]:
        """Each engine at this moment; what its process does is left unknown."""
        return tuple(self._reading(served) for served in self._roster.known)

    def _reading(self, served: Served) -> EngineReading:
        now_s, flow = self._clock(), self.flow(served)
        latest = flow.latest(now_s)
        depth, in_line = _middle(one.depth_tokens for one in latest), self.waiting_batch(served)
        streams = _middle(one.streams for one in latest)
        shares = [one.prefill_share for one in latest if one.prefill_share is not None]
        return EngineReading(
            model_name=served.model_name,
            state=served.backend.state,
            restarts=served.backend.restarts,
            generating=flow.generating,
            waiting=self.waiting(served),
            slots=None if served.capacity is None else served.capacity.slots,
            decode_tokens_per_s=_middle(one.decode_tokens_per_s for one in latest),
            total_tokens_per_s=flow.tokens_per_s(now_s),
            prefill_tokens_per_s=_middle(one.prefill_tokens_per_s for one in latest),
            ttft_s=_middle(one.ttft_s for one in latest),
            depth_tokens=None if depth is None else round(depth),
            streams=None if streams is None else round(streams),
            prefill_share=fmean(shares) if shares else None,
            queue_limit=self.queue_limit,
            answers=tuple(
                AnswerSpeed(
                    one.at_s,
                    one.decode_tokens_per_s,
                    None if one.depth_tokens is None else round(one.depth_tokens),
                    one.streams,
                    one.prefill_share,
                )
                for one in latest
                if one.decode_tokens_per_s
            ),
            giving_way=flow.giving_way + in_line,
            giving_way_in_line=in_line,
            on=served.on,
        )


def _middle(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _depth_tokens(count: TokenCount) -> float | None:
    """Where in the context it was decoded: the middle of the answer."""
    if count.prompt is None or count.generated is None:
        return None
    return count.prompt + count.generated / 2


def _prefill_share(count: TokenCount, took_s: float) -> float | None:
    if count.prompt is None or not count.prefill_tokens_per_s or took_s <= 0:
        return None
    return min(1.0, (count.prompt - (count.cached or 0)) / count.prefill_tokens_per_s / took_s)
