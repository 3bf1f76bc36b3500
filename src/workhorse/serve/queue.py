"""The line in front of the engines: gives a request its engine, and the slot back at any end."""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from types import TracebackType

from workhorse.serve.admission import LONGEST_WAIT_S, QUEUE_LENGTH, Admission
from workhorse.serve.affinity import digests_of
from workhorse.serve.ask import Ask
from workhorse.serve.backend import READY, Backend, Roster, Served
from workhorse.serve.busy import Busy
from workhorse.serve.decisions import Bid, Grant, Lane, Refusal
from workhorse.serve.estimates import Estimates, text_bytes
from workhorse.serve.figures import TokenCount
from workhorse.serve.keys import Key
from workhorse.serve.live import Flow, Live
from workhorse.serve.metrics import Metrics
from workhorse.serve.refusal import no_such_model, out_of_service
from workhorse.serve.usage import Outcome, Usage, Used

# While somebody waits: how often engines are looked at that may have come, gone or got ready.
LOOK_S = 0.5

# Tells a client that it still waits.
Sign = Callable[["Place"], Awaitable[None]]


class Place:
    """One request's place: first in the line, then in a slot of the engine `served`.

    Entering waits for the slot and raises `Busy` when there is no room; leaving gives it back.
    """

    def __init__(
        self, queue: "Queue", ask: Ask, bid: Bid, prompt_bytes: int, served: Served
    ) -> None:
        self.served = served
        self.ask, self.bid, self.prompt_bytes = ask, bid, prompt_bytes
        self.arrived_s = queue.clock()
        self.position: int | None = None  # when it came; None: it did not wait
        self.expected_wait_s: float | None = None
        self.waited_s = 0.0
        self.pieces = 0  # events of the answer that came so far
        self.failed = False  # answered with an error
        self.counts: list[TokenCount] = []
        self.sign: Sign | None = None
        self.sign_every_s: float | None = None
        self.ticket = queue.next_ticket()
        self.granted: asyncio.Future[Grant | Refusal] | None = None
        self.granted_s: float | None = None  # None: not yet
        self.first_token_s: float | None = None
        self.streams_then = 0
        self._queue = queue

    async def __aenter__(self) -> "Place":
        await self._queue.enter(self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._queue.leave(self, error)

    async def again(self) -> None:
        """The engine died before it began on this request: wait for the next slot, first in line.

        The slot may be another engine's of the same model.
        """
        await self._queue.again(self)

    def begun(self) -> None:
        """The first token of the answer is here."""
        self._queue.begun(self)

    def headers(self) -> dict[str, str]:
        """What the answer says of the wait; nothing when there was none."""
        if self.position is None:
            return {}
        found = {"X-Queue-Position": str(self.position)}
        if self.expected_wait_s is not None:
            found["X-Queue-Expected-Wait"] = f"{self.expected_wait_s:.1f}"
        if self.granted_s is not None:
            found["X-Queue-Wait"] = f"{self.waited_s:.1f}"
        return found


class Queue:
    """Who is served and who waits, for all engines of one gateway."""

    def __init__(
        self,
        roster: Roster,
        live: Live,
        metrics: Metrics,
        usage: Usage,
        *,
        length: int = QUEUE_LENGTH,
        longest_wait_s: float = LONGEST_WAIT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self._roster = roster
        self._live = live
        self._metrics = metrics
        self._usage = usage
        self._admission = Admission(queue_length=length, longest_wait_s=longest_wait_s)
        self._tickets = itertools.count(1)
        self._places: dict[int, Place] = {}  # those that wait
        self._estimates: dict[str, Estimates] = {}
        self.answered: list[Callable[[Place], None]] = []  # told of each whole answer
        self._numbers: dict[Backend, int] = {}
        self._served: dict[int, Served] = {}
        self._restarts: dict[int, int] = {}
        self._seen: tuple[Served, ...] | None = None
        self._learned = False  # of a speed that the admission has not seen yet
        self._look: asyncio.TimerHandle | None = None
        live.waiting = lambda served: len(self._admission.waiting(served.model_name, clock()))
        live.waiting_batch = lambda served: sum(one.bid.batch for one in self.waiting(served))
        live.queue_limit = length

    def next_ticket(self) -> int:
        """A number for a new request."""
        return next(self._tickets)

    def place(self, ask: Ask, key: Key | None, *, batch: bool = False) -> Place:
        """A place for a request, to be entered; raises when nobody serves its model."""
        served = serving(self._roster, ask.model, key)[0]
        size_bytes = text_bytes(ask.prompt)
        estimates = self._estimates_of(served.model_name)
        context = None if served.capacity is None else served.capacity.context_tokens
        expected = estimates.expect(size_bytes, ask.limit_tokens, context)
        bid = Bid(
            model=served.model_name,
            prompt_tokens=expected.prompt_tokens,
            output_tokens=expected.output_tokens,
            key="" if key is None else key.name,
            batch=batch or (key is not None and key.priority == "batch"),
            prefix=digests_of(ask.prompt),
            tokens_per_byte=estimates.tokens_per_byte,
            rpm=None if key is None else key.rpm,
            tpm=None if key is None else key.tpm,
            concurrency=None if key is None else key.concurrency,
            answers=ask.answers,
        )
        return Place(self, ask, bid, size_bytes, served)

    def waiting(self, served: Served) -> tuple[Place, ...]:
        """The requests in line for an engine's model, the next one first."""
        tickets = self._admission.waiting(served.model_name, self.clock())
        return tuple(self._places[ticket] for ticket in tickets if ticket in self._places)

    def flow(self, served: Served) -> Flow:
        """What goes through an engine, to be counted by who passes it on."""
        return self._live.flow(served)

    async def enter(self, place: Place) -> None:
        """Wait for a slot; raises `Busy`."""
        now_s = place.arrived_s
        self._refresh(now_s)
        answer = self._admission.arrive(place.ticket, place.bid, now_s)
        if isinstance(answer, Grant):
            self._take(place, answer, now_s)
        elif isinstance(answer, Refusal):
            self._refuse(place, answer)
        else:
            place.position, place.expected_wait_s = answer.position, answer.expected_wait_s
            await self._wait(place)

    async def again(self, place: Place) -> None:
        """Back into the line, and wait for the next slot."""
        now_s = self.clock()
        self._give_back(place)
        place.pieces, place.first_token_s = 0, None
        self._places[place.ticket] = place
        place.granted = asyncio.get_running_loop().create_future()
        self._refresh(now_s, anyway=True)
        self._tell(self._admission.again(place.ticket, now_s))
        await self._wait(place)

    def begun(self, place: Place) -> None:
        """The first token is here."""
        now_s = self.clock()
        place.first_token_s = now_s
        place.streams_then = self._live.flow(place.served).generating
        self._metrics.time_to_first_token_s.observe(now_s - place.arrived_s)
        self._tell(self._admission.prefilled(place.ticket, now_s))

    def leave(self, place: Place, error: BaseException | None) -> None:
        """The request is over, in whatever way."""
        if place.granted_s is None:  # refused: it is told and counted
            return
        now_s = self.clock()
        took_s = now_s - place.granted_s
        streams = (place.streams_then + self._live.flow(place.served).generating) / 2
        self._give_back(place)
        if error is not None:
            outcome: Outcome = "left" if _has_left(error) else "failed"
        else:
            outcome = "failed" if place.failed else "done"
        spent = _spent_tokens(place, outcome)
        self._tell(self._admission.leave(place.ticket, now_s, spent))
        if outcome == "done":
            ttft_s = None
            if place.first_token_s is not None:
                ttft_s = place.first_token_s - place.arrived_s
            self._live.answered(
                place.served, place.counts, ttft_s=ttft_s, streams=streams, took_s=took_s
            )
            self._estimates_of(place.bid.model).learn(
                place.prompt_bytes, place.counts, place.ask.answers
            )
            self._learned = True
            self._metrics.count_tokens(place.counts)
            for told in self.answered:
                told(place)
        self._metrics.e2e_request_latency_s.observe(now_s - place.arrived_s)
        self._usage.note(_used(place, outcome, took_s))

    # inside

    def _estimates_of(self, model: str) -> Estimates:
        if (found := self._estimates.get(model)) is None:
            found = self._estimates[model] = Estimates()
        return found

    async def _wait(self, place: Place) -> None:
        """Wait for the slot, with signs of life where they are wanted."""
        if place.granted is None:
            place.granted = asyncio.get_running_loop().create_future()
            self._places[place.ticket] = place
        self._look_soon()
        try:
            while not place.granted.done():
                timeout_s = None if place.sign is None else place.sign_every_s
                await asyncio.wait({place.granted}, timeout=timeout_s)
                if not place.granted.done() and place.sign is not None:
                    await place.sign(place)
            answer = place.granted.result()
        except BaseException as error:
            self._give_up(place, error)
            raise
        now_s = self.clock()
        if isinstance(answer, Refusal):
            self._refuse(place, answer)
        else:
            self._take(place, answer, now_s)

    def _give_up(self, place: Place, error: BaseException) -> None:
        """A client that waited has left, or cannot be told anything any more."""
        self._places.pop(place.ticket, None)
        now_s = self.clock()
        place.waited_s = now_s - place.arrived_s
        place.granted_s = None
        granted = place.granted
        # A slot may have been granted in the very moment in which the client left.
        if granted is None or not granted.done() or isinstance(granted.result(), Grant):
            self._tell(self._admission.leave(place.ticket, now_s, 0))
        self._metrics.request_queue_time_s.observe(place.waited_s)
        self._usage.note(_used(place, "left" if _has_left(error) else "failed", 0.0))

    def _take(self, place: Place, grant: Grant, now_s: float) -> None:
        place.granted = None
        place.served = self._served[grant.engine]
        place.granted_s = now_s
        place.waited_s = now_s - place.arrived_s
        flow = self._live.flow(place.served)
        flow.generating += 1
        flow.giving_way += place.bid.batch
        self._metrics.request_queue_time_s.observe(place.waited_s)

    def _give_back(self, place: Place) -> None:
        flow = self._live.flow(place.served)
        flow.generating -= 1
        flow.giving_way -= place.bid.batch
        place.granted_s = None

    def _refuse(self, place: Place, refusal: Refusal) -> None:
        self._metrics.count_refusal(refusal.why)
        self._usage.note(_used(place, "refused", 0.0))
        raise Busy(refusal)

    def _tell(self, decisions: list[Grant] | list[Grant | Refusal]) -> None:
        """Wake those that were decided on."""
        for decision in decisions:
            place = self._places.pop(decision.ticket, None)
            if place is not None and place.granted is not None and not place.granted.done():
                place.granted.set_result(decision)

    def _refresh(self, now_s: float, *, anyway: bool = False) -> None:
        """Show the admission the engines as they are now, when they may have changed."""
        served = self._roster.served
        if served is self._seen and len(served) == 1 and not (self._learned or anyway):
            return  # the usual case: which state one engine alone is in decides nothing
        changed, self._seen, self._learned = served is not self._seen, served, False
        lanes = tuple(self._lane(one) for one in served)
        self._tell(self._admission.set_engines(lanes, now_s))
        if changed:
            self._forget_the_gone(served)

    def _forget_the_gone(self, served: tuple[Served, ...]) -> None:
        """A service that is reloaded for months has had many engines."""
        there = {one.backend for one in served}
        for backend, number in tuple(self._numbers.items()):
            if backend not in there and not self._admission.running(number):
                del self._numbers[backend], self._served[number], self._restarts[number]

    def _lane(self, served: Served) -> Lane:
        number = self._numbers.get(served.backend)
        if number is None:
            number = self._numbers[served.backend] = self.next_ticket()
        self._served[number] = served
        restarts = served.backend.restarts
        if restarts != self._restarts.setdefault(number, restarts):
            self._restarts[number] = restarts
            self._admission.cache_lost(number)
        ready = served.backend.state == READY
        capacity = served.capacity
        if capacity is None:
            return Lane(number, served.model_name, None, ready)
        prefill, decode = self._live.speeds(served)
        return Lane(
            number,
            served.model_name,
            capacity.slots,
            ready,
            prefill or capacity.prefill_tokens_per_s,
            decode or capacity.decode_tokens_per_s,
            capacity.total_tokens_per_s,
        )

    def _look_soon(self) -> None:
        if self._look is None:
            self._look = asyncio.get_running_loop().call_later(LOOK_S, self._look_again)

    def _look_again(self) -> None:
        """Engines tell nobody when they get ready: look, as long as somebody waits."""
        self._look = None
        if self._places:
            self._refresh(self.clock(), anyway=True)
            self._look_soon()


def ready(engines: tuple[Served, ...]) -> Served:
    """One that answers now, when there is one."""
    return next((one for one in engines if one.backend.state == READY), engines[0])


def serving(roster: Roster, model: str | None, key: Key | None) -> tuple[Served, ...]:
    """The engines that serve a model to a key, at least one; raises when there is none."""
    if not roster.served:
        raise out_of_service()
    found = roster.serving(model)
    if key is None or key.models is None:
        if not found:
            raise no_such_model(model, roster.models())
        return found
    allowed = tuple(one for one in found if one.model_name in key.models)
    if not allowed:
        # Other models are none of its business, their names included.
        raise no_such_model(model, [name for name in roster.models() if name in key.models])
    return allowed


def _has_left(error: BaseException) -> bool:
    """Was it the client that ended the request?"""
    return isinstance(error, (asyncio.CancelledError, ConnectionError))


def _spent_tokens(place: Place, outcome: Outcome) -> float | None:
    """What counts against the key's tokens a minute; None: what was expected."""
    if place.counts:
        return sum(count.prompt_once + (count.generated or 0) for count in place.counts)
    if outcome == "left":
        return place.bid.prompt_tokens + place.pieces
    return 0 if outcome == "failed" else None


def _used(place: Place, outcome: Outcome, took_s: float) -> Used:
    counts = place.counts
    prompt_tokens = sum(count.prompt_once for count in counts)
    if not counts and place.first_token_s is not None:
        prompt_tokens = round(place.bid.prompt_tokens)  # was read; the figures come at the end
    return Used(
        key=place.bid.key,
        model=place.bid.model,
        outcome=outcome,
        prompt_tokens=prompt_tokens,
        cached_tokens=sum(count.cached_once for count in counts),
        generated_tokens=sum(count.generated or 0 for count in counts) or place.pieces,
        waited_s=place.waited_s,
        served_s=took_s,
    )
