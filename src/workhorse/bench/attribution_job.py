"""The experiments behind an attribution: requests that differ in one thing, in turns.

`explain` is the table of contents. One request at a time (two in `together`); the prompt's KV is
reused, as only decoding is looked at.
"""

import asyncio
import os
import secrets
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import aiohttp
import msgspec

from workhorse import __version__
from workhorse.bench.attribution import attribute, clock_of, measured, timed, whole_rounds
from workhorse.bench.attribution_doubts import Seen, judge
from workhorse.bench.attribution_service import Behind, answered_of, look_behind
from workhorse.bench.conditions import sampling
from workhorse.bench.identify import who_serves
from workhorse.bench.scenario import Prompt, Scenario
from workhorse.bench.service import (
    Service,
    ask,
    cannot_complete,
    cause,
    completion,
    find_service,
)
from workhorse.bench.tokenizer import make_prompts
from workhorse.bench.transcript import Transcript, to_run
from workhorse.config import Places
from workhorse.errors import AppError
from workhorse.records import Attribution, Estimate, Run, Sample, Timed
from workhorse.records.attribution import Variant
from workhorse.text import Text

CONNECT_TIMEOUT_S = 10.0
REQUEST_TIMEOUT_S = 1800.0  # a deep prompt on a slow machine takes minutes, never this long
WARM_UP_TOKENS = 8
# The shallow variant's prompt: enough that the engine takes it for a prompt.
SHALLOW_TOKENS = 16
# llama-server's timings have it only where it drafted (0c1e570 of 2026-10).
DRAFTED = b'"draft_n"'


@dataclass(frozen=True, slots=True)
class Experiment:
    """How much is asked; the defaults are the standard protocol's prompt and half its answer."""

    prompt_tokens: int = 768
    output_tokens: int = 100
    rounds: int = 5


OnProgress = Callable[[int, int], None]


@dataclass(slots=True)
class Rounds:
    """What has been measured so far, and what was seen beside it."""

    done: list[tuple[Timed, ...]] = field(default_factory=list)
    failed: int = 0
    shared: int = 0
    samples: tuple[Sample, ...] = ()
    drafted: bool = False
    error: str | None = None  # of the first request that failed


async def explain(
    url: str,
    experiment: Experiment,
    where: Places,
    *,
    on_progress: OnProgress,
    api_key: str | None = None,
    ceiling: Estimate | None = None,
    model: str | None = None,
    tls: ssl.SSLContext | None = None,
) -> Attribution:
    """Where a token's time goes at the service of `url`.

    `ceiling` (tokens a second) takes the place of the plan's. Raises `AppError` when nobody
    answers, or fewer than two rounds succeeded.
    """
    timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        service = await find_service(session, url, api_key, model=model, tls=tls)
        depth_tokens = experiment.prompt_tokens + experiment.output_tokens / 2
        behind = await look_behind(
            session, service, where, depth_tokens=depth_tokens, ceiling=ceiling
        )
        requests = await prepare(session, service, behind, experiment)
        rounds = Rounds()
        when = datetime.now(UTC).isoformat(timespec="seconds")
        began_s = time.perf_counter()
        async with sampling(service.url, await who_serves(session, service)) as sampler:
            for number in range(experiment.rounds):
                await one_round(session, service, behind, requests, rounds, number)
                on_progress(number + 1, experiment.rounds)
        rounds.samples = sampler.samples(began_s)
    return conclude(service, behind, rounds, when)


def conclude(service: Service, behind: Behind, rounds: Rounds, when: str) -> Attribution:
    """The attribution that the rounds lead to; `AppError` when they lead nowhere."""
    try:
        whole = whole_rounds(rounds.done)
        clock = clock_of(rounds.samples, behind.rated_mhz)
        terms = attribute(rounds.done, replace(behind.known, clock=clock))
    except ValueError:
        raise too_few(rounds) from None
    interval = measured(whole)
    others = [one.other_cpus for one in rounds.samples if one.other_cpus is not None]
    seen = Seen(
        len(whole),
        rounds.failed,
        rounds.shared,
        max(others, default=None),
        len(os.sched_getaffinity(0)),
        rounds.drafted,
        rounds.samples,
    )
    return Attribution(
        when,
        service.url,
        service.model,
        __version__,
        *interval,
        behind.known.ceiling,
        terms,
        tuple(rounds.done),
        judge(terms, interval, seen),
        rounds.samples,
    )


def too_few(rounds: Rounds) -> AppError:
    """Not enough rounds to say anything."""
    said = Text("", "")
    if rounds.error is not None:
        said = Text(f" The first error: {rounds.error}", f"第一个错误：{rounds.error}")
    return AppError(
        Text(
            f"{len(rounds.done)} rounds of requests succeeded; two are needed.{said.en}",
            f"只有 {len(rounds.done)} 轮请求成功，至少需要两轮。{said.zh}",
        ),
        Text(
            "See that the service answers with streams of several tokens, then use more --rounds.",
            "确认服务以流式逐 token 应答，再加大 --rounds。",
        ),
        speaker="engine",
    )


@dataclass(frozen=True, slots=True)
class Request:
    """One variant: to whom, what, and how many at the same time."""

    variant: Variant
    service: Service
    body: bytes
    streams: int = 1


async def prepare(
    session: aiohttp.ClientSession, service: Service, behind: Behind, experiment: Experiment
) -> tuple[Request, ...]:
    """The variants that this service can be asked, each tried once: that fills its cache too."""
    long, short = await two_prompts(session, service, experiment)
    n = experiment.output_tokens

    def request(variant: Variant, to: Service, prompt: Prompt = long, **more: object) -> Request:
        return Request(variant, to, body(to, prompt, n, more))

    async def tried(to: Service) -> Run:
        return (await send(session, to, body(to, long, min(n, WARM_UP_TOKENS), {}))).run

    first = await tried(service)
    if first.error is not None:
        raise cannot_complete(service.url, first.error)
    wanted, at = [request("whole", service)], service
    if behind.engine is not None:
        engine = replace(behind.engine, dialect=service.dialect, tokenizer=service.tokenizer)
        if (await tried(engine)).error is None:  # else it wants a key that we do not have
            wanted.append(request("direct", engine))
            at = engine
    wanted.append(request("shallow", at, short))
    if first.engine_decode_s is not None:  # it is llama.cpp, which takes sampler chains
        wanted.append(request("plain sampling", at, samplers=["top_k"], top_k=1))
        if await slots(session, at) > 1:
            wanted.append(replace(request("together", at), streams=2))
    return tuple(wanted)


async def two_prompts(
    session: aiohttp.ClientSession, service: Service, experiment: Experiment
) -> tuple[Prompt, Prompt]:
    """The explained prompt and the shallow one, of about the asked lengths."""
    lengths = (experiment.prompt_tokens, min(SHALLOW_TOKENS, experiment.prompt_tokens))
    seed = secrets.randbits(32)
    long, short = [
        (await make_prompts(session, service, Scenario("explain", n, repeats=1), seed))[0]
        for n in lengths
    ]
    return long, short


async def slots(session: aiohttp.ClientSession, service: Service) -> int:
    """Slots of an engine; 1 where it does not tell."""
    status, answer = await ask(session, service, "GET", "/props")
    with suppress(msgspec.DecodeError, UnicodeDecodeError):
        if status == 200:
            return msgspec.json.decode(answer, type=Props).total_slots
    return 1


class Props(msgspec.Struct):
    """The part of llama-server's `/props` that is read here."""

    total_slots: int = 1


def body(service: Service, prompt: Prompt, output_tokens: int, more: dict[str, object]) -> bytes:
    """One streamed request as JSON."""
    asked = completion(service, prompt, output_tokens, cache=True)
    return msgspec.json.encode(
        asked | {"stream": True, "stream_options": {"include_usage": True}} | more
    )


async def one_round(
    session: aiohttp.ClientSession,
    service: Service,
    behind: Behind,
    requests: Sequence[Request],
    rounds: Rounds,
    number: int,
) -> None:
    """One request of each variant, beginning with another one each round."""
    before = await answered(session, service, behind)
    turned = number % len(requests)
    found: list[Timed] = []
    for request in (*requests[turned:], *requests[:turned]):
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(send(session, request.service, request.body))
                for _ in range(request.streams)
            ]
        answers = [task.result() for task in tasks]
        runs = [answer.run for answer in answers]
        rounds.drafted = rounds.drafted or any(answer.drafted for answer in answers)
        for run in runs:
            if run.error is not None:
                rounds.failed += 1
                rounds.error = rounds.error or run.error
        times = [one for run in runs if (one := timed(request.variant, run)) is not None]
        if len(times) == request.streams:
            found.append(max(times, key=lambda one: one.token_s))
    after = await answered(session, service, behind)
    ours = sum(request.streams for request in requests if request.service is service)
    if before is not None and after is not None and after - before > ours:
        rounds.shared += 1
    if len(found) == len(requests):
        rounds.done.append(tuple(found))


async def answered(
    session: aiohttp.ClientSession, service: Service, behind: Behind
) -> float | None:
    """Requests that the gateway has answered so far; None where none tells."""
    if not behind.known.has_gateway:
        return None
    status, text = await ask(session, service, "GET", "/metrics")
    return answered_of(text.decode(errors="replace")) if status == 200 else None


@dataclass(frozen=True, slots=True)
class Answer:
    """One request's times, and whether several tokens came of one step."""

    run: Run
    drafted: bool


async def send(session: aiohttp.ClientSession, service: Service, request: bytes) -> Answer:
    """One request, its bytes noted as they arrive and read afterwards."""
    reads: list[tuple[float, bytes]] = []
    status, problem = None, None
    headers = {
        **service.headers,
        "Content-Type": "application/json",
        "Accept-Encoding": "identity",  # a compressor would hold tokens back
    }
    sent_s = time.perf_counter()
    try:
        async with session.post(
            f"{service.url}{service.dialect.route}",
            data=request,
            headers=headers,
            allow_redirects=False,
            ssl=service.tls or True,
        ) as response:
            status = response.status
            read = response.content.readany
            while data := await read():
                reads.append((time.perf_counter(), data))
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        problem = cause(error)
    run = to_run(Transcript(0, sent_s, time.perf_counter(), status, reads, problem))
    return Answer(run, any(DRAFTED in data for _, data in reads[-2:]))
