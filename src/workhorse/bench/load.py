"""The load itself: requests that start together, raw times, nothing else while they run."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace

import aiohttp
import msgspec

from workhorse.bench.scenario import Scenario
from workhorse.bench.service import (
    Prompt,
    Service,
    cannot_complete,
    cause,
    find_service,
    make_prompts,
)
from workhorse.bench.transcript import Transcript, to_run
from workhorse.records import Run

CONNECT_TIMEOUT_S = 10.0
TICK_S = 1.0  # drawing a progress bar costs milliseconds of the measuring process
WARM_UP_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a measurement is: the runs of complete rounds, and the pieces of text seen so far.

    `Scenario.generated_tokens` pieces will come, or fewer.
    """

    runs: tuple[Run, ...]
    pieces: int


@dataclass(slots=True)
class Sent:
    """When a request was sent: after its connection stood, which many have to wait for."""

    time_s: float


@dataclass(slots=True)
class Tally:
    """What the ticker reads while the requests write."""

    pieces: int = 0
    runs: list[Run] = field(default_factory=list)

    def progress(self) -> Progress:
        """The tally as it is now."""
        return Progress(tuple(self.runs), self.pieces)


OnProgress = Callable[[Progress], None]


async def measure(
    url: str,
    scenario: Scenario,
    *,
    on_progress: OnProgress,
    clock: Callable[[], float] = time.perf_counter,
    api_key: str | None = None,
    seed: int | None = None,
) -> tuple[Run, ...]:
    """The runs of a scenario against the service at `url`, round by round.

    One uncounted request first warms the service up. A request that fails is a run with an
    error. `on_progress` is called about once a second and after each round. Cancelling closes
    every connection at once; complete rounds are in the last progress. `seed` repeats the
    prompts of an earlier measurement; None takes new ones.

    Raises `AppError` when nobody answers or the warm-up fails.
    """
    async with load_session(clock) as client:
        service = await find_service(client, url, api_key)
        chosen_seed = secrets.randbits(32) if seed is None else seed
        *prompts, warm_up_prompt = await make_prompts(client, service, scenario, chosen_seed)
        bodies = [body(service, prompt, scenario.output_tokens) for prompt in prompts]
        tally = Tally()
        await warm_up(client, service, warm_up_prompt, scenario, clock)
        async with ticking(lambda: on_progress(tally.progress())):
            for first in range(0, len(bodies), scenario.streams):
                one_round = bodies[first : first + scenario.streams]
                tally.runs += await measure_round(client, service, one_round, clock, tally)
                on_progress(tally.progress())
        return tuple(tally.runs)


def load_session(clock: Callable[[], float]) -> aiohttp.ClientSession:
    """A session for load: no limit on connections, each used once, the moment of sending noted.

    A connection kept between rounds could be closed by the service just as it is used again,
    which would read as a failed request; and kept ones would block llama-server's few threads.
    """

    async def note_sent(_: aiohttp.ClientSession, context: SimpleNamespace, __: object) -> None:
        if isinstance(context.trace_request_ctx, Sent):
            context.trace_request_ctx.time_s = clock()

    trace = aiohttp.TraceConfig()
    trace.on_request_headers_sent.append(note_sent)
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        trace_configs=[trace],
    )


@asynccontextmanager
async def ticking(report: Callable[[], None]) -> AsyncIterator[None]:
    """While the block runs, `report` is called about once a second."""

    async def tick() -> None:
        while True:
            await asyncio.sleep(TICK_S)
            report()

    ticker = asyncio.create_task(tick())
    try:
        yield
    finally:
        ticker.cancel()
        await asyncio.wait([ticker])


def body(service: Service, prompt: Prompt, output_tokens: int) -> bytes:
    """The request of the protocol, encoded before the clock runs.

    `cache_prompt` and `ignore_eos` are llama-server's; a service that does not know them
    ignores them, and the doubts say what came of it.
    """
    request = {
        "model": service.model,
        "prompt": prompt,
        "max_tokens": output_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "cache_prompt": False,
        "ignore_eos": True,
    }
    return msgspec.json.encode(request)


async def warm_up(
    client: aiohttp.ClientSession,
    service: Service,
    prompt: Prompt,
    scenario: Scenario,
    clock: Callable[[], float],
) -> None:
    """One request that is not counted: weights get read, buffers touched, clocks raised."""
    request = body(service, prompt, min(WARM_UP_TOKENS, scenario.output_tokens))
    run = to_run(await transcribe(client, service, request, 0, clock, Tally()))
    if run.error is not None:
        raise cannot_complete(service.url, run.error)


async def measure_round(
    client: aiohttp.ClientSession,
    service: Service,
    bodies: Sequence[bytes],
    clock: Callable[[], float],
    tally: Tally,
) -> list[Run]:
    """One request a stream, all started together; read only when the last has ended."""
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(transcribe(client, service, request, stream, clock, tally))
            for stream, request in enumerate(bodies)
        ]
    return [to_run(task.result()) for task in tasks]


async def transcribe(
    client: aiohttp.ClientSession,
    service: Service,
    request: bytes,
    stream: int,
    clock: Callable[[], float],
    tally: Tally,
) -> Transcript:
    """One request, written down as it arrives: the time first, everything else later."""
    reads: list[tuple[float, bytes]] = []
    status, problem = None, None
    headers = {
        **service.headers,
        "Content-Type": "application/json",
        "Accept-Encoding": "identity",  # a compressor would hold tokens back
    }
    sent = Sent(clock())
    try:
        async with client.post(
            f"{service.url}/v1/completions",
            data=request,
            headers=headers,
            allow_redirects=False,
            trace_request_ctx=sent,
        ) as response:
            status = response.status
            read = response.content.readany
            while data := await read():
                reads.append((clock(), data))
                tally.pieces += 1
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        problem = cause(error)
    return Transcript(stream, sent.time_s, clock(), status, reads, problem)
