"""Carries requests to the engine and answers back, and stops the engine when a client leaves.

A request first takes a slot (`queue.py`). A client that leaves cancels the task that serves it
(`handler_cancellation`), and with it the connection to the engine closes and the slot is given
back, at whatever point it is: in the line, in prefill or in decode.
"""

import asyncio
from collections.abc import Callable

import msgspec
from aiohttp import web

from workhorse.engines.adapter import adapter_named
from workhorse.errors import AppError
from workhorse.serve.activity import Activity
from workhorse.serve.ask import Ask, ask_as_asked, ask_unchanged
from workhorse.serve.backend import Roster, Served
from workhorse.serve.dialect import Dialect, Events
from workhorse.serve.engine_socket import EngineAnswer
from workhorse.serve.figures import Figures, whole_answer_figures
from workhorse.serve.live import Flow
from workhorse.serve.media import media_in
from workhorse.serve.queue import Place, Queue, ready, serving
from workhorse.serve.refusal import (
    DIED_ANSWERING,
    EngineLost,
    LinkCut,
    LinkLost,
    far_media,
    json_response,
    said_by_engine,
    stream_refusal,
    takes_no_images,
    unreadable,
)
from workhorse.serve.sse import EventFilter, event_data, parse_object, split_events
from workhorse.serve.to_client import SIGN_S, ClientStream
from workhorse.serve.upstream import Upstream
from workhorse.serve.who import ENDED, KEY
from workhorse.serve.wire import BrokenAnswerError

# A client may say that a request can wait for those of people; it cannot say the contrary.
PRIORITY_HEADER = "X-Priority"

_PASSED_HEADERS = {
    name.lower(): name
    for name in ("Content-Type", "Cache-Control", "Retry-After", "X-Accel-Buffering")
}
_COMMENT = b":\n\n"
# The head of a stream goes out with its first event, in one packet; in a longer prefill before it.
HEAD_S = 0.5

# Sees each block of whole events of an answer; must cost less than 2 µs.
Tap = Callable[[Served, bytes], None]


class Proxy:
    """Answers requests with the engine's help; works while its `upstream` does."""

    def __init__(
        self,
        roster: Roster,
        activity: Activity,
        queue: Queue,
        upstream: Upstream,
        tap: Tap | None = None,
    ) -> None:
        self._roster = roster
        self._activity = activity
        self._queue = queue
        self._upstream = upstream
        self._tap = tap

    async def generate(self, request: web.Request, dialect: Dialect) -> web.StreamResponse:
        """A chat or the like: always a stream to the engine, to the client as it asked."""
        with self._activity.request():
            body = await request.read()
            ask = dialect.ask(body)
            self._check_media(body, ask)
            place = self._place(request, ask)
            to_client = ClientStream(request, dialect)
            if ask.answer in ("with progress", "without progress") and ask.ping_s is not None:
                place.sign, place.sign_every_s = to_client.sign, min(ask.ping_s, SIGN_S)
            try:
                async with place:
                    if stops_by_itself(place.served):
                        name = place.served.model_name
                        place.ask = ask_as_asked(ask, body, dialect.kind, name)
                    return await self._generated(request, dialect, place, to_client)
            except AppError as error:
                if to_client.response is None:
                    raise
                return await to_client.end_in(error)
            except asyncio.CancelledError:
                why, task = request.get(ENDED), asyncio.current_task()
                if why is None or task is None or to_client.response is None:
                    raise
                task.uncancel()
                return await to_client.end_in(why, 401)

    async def compute(self, request: web.Request) -> web.Response:
        """A request that makes the engine work and has no stream: embeddings, rerank."""
        with self._activity.request():
            body = await request.read()
            ask = ask_unchanged(body)
            self._check_media(body, ask)
            async with self._place(request, ask) as place:
                if stops_by_itself(place.served):
                    ask = ask_as_asked(ask, body, "text", place.served.model_name)
                try:
                    return await self._computed(request, place, ask.body)
                except LinkLost:
                    await place.again()
                return await self._computed(request, place, ask.body)

    async def _computed(self, request: web.Request, place: Place, body: bytes) -> web.Response:
        upstream = await self._upstream.reach(request, place, body)
        try:
            return await self._whole(upstream, place)
        finally:
            upstream.close()

    async def forward(self, request: web.Request) -> web.Response:
        """Any other request, which takes no slot: there and back unchanged."""
        ask = ask_unchanged(await request.read())
        self._check_media(ask.body, ask)
        engines = serving(self._roster, ask.model, request.get(KEY))
        upstream = await self._upstream.reach(request, ready(engines), ask.body)
        try:
            return await self._whole(upstream, None)
        finally:
            upstream.close()

    def _check_media(self, body: bytes, ask: Ask) -> None:
        """Raise for what no engine shall fetch, and for images that nobody here can see."""
        media = media_in(body)
        if media is None:
            raise unreadable()
        if media.far is not None:
            raise far_media(media.far)
        if not media.images:
            return
        engines = self._roster.serving(ask.model)
        blind = [one.capacity is not None and one.capacity.images is False for one in engines]
        if blind and all(blind):
            raise takes_no_images(engines[0].model_name)

    def _place(self, request: web.Request, ask: Ask) -> Place:
        batch = request.headers.get(PRIORITY_HEADER, "").lower() == "batch"
        return self._queue.place(ask, request.get(KEY), batch=batch)

    async def _generated(
        self, request: web.Request, dialect: Dialect, place: Place, to_client: ClientStream
    ) -> web.StreamResponse:
        """The answer of the engine whose slot the request has.

        When the link to it is lost and the client has seen nothing yet, the next engine is asked.
        """
        try:
            return await self._asked_once(request, dialect, place, to_client)
        except LinkLost:
            if to_client.response is not None:
                raise
            await place.again()
        return await self._asked_once(request, dialect, place, to_client)

    async def _asked_once(
        self, request: web.Request, dialect: Dialect, place: Place, to_client: ClientStream
    ) -> web.StreamResponse:
        ask = place.ask
        upstream = await self._upstream.reach(
            request,
            place,
            ask.body,
            # Whether such an engine sends a head before it computes is not its promise.
            resend=ask.answer != "unchanged" and not stops_by_itself(place.served),
        )
        try:
            if upstream.head.content_type != "text/event-stream":
                whole = await self._whole(upstream, place)
                if to_client.response is None:
                    return whole
                # Its status is out already: the engine's refusal comes as the stream's last event.
                body = whole.body if isinstance(whole.body, bytes) else b""
                return await to_client.end_with(b"data: " + b"".join(body.splitlines()) + b"\n\n")
            if ask.answer == "assembled":
                return await self._assembled(upstream, dialect, place)
            return await self._streamed(upstream, dialect, place, to_client)
        finally:
            upstream.close()

    async def _whole(self, upstream: EngineAnswer, place: Place | None) -> web.Response:
        """An answer that is not a stream, an error of the engine for one, as it is."""
        try:
            body = await upstream.read()
        except BrokenAnswerError as error:
            raise _died_answering(upstream) from error
        headers = _passed(upstream)
        if place is not None:
            headers |= place.headers()
            place.failed = upstream.head.status >= 400
            if not place.failed:
                place.counts = whole_answer_figures(body).counts()
        if upstream.head.status >= 400 and (told := parse_object(body)) is not None:
            return web.Response(
                status=upstream.head.status,
                body=msgspec.json.encode(said_by_engine(told)),
                headers=headers,
            )
        return web.Response(status=upstream.head.status, body=body, headers=headers)

    async def _assembled(
        self, upstream: EngineAnswer, dialect: Dialect, place: Place
    ) -> web.Response:
        """The engine's stream as the one document that the client asked for."""
        events, assembly = dialect.parts(False), dialect.assembly()
        flow = self._queue.flow(place.served)
        while block := await _read(upstream):
            whole = events.feed(block)
            for event in split_events(whole):
                if found := parse_object(event_data(event)):
                    assembly.add(found)
                    place.pieces += 1
                    flow.tokens += 1
            if place.first_token_s is None and events.started:
                place.begun()
            if self._tap is not None and whole:
                self._tap(place.served, whole)
        place.failed = assembly.error is not None
        if assembly.error is not None:
            status = _error_status(assembly.error)
            return json_response(said_by_engine(assembly.error), status=status)
        if block is None or not assembly.complete:
            raise _died_answering(upstream)
        place.counts = assembly.figures.counts()
        response = json_response(assembly.answer())
        response.headers.update(place.headers())
        return response

    async def _streamed(
        self, upstream: EngineAnswer, dialect: Dialect, place: Place, to_client: ClientStream
    ) -> web.StreamResponse:
        """The engine's events as they come; an error event when they end too early."""
        loop = asyncio.get_running_loop()
        response, headers = to_client.response, _passed(upstream) | place.headers()
        hidden = (
            EventFilter(keep_progress=False, keep_usage=False) if place.ask.hide_usage else None
        )
        events = hidden or dialect.events(place.ask.answer != "without progress")
        flow = self._queue.flow(place.served)
        figures = Figures(one_prompt=dialect.kind != "text")
        last, ended, sent_s = b"", False, loop.time()
        while block := await _read(upstream):
            whole = events.feed(block)
            if not whole:
                silent_s = loop.time() - sent_s
                if place.ask.ping_s is not None and silent_s >= place.ask.ping_s:
                    # The engine pings a silent stream, but takes the progress events that we
                    # keep for a sign of life: without this a proxy in between may give up.
                    response = await to_client.begin(upstream.head.status, headers)
                    await response.write(_COMMENT)
                    sent_s = loop.time()
                elif response is None and silent_s >= HEAD_S:
                    response = await to_client.begin(upstream.head.status, headers, alone=True)
                continue
            if response is None:
                response = await to_client.begin(upstream.head.status, headers)
            if dialect.ends(whole):
                await response.write_eof(whole)  # one packet with the end of the answer
                ended = True
            else:
                await response.write(whole)
            last, sent_s = whole, loop.time()
            self._count(place, flow, events, figures, whole)
        if hidden is not None and hidden.usage:
            _add_figures(figures, hidden.usage)
        place.counts = figures.counts()
        place.failed = not ended
        if response is None:
            raise _died_answering(upstream)
        if not ended:
            error = dialect.error_event(stream_refusal(_died_answering(upstream)))
            await response.write_eof(b"" if _ends_in_error(last) else error)
        return response

    def _count(
        self, place: Place, flow: Flow, events: Events, figures: Figures, whole: bytes
    ) -> None:
        """What a block of a stream says of its request, once the client has it."""
        if place.first_token_s is None:
            if not events.started:
                return
            place.begun()
        pieces = whole.count(b"\n\n")
        place.pieces += pieces
        flow.tokens += pieces
        if self._tap is not None:
            self._tap(place.served, whole)
        if b'"timings"' in whole or b'"usage":{' in whole or b'"finish_reason":"' in whole:
            _add_figures(figures, whole)


def stops_by_itself(served: Served) -> bool:
    """Whether its engine notices on every route that a client has left."""
    return adapter_named(served.engine).asking == "as asked"


def _died_answering(upstream: EngineAnswer) -> EngineLost:
    if upstream.lost:
        return LinkLost()
    return LinkCut() if upstream.far else EngineLost(DIED_ANSWERING)


async def _read(upstream: EngineAnswer) -> bytes | None:
    """The next block; empty at the end of the answer; None when the connection broke."""
    try:
        return await upstream.read_some()
    except BrokenAnswerError:
        return None


def _passed(upstream: EngineAnswer) -> dict[str, str]:
    """The headers that go on to the client; CORS among those that do not."""
    headers = upstream.head.headers
    return {name: headers[low] for low, name in _PASSED_HEADERS.items() if low in headers}


def _add_figures(figures: Figures, whole: bytes) -> None:
    for event in split_events(whole):
        if found := parse_object(event_data(event)):
            figures.add(found)


def _ends_in_error(last: bytes) -> bool:
    """Is the last event the engine's own error? Then it has said all there is to say."""
    if b'"error"' not in last:
        return False
    found = parse_object(event_data(list(split_events(last))[-1]))
    return found is not None and "error" in found


def _error_status(event: dict[str, object]) -> int:
    """The HTTP status that the engine would have answered an error with."""
    error = event.get("error")
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, int) and 400 <= code < 600 else 500
