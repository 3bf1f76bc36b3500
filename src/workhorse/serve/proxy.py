"""Carries requests to the engine and answers back, and stops the engine when a client leaves.

A client that leaves cancels the task that serves it (`handler_cancellation`), and with it the
connection to the engine closes, at whatever point it is: queued, in prefill or in decode.
"""

import asyncio
import io
from collections.abc import AsyncIterator

import aiohttp
from aiohttp import web

from workhorse.serve.activity import Activity
from workhorse.serve.ask import Ask, ask_engine, asked_model
from workhorse.serve.assemble import Assembly, Kind
from workhorse.serve.backend import READY, Roster, Served
from workhorse.serve.figures import Figures, whole_answer_figures
from workhorse.serve.metrics import Metrics
from workhorse.serve.refusal import (
    DIED_ANSWERING,
    DIED_SILENT,
    REFUSES,
    EngineLost,
    error_event,
    json_response,
    no_such_model,
)
from workhorse.serve.sse import DONE, EventFilter, event_data, parse_object, split_events
from workhorse.units import MIB

CONNECT_TIMEOUT_S = 5.0
# How long to leave an engine alone that refuses connections: its owner learns of its death
# from the operating system within that time.
RECONNECT_PAUSE_S = 0.1

_PASSED_HEADERS = ("Content-Type", "Cache-Control", "Retry-After", "X-Accel-Buffering")
_COMMENT = b":\n\n"


class Proxy:
    """Answers requests with the engine's help; works while `running` does."""

    def __init__(
        self, roster: Roster, activity: Activity, metrics: Metrics, *, restart_wait_s: float
    ) -> None:
        self._roster = roster
        self._activity = activity
        self._metrics = metrics
        self._restart_wait_s = restart_wait_s
        self._session: aiohttp.ClientSession

    async def running(self, _: web.Application) -> AsyncIterator[None]:
        """Holds the one client session: no limit on streams or on how long a prefill takes."""
        async with aiohttp.ClientSession(
            # llama-server closes the connection after a stream without saying so (tried with
            # 0.5.0, 2026-11): a request on a kept one would meet a closed door.
            connector=aiohttp.TCPConnector(limit=0, force_close=True, happy_eyeballs_delay=None),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            # The client's own headers stay here. X-Conversation-Id above all: it makes
            # llama-server compute on after the connection has closed (`server-stream.cpp`).
            headers={"Accept-Encoding": "identity"},
        ) as self._session:
            yield

    async def generate(self, request: web.Request, kind: Kind) -> web.StreamResponse:
        """A chat or a completion: always a stream to the engine, to the client as it asked."""
        with self._activity.request():
            arrived_s = asyncio.get_running_loop().time()
            ask = ask_engine(await request.read(), kind)
            served = self._choose(ask.model)
            upstream = await self._reach(
                request, served, ask.body, resend=ask.answer != "unchanged"
            )
            try:
                if upstream.content_type != "text/event-stream":
                    return await self._whole(upstream)
                if ask.answer == "assembled":
                    return await self._assembled(upstream, kind, arrived_s)
                return await self._streamed(request, upstream, ask, arrived_s)
            finally:
                upstream.close()

    async def compute(self, request: web.Request) -> web.Response:
        """A request that makes the engine work and has no stream: embeddings."""
        with self._activity.request():
            return await self.forward(request)

    async def forward(self, request: web.Request) -> web.Response:
        """Any other request: there and back unchanged."""
        body = await request.read()
        upstream = await self._reach(request, self._choose(asked_model(body)), body)
        try:
            return await self._whole(upstream)
        finally:
            upstream.close()

    def _choose(self, model: str | None) -> Served:
        """The engine for a request: a ready one before one that is not."""
        serving = self._roster.serving(model)
        if not serving:
            raise no_such_model(model, self._roster.models())
        return next((one for one in serving if one.backend.state == READY), serving[0])

    async def _reach(
        self, request: web.Request, served: Served, body: bytes, *, resend: bool = False
    ) -> aiohttp.ClientResponse:
        """The engine's response once its headers are here; waits for a restart to end.

        `resend`: the headers come before the engine computes, so a request that was still
        without them when the engine died was queued, and is sent once more, to the next one.
        Any other request may be what has killed it, and is not.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._restart_wait_s
        while True:
            base = await served.backend.address(max(0.0, deadline_s - loop.time()))
            try:
                return await self._session.request(
                    request.method,
                    base + request.path_qs,
                    # aiohttp sends bytes at once, and wants a large body as a file.
                    data=body if len(body) < MIB else io.BytesIO(body),
                    # Whatever the client called it: curl says that it is a form.
                    headers={"Content-Type": "application/json"},
                    allow_redirects=False,
                )
            except aiohttp.ClientConnectorError as error:
                if loop.time() + RECONNECT_PAUSE_S >= deadline_s:
                    raise EngineLost(REFUSES) from error
                await asyncio.sleep(RECONNECT_PAUSE_S)
            except (aiohttp.ClientError, TimeoutError) as error:
                if not resend:
                    raise EngineLost(DIED_SILENT) from error
                resend = False
                deadline_s = loop.time() + self._restart_wait_s

    async def _whole(self, upstream: aiohttp.ClientResponse) -> web.Response:
        """An answer that is not a stream, an error of the engine for one, as it is."""
        try:
            body = await upstream.read()
        except (aiohttp.ClientError, OSError) as error:
            raise EngineLost(DIED_ANSWERING) from error
        if upstream.status == 200:
            self._metrics.count_tokens(whole_answer_figures(body).counts())
        return web.Response(status=upstream.status, body=body, headers=_passed(upstream))

    async def _assembled(
        self, upstream: aiohttp.ClientResponse, kind: Kind, arrived_s: float
    ) -> web.Response:
        """The engine's stream as the one document that the client asked for."""
        events, assembly = EventFilter(keep_progress=False), Assembly(kind)
        waiting = True
        while block := await _read(upstream):
            for event in split_events(events.feed(block)):
                if found := parse_object(event_data(event)):
                    assembly.add(found)
            if waiting and events.started:
                waiting = False
                self._observe_first_token(arrived_s)
        if assembly.error is not None:
            return json_response(assembly.error, status=_error_status(assembly.error))
        if block is None or not assembly.complete:
            raise EngineLost(DIED_ANSWERING)
        self._metrics.count_tokens(assembly.figures.counts())
        return json_response(assembly.answer())

    async def _streamed(
        self,
        request: web.Request,
        upstream: aiohttp.ClientResponse,
        ask: Ask,
        arrived_s: float,
    ) -> web.StreamResponse:
        """The engine's events as they come; an error event when they end too early."""
        loop = asyncio.get_running_loop()
        response = web.StreamResponse(status=upstream.status, headers=_passed(upstream))
        await response.prepare(request)
        events = EventFilter(keep_progress=ask.answer != "without progress")
        figures = Figures()
        waiting = True
        last, sent_s = b"", loop.time()
        while block := await _read(upstream):
            whole = events.feed(block)
            if not whole:
                if ask.ping_s is not None and loop.time() - sent_s >= ask.ping_s:
                    # The engine pings a silent stream, but takes the progress events that we
                    # keep for a sign of life: without this a proxy in between may give up.
                    await response.write(_COMMENT)
                    sent_s = loop.time()
                continue
            await response.write(whole)
            last, sent_s = whole, loop.time()
            if waiting and events.started:
                waiting = False
                self._observe_first_token(arrived_s)
            if b'"timings"' in whole or b'"usage":{' in whole or b'"finish_reason":"' in whole:
                _add_figures(figures, whole)
        if DONE not in last[-16:] and not _ends_in_error(last):
            await response.write(error_event(EngineLost(DIED_ANSWERING)))
        await response.write_eof()
        self._metrics.count_tokens(figures.counts())
        return response

    def _observe_first_token(self, arrived_s: float) -> None:
        elapsed_s = asyncio.get_running_loop().time() - arrived_s
        self._metrics.time_to_first_token_s.observe(elapsed_s)


async def _read(upstream: aiohttp.ClientResponse) -> bytes | None:
    """The next block; empty at the end of the answer; None when the connection broke."""
    try:
        return await upstream.content.readany()
    except (aiohttp.ClientError, OSError):
        return None


def _passed(upstream: aiohttp.ClientResponse) -> dict[str, str]:
    """The headers that go on to the client; CORS among those that do not."""
    headers = upstream.headers
    return {name: headers[name] for name in _PASSED_HEADERS if name in headers}


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
