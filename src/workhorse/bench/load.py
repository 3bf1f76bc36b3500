"""The load itself: requests that start together, raw times, nothing else while they run."""

import asyncio
import secrets
import ssl
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import aiohttp
import msgspec

from workhorse.bench.connection import Connection, open_connection, request_bytes
from workhorse.bench.http_answer import read_answer
from workhorse.bench.scenario import Prompt, Request, Scenario
from workhorse.bench.service import Service, cannot_complete, cause, completion, find_service
from workhorse.bench.tokenizer import make_prompts
from workhorse.bench.transcript import Transcript, to_run
from workhorse.records import Run

CONNECT_TIMEOUT_S = 10.0
TICK_S = 1.0  # drawing a progress bar costs milliseconds of the measuring process
WARM_UP_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a measurement is: the runs of complete rounds, and the pieces of text seen so far.

    `Scenario.generated_tokens` pieces will come, or fewer. `began_s`: the zero of `Run.sent_s`,
    by the caller's clock; None while the service is still being warmed up.
    """

    runs: tuple[Run, ...]
    pieces: int
    began_s: float | None = None


@dataclass(slots=True)
class Tally:
    """What the ticker reads while the requests write."""

    pieces: int = 0
    runs: list[Run] = field(default_factory=list)
    began_s: float | None = None

    def progress(self) -> Progress:
        """The tally as it is now."""
        return Progress(tuple(self.runs), self.pieces, self.began_s)

    def count(self) -> None:
        """One more piece came."""
        self.pieces += 1


OnProgress = Callable[[Progress], None]
Clock = Callable[[], float]


async def measure(
    url: str,
    scenario: Scenario,
    *,
    on_progress: OnProgress,
    clock: Clock = time.perf_counter,
    api_key: str | None = None,
    seed: int | None = None,
    tls: ssl.SSLContext | None = None,
) -> tuple[Run, ...]:
    """The runs of a scenario against the service at `url`, round by round.

    One uncounted request first warms the service up. A request that fails is a run with an
    error. `on_progress` is called about once a second and after each round. Cancelling closes
    every connection at once; complete rounds are in the last progress. `seed` repeats the
    prompts of an earlier measurement; None takes new ones.

    Raises `AppError` when nobody answers or the warm-up fails.
    """
    async with load_session() as client:
        service = await find_service(client, url, api_key, tls=tls)
        chosen_seed = secrets.randbits(32) if seed is None else seed
        return await measure_service(
            client, service, scenario, on_progress=on_progress, clock=clock, seed=chosen_seed
        )


async def measure_service(
    client: aiohttp.ClientSession,
    service: Service,
    scenario: Scenario,
    *,
    on_progress: OnProgress,
    seed: int,
    clock: Clock = time.perf_counter,
) -> tuple[Run, ...]:
    """`measure` for a service that has been found."""
    prepared = await prepare(client, service, scenario, seed)
    await warm_up(service, prepared.warm_up, scenario, clock)
    tally = Tally(began_s=clock())
    async with ticking(lambda: on_progress(tally.progress())):
        for one_round in prepared.rounds:
            try:
                tally.runs += await measure_requests(service, one_round, clock, tally)
            finally:
                on_progress(tally.progress())
    return tuple(tally.runs)


Sending = tuple[Request, bytes]


@dataclass(frozen=True, slots=True)
class Prepared:
    """The requests of a scenario, encoded, round by round, and the prompt to warm up with."""

    rounds: tuple[tuple[Sending, ...], ...]
    warm_up: Prompt


async def prepare(
    client: aiohttp.ClientSession, service: Service, scenario: Scenario, seed: int
) -> Prepared:
    """Make the prompts and encode everything before the clock runs."""
    *prompts, last = await make_prompts(client, service, scenario, seed)
    left = iter(prompts)
    rounds = tuple(
        tuple(
            (request, body(service, next(left), request.output_tokens, cache=scenario.cache))
            for request in one_round
        )
        for one_round in scenario.rounds
    )
    return Prepared(rounds, last)


def load_session() -> aiohttp.ClientSession:
    """A session for questions beside the load: models, tokenizer, versions."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
        cookie_jar=aiohttp.DummyCookieJar(),
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


def body(
    service: Service,
    prompt: Prompt,
    output_tokens: int,
    *,
    cache: bool = False,
    **more: object,
) -> bytes:
    """The request of the protocol, encoded before the clock runs; `more` is asked besides."""
    asked = completion(service, prompt, output_tokens, cache=cache)
    asked |= {"stream": True, "stream_options": {"include_usage": True}} | more
    return msgspec.json.encode(asked)


async def warm_up(service: Service, prompt: Prompt, scenario: Scenario, clock: Clock) -> Run:
    """One request that is not counted: weights get read, buffers touched, clocks raised.

    Where prompts share their beginning, the service has it from here on.
    """
    tokens = min(WARM_UP_TOKENS, scenario.output_tokens)
    request = body(service, prompt, tokens, cache=scenario.cache)
    (run,) = await measure_round(service, [request], clock, Tally())
    if run.error is not None:
        raise cannot_complete(service.url, run.error)
    return run


async def measure_round(
    service: Service, bodies: Sequence[bytes], clock: Clock, tally: Tally
) -> list[Run]:
    """One request a stream, all started together; read only when the last has ended."""
    asked = [(Request(stream, stream, 0, 0), one) for stream, one in enumerate(bodies)]
    return await measure_requests(service, asked, clock, tally)


async def measure_requests(
    service: Service, asked: Sequence[Sending], clock: Clock, tally: Tally
) -> list[Run]:
    """One round, in the order of its requests: streams at once, their requests one by one.

    Streams that begin without a wait begin together, once all their connections stand. What came
    is read only when the last request has ended.
    """
    streams: dict[int, list[int]] = {}
    for number, (request, _) in enumerate(asked):
        streams.setdefault(request.stream, []).append(number)
    at_once = sum(not asked[numbers[0]][0].wait_s for numbers in streams.values())
    together = asyncio.Barrier(max(1, at_once))
    seen: dict[int, Exchange] = {}

    async def one_stream(numbers: list[int]) -> None:
        for number in numbers:
            request, content = asked[number]
            await asyncio.sleep(request.wait_s)
            waits = number == numbers[0] and not request.wait_s
            seen[number] = await exchange(
                service, content, clock, tally, together if waits else None
            )

    mixed = len(streams) < len(asked)

    def read() -> list[Run]:
        return [
            replace(
                to_run(written_down(request.stream, seen[number]), tally.began_s),
                asked_prompt_tokens=request.prompt_tokens if mixed else None,
                asked_output_tokens=request.output_tokens if mixed else None,
            )
            for number, (request, _) in enumerate(asked)
            if number in seen
        ]

    try:
        async with asyncio.TaskGroup() as group:
            for numbers in streams.values():
                group.create_task(one_stream(numbers))
    except asyncio.CancelledError:
        if mixed:  # the only round: what has ended of it is kept
            tally.runs += read()
        raise
    return read()


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request that is over: its connection, or why there was none."""

    began_s: float
    ended_s: float
    connection: Connection | None
    problem: str | None


async def exchange(
    service: Service,
    content: bytes,
    clock: Clock,
    tally: Tally,
    together: asyncio.Barrier | None,
) -> Exchange:
    """One request, noted as it arrives: bytes and times, everything else later."""
    message = request_bytes(service.url, service.dialect.route, service.headers, content)
    began_s = clock()
    connection: Connection | None = None
    problem: str | None = None
    try:
        connection = await open_connection(service.url, service.tls, clock, tally.count)
    except (OSError, TimeoutError) as error:
        problem = cause(error)
    try:
        if together is not None:
            await together.wait()
        if connection is not None:
            connection.send(message)
            await connection.ended
    finally:
        if connection is not None:
            connection.close()
    return Exchange(began_s, clock(), connection, problem)


def written_down(stream: int, over: Exchange) -> Transcript:
    """What the connection brought."""
    connection = over.connection
    if connection is None or connection.sent_s is None:
        return Transcript(stream, over.began_s, over.ended_s, None, [], over.problem)
    answer = read_answer(connection.reads)
    problem = cause(connection.problem) if connection.problem else answer.problem
    ended_s = over.ended_s if connection.ended_s is None else connection.ended_s
    return Transcript(stream, connection.sent_s, ended_s, answer.status, answer.reads, problem)
