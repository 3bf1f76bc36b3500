"""Which request gets which engine's slot, and when; who waits, how long; who is refused. Pure.

Events go in (a request arrives, has its first token, ends, leaves; engines come, go, get ready),
decisions come out. Time is an argument. Every ticket that arrives is granted or refused, or leaves;
after each event no request waits that could have a slot.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush

from workhorse.serve.affinity import Affinity
from workhorse.serve.allowance import Allowance
from workhorse.serve.decisions import Bid, Grant, Lane, Refusal, Standing
from workhorse.serve.fair_order import FairOrder, Waiter

QUEUE_LENGTH = 128
LONGEST_WAIT_S = 600.0  # `openai` gives up after that time (its `DEFAULT_TIMEOUT`, 3.x, 2026-11)
# A prefill that takes longer is long: while half of an engine's slots are in one, no further one
# begins there. Two prefills at once are each half as fast, so nothing is lost by it, and short
# requests find a slot.
LONG_PREFILL_S = 10.0
# How long requests wait for a model whose last engine was taken away: a reload puts in another.
GONE_WAIT_S = 30.0
# What a request costs where no speed is known yet: it decides an order, and is told to nobody.
ASSUMED_PREFILL_TOKENS_PER_S = 100.0
ASSUMED_DECODE_TOKENS_PER_S = 10.0
# Each further stream of an engine slows the others down by about so much: enough to tell which of
# two engines to take.
CROWD_SHARE = 0.1
# A request that has taken longer than expected will go on for so much of the time it took.
OVERDUE_SHARE = 0.25


@dataclass(slots=True)
class _Request:
    """One that waits or is served."""

    waiter: Waiter
    bid: Bid
    engine: int | None = None  # None: it waits
    slots: int = 0  # of that engine which it holds
    granted_s: float = 0.0
    cost_s: float = 0.0  # expected by then
    prefilling: bool = False  # a long one, before its first token


@dataclass(slots=True)
class _Engine:
    lane: Lane
    running: dict[int, _Request]
    long_prefills: int = 0
    taken_slots: int = 0

    def needs(self, answers: int) -> int:
        """How many slots so many answers take: an engine queues what is beyond its own."""
        return answers if self.lane.slots is None else min(answers, self.lane.slots)

    def has_room(self, answers: int) -> bool:
        slots = self.lane.slots
        return slots is None or self.taken_slots + self.needs(answers) <= slots

    def may_prefill(self, *, long: bool) -> bool:
        slots = self.lane.slots
        return not long or slots is None or slots < 2 or self.long_prefills < slots // 2


@dataclass(frozen=True, slots=True)
class _Choice:
    """The engine for a request, if one has a free slot, and what it should take there."""

    engine: _Engine | None
    prefill_s: float
    cost_s: float  # on the engine where it costs least
    # It lacks nothing but enough slots at once: who stands behind it must not take them one by one.
    holds: bool = False


class _Model:
    """The line in front of the engines of one model."""

    def __init__(self) -> None:
        self.engines: list[_Engine] = []
        self.waiting: dict[int, _Request] = {}
        self.order = FairOrder()
        self.gone_since_s: float | None = None
        self.requests = 0  # that wait or are served

    def usable(self) -> list[_Engine]:
        """The ready ones; all when none is: whoever waits for a restart holds a slot of it."""
        return [one for one in self.engines if one.lane.ready] or self.engines


class Admission:
    """The state of all slots and lines; one instance a gateway."""

    def __init__(
        self, *, queue_length: int = QUEUE_LENGTH, longest_wait_s: float = LONGEST_WAIT_S
    ) -> None:
        self._queue_length = queue_length
        self._longest_wait_s = longest_wait_s
        self._engines: dict[int, _Engine] = {}  # those that were taken away and still answer, too
        self._models: dict[str, _Model] = {}
        self._requests: dict[int, _Request] = {}
        self._running: dict[str, int] = {}  # slots that each key's requests hold
        self._affinity = Affinity()
        self._rpm, self._tpm = Allowance(), Allowance()

    # events

    def set_engines(self, lanes: Sequence[Lane], now_s: float) -> list[Grant | Refusal]:
        """These engines are there now, with these slots and speeds; no others."""
        for model in self._models.values():
            model.engines = []
        for lane in lanes:
            engine = self._engines.setdefault(lane.number, _Engine(lane, {}))
            engine.lane = lane
            self._model(lane.model).engines.append(engine)
        there = {lane.number for lane in lanes}
        for number in self._engines.keys() - there:
            if not self._engines[number].running:
                del self._engines[number]
                self._affinity.forget(number)
        return [*self._pump(now_s), *self._refuse_the_gone(now_s)]

    def cache_lost(self, engine: int) -> None:
        """The engine was started anew: what it had cached is gone."""
        self._affinity.forget(engine)

    def arrive(self, ticket: int, bid: Bid, now_s: float) -> Grant | Standing | Refusal:
        """A request that is new; what the answer says has been done."""
        model = self._model(bid.model)
        if refusal := self._over_limit(ticket, bid, now_s):
            return refusal
        choice = self._choose(model, bid)
        slots = max((one.needs(bid.answers) for one in model.usable()), default=1)
        request = _Request(Waiter(ticket, bid.key, bid.batch, now_s, choice.cost_s, slots), bid)
        if choice.engine is not None and self._is_held(model, request, now_s):
            choice = replace(choice, engine=None)
        if choice.engine is None and (refusal := self._no_room(model, request, now_s)):
            return refusal
        self._rpm.take(bid.key, 1)
        self._tpm.take(bid.key, bid.tokens)
        self._requests[ticket] = request
        model.requests += 1
        if choice.engine is not None:
            return self._grant(model, request, choice, now_s)
        model.waiting[ticket] = request
        return self._standing(model, request, now_s)

    def prefilled(self, ticket: int, now_s: float) -> list[Grant]:
        """The request has its first token."""
        request = self._requests[ticket]
        return self._pump(now_s) if self._end_prefill(request) else []

    def leave(self, ticket: int, now_s: float, spent_tokens: float | None = None) -> list[Grant]:
        """The request is over, or its client has left; `spent_tokens` that it really took.

        `None`: not known, then what was expected counts. One that only waited spent none.
        """
        request = self._requests.pop(ticket)
        bid, model = request.bid, self._models[request.bid.model]
        if request.engine is None:
            del model.waiting[ticket]
            spent_tokens = 0.0
        else:
            took_s = now_s - request.granted_s
            model.order.corrected(bid.key, took_s * request.slots - request.waiter.taken_s)
            self._free(request)
        if spent_tokens is not None:
            self._tpm.take(bid.key, spent_tokens - bid.tokens)
        model.requests -= 1
        if not model.requests:
            model.order.restart()
        return self._pump(now_s)

    def again(self, ticket: int, now_s: float) -> list[Grant]:
        """Its engine died before it began: back into the line, where it would stand by now."""
        request = self._requests[ticket]
        model = self._models[request.bid.model]
        model.order.corrected(request.bid.key, -request.waiter.taken_s)
        self._free(request)
        model.waiting[ticket] = request
        return self._pump(now_s)

    # questions

    def standing(self, ticket: int, now_s: float) -> Standing | None:
        """Where a waiting request stands; None: it does not wait."""
        request = self._requests.get(ticket)
        if request is None or request.engine is not None:
            return None
        return self._standing(self._models[request.bid.model], request, now_s)

    def waiting(self, model: str, now_s: float) -> tuple[int, ...]:
        """The tickets in line for a model, the next one first."""
        if (found := self._models.get(model)) is None:
            return ()
        line = found.order.line((one.waiter for one in found.waiting.values()), now_s)
        return tuple(one.ticket for one in line)

    def anybody_waits(self) -> bool:
        """Is there a line anywhere?"""
        return any(model.waiting for model in self._models.values())

    def running(self, engine: int) -> int:
        """How many requests hold a slot of an engine."""
        found = self._engines.get(engine)
        return 0 if found is None else len(found.running)

    # inside

    def _model(self, name: str) -> _Model:
        if (found := self._models.get(name)) is None:
            found = self._models[name] = _Model()
        return found

    def _standing(self, model: _Model, request: _Request, now_s: float) -> Standing:
        waiters = [one.waiter for one in model.waiting.values() if one is not request]
        line = model.order.line([*waiters, request.waiter], now_s)
        ahead = line[: line.index(request.waiter)]
        wait_s = self._wait_s(model, ahead, request.bid, now_s)
        return Standing(request.waiter.ticket, len(ahead) + 1, wait_s)

    def _over_limit(self, ticket: int, bid: Bid, now_s: float) -> Refusal | None:
        if bid.rpm is None and bid.tpm is None:
            return None
        lacks_s = self._rpm.lacks_s(bid.key, 1, bid.rpm, now_s)
        if lacks_s > 0:
            return Refusal(ticket, "requests a minute", lacks_s, limit=bid.rpm)
        lacks_s = self._tpm.lacks_s(bid.key, bid.tokens, bid.tpm, now_s)
        if lacks_s > 0:
            return Refusal(ticket, "tokens a minute", lacks_s, limit=bid.tpm)
        return None

    def _no_room(self, model: _Model, request: _Request, now_s: float) -> Refusal | None:
        """Why it cannot wait either: the line is full, or it would wait too long."""
        key, ticket = request.bid.key, request.waiter.ticket
        standing = self._standing(model, request, now_s)
        wait_s, position = standing.expected_wait_s, standing.position
        if len(model.waiting) >= self._queue_length:
            return Refusal(ticket, "queue full", wait_s, position, self._queue_length)
        share = max(1, self._queue_length // 2)
        # Or one key's flood would have every other one refused.
        if key and sum(one.bid.key == key for one in model.waiting.values()) >= share:
            return Refusal(ticket, "key's share", wait_s, position, share)
        if wait_s is not None and wait_s > self._longest_wait_s:
            return Refusal(ticket, "wait", wait_s, position)
        return None

    def _choose(self, model: _Model, bid: Bid) -> _Choice:
        """Where it would be done first, of the engines with a free slot."""
        spent = self._is_at_its_concurrency(bid)
        best, best_s, best_prefill_s, holds = None, 0.0, 0.0, False
        least_s: float | None = None
        for engine in model.usable():
            lane = engine.lane
            known = self._affinity.known_bytes(lane.number, bid.prefix) * bid.tokens_per_byte
            speed = lane.prefill_tokens_per_s or ASSUMED_PREFILL_TOKENS_PER_S
            prefill_s = max(1.0, bid.prompt_tokens - known) / speed
            speed = lane.stream_tokens_per_s() or ASSUMED_DECODE_TOKENS_PER_S
            cost_s = prefill_s + bid.output_tokens / speed
            least_s = cost_s if least_s is None else min(least_s, cost_s)
            if spent or not engine.may_prefill(long=prefill_s > LONG_PREFILL_S):
                continue
            if not engine.has_room(bid.answers):
                holds = holds or bid.answers > 1
            else:
                # Among equals the one with fewer to serve decodes faster.
                done_s = cost_s * (1 + CROWD_SHARE * len(engine.running))
                if best is None or done_s < best_s:
                    best, best_s, best_prefill_s = engine, done_s, prefill_s
        return _Choice(best, best_prefill_s, least_s or 0.0, holds and best is None)

    def _is_at_its_concurrency(self, bid: Bid) -> bool:
        """A request for more answers than the key may have at once runs alone."""
        running = self._running.get(bid.key, 0)
        return bid.concurrency is not None and 0 < running > bid.concurrency - bid.answers

    def _is_held(self, model: _Model, request: _Request, now_s: float) -> bool:
        """Does anybody before it in line wait for several slots at once?"""
        if not any(one.bid.answers > 1 for one in model.waiting.values()):
            return False
        waiters = [one.waiter for one in model.waiting.values()]
        line = model.order.line([*waiters, request.waiter], now_s)
        ahead = line[: line.index(request.waiter)]
        return any(self._choose(model, model.waiting[one.ticket].bid).holds for one in ahead)

    def _grant(self, model: _Model, request: _Request, choice: _Choice, now_s: float) -> Grant:
        bid, ticket, engine = request.bid, request.waiter.ticket, choice.engine
        if engine is None:
            raise RuntimeError("there is no free slot")
        request.engine, request.granted_s = engine.lane.number, now_s
        request.slots = engine.needs(bid.answers)
        engine.taken_slots += request.slots
        request.cost_s = choice.cost_s
        request.prefilling = choice.prefill_s > LONG_PREFILL_S
        engine.long_prefills += request.prefilling
        engine.running[ticket] = request
        self._running[bid.key] = self._running.get(bid.key, 0) + request.slots
        model.order.granted(bid.key, request.waiter.taken_s)
        self._affinity.remember(engine.lane.number, bid.prefix)
        return Grant(ticket, engine.lane.number)

    def _free(self, request: _Request) -> None:
        if request.engine is None:
            return
        key = request.bid.key
        self._end_prefill(request)
        engine = self._engines[request.engine]
        del engine.running[request.waiter.ticket]
        engine.taken_slots -= request.slots
        request.engine = None
        self._running[key] -= request.slots
        if not self._running[key]:
            del self._running[key]

    def _end_prefill(self, request: _Request) -> bool:
        if not request.prefilling or request.engine is None:
            return False
        request.prefilling = False
        self._engines[request.engine].long_prefills -= 1
        return True

    def _pump(self, now_s: float) -> list[Grant]:
        """Grant what can be granted, in the order of the lines."""
        grants: list[Grant] = []
        for model in self._models.values():
            granted = bool(model.waiting)
            while granted:
                granted = False
                if not any(one.has_room(1) for one in model.usable()):
                    break
                for waiter in model.order.line((r.waiter for r in model.waiting.values()), now_s):
                    request = model.waiting[waiter.ticket]
                    choice = self._choose(model, request.bid)
                    if choice.engine is not None:
                        del model.waiting[waiter.ticket]
                        grants.append(self._grant(model, request, choice, now_s))
                        granted = True  # the order of the others has changed
                        break
                    if choice.holds:
                        break
        return grants

    def _refuse_the_gone(self, now_s: float) -> Iterable[Refusal]:
        """Who waits for a model that no engine has served for a while."""
        for model in self._models.values():
            if model.engines:
                model.gone_since_s = None
                continue
            if model.gone_since_s is None:
                model.gone_since_s = now_s
            if now_s - model.gone_since_s >= GONE_WAIT_S:
                for ticket in list(model.waiting):
                    self.leave(ticket, now_s)
                    yield Refusal(ticket, "gone", None)

    def _wait_s(
        self, model: _Model, ahead: Sequence[Waiter], bid: Bid, now_s: float
    ) -> float | None:
        """When a slot will be free for whoever comes after those ahead."""
        free_s: list[float] = []
        own_s: list[float] = []  # when the key's own requests end
        for engine in model.usable():
            slots = engine.lane.slots
            if slots is None or engine.lane.stream_tokens_per_s() is None:
                return None
            for request in engine.running.values():
                took_s = now_s - request.granted_s
                rest_s = max(request.cost_s - took_s, took_s * OVERDUE_SHARE)
                free_s += [rest_s] * request.slots
                if request.bid.key == bid.key:
                    own_s += [rest_s] * request.slots
            free_s += [0.0] * (slots - engine.taken_slots)
        if not free_s:
            return None
        heapify(free_s)
        slots_known = len(free_s)
        for one in ahead:
            begins_s = _begins_s(free_s, one.slots)
            while len(free_s) < slots_known:
                heappush(free_s, begins_s + one.cost_s)
        begins_s = _begins_s(free_s, bid.answers)
        limited = bid.concurrency is not None and len(own_s) >= bid.concurrency
        return max(begins_s, min(own_s, default=0.0)) if limited else begins_s


def _begins_s(free_s: list[float], slots: int) -> float:
    """When so many slots are free together; takes them off the heap."""
    begins_s = 0.0
    for _ in range(min(slots, len(free_s))):
        begins_s = heappop(free_s)
    return begins_s
