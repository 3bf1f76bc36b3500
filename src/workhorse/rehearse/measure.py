"""Twins under the load of the protocol, in turn, on the engine as `up` would start it."""

import math
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import aiohttp

from workhorse.bench.load import Tally, body, load_session, measure_round, warm_up
from workhorse.bench.scenario import Prompt, Scenario
from workhorse.bench.service import Service, cannot_complete, find_service
from workhorse.bench.stats import decode_tokens_per_s, ttft_s
from workhorse.bench.tokenizer import make_prompts
from workhorse.config import HOST
from workhorse.engines.adapter import adapter_for
from workhorse.errors import AppError
from workhorse.records import Plan, Run
from workhorse.rehearse.extrapolate import settled
from workhorse.rehearse.protocol import MOST_ROUNDS, WAIT_S, Protocol
from workhorse.rehearse.times import TwinTimes
from workhorse.run.ask import ask_engine
from workhorse.run.process import EngineProcess, free_port
from workhorse.text import Text

READY_TIMEOUT_S = 600.0
# An answer of a tiny twin may lie in the socket whole before we are woken to read it.
TRIES = 4

OnStep = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """One running twin and what is sent to it."""

    layers: int
    service: Service
    prompts: dict[str, tuple[Prompt, ...]]
    times: TwinTimes


async def measure_twins(
    plans: Sequence[tuple[Plan, int]], protocol: Protocol, logs: Path, tell: OnStep
) -> tuple[TwinTimes, ...]:
    """The times of each twin; `plans` has the plan that starts it and its number of layers.

    All twins run at once and are asked in turn. `tell` gets the progress in the units of
    `Protocol.cost`. AppError when an engine does not start, does not answer or computes NaN.
    """
    clock = time.perf_counter
    began_s = clock()
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(load_session())
        twins = []
        for number, (plan, layers) in enumerate(plans):
            process = await started(plan, logs / f"twin-{number}.log", stack)
            twins.append(await rehearsed(client, process, protocol, layers))
        done = 0
        for twin in twins:
            prompt = twin.prompts[protocol.standard.name][-1]
            await warm_up(twin.service, prompt, protocol.standard, clock)
            done += protocol.standard.prompt_tokens * twin.layers
            tell(done)
        for scenario in protocol.steps:
            for number in range(MOST_ROUNDS):
                enough = settled([twin.times.of(scenario.name) for twin in twins])
                late = clock() - began_s > WAIT_S
                if number >= scenario.repeats and (enough or late):
                    break
                for twin in twins:
                    for left in reversed(range(TRIES)):
                        runs = await one_round(twin, scenario, number, clock)
                        if keep(runs, scenario, twin.times):
                            break
                        if not left:
                            raise in_one_piece()
                    if number < scenario.repeats:
                        done += protocol.round_cost(scenario, number) * twin.layers
                        tell(done)
        return tuple(twin.times for twin in twins)


async def started(plan: Plan, log: Path, stack: AsyncExitStack) -> EngineProcess:
    """The plan's engine, ready; stopped when the stack unwinds."""
    adapter = adapter_for(plan.engine)
    launch = adapter.launch(plan, free_port(HOST))
    process = EngineProcess(launch, log, explain=adapter.explain)
    stack.push_async_callback(process.stop)
    await process.start()
    await process.wait_ready(READY_TIMEOUT_S)
    return process


async def rehearsed(
    client: aiohttp.ClientSession, process: EngineProcess, protocol: Protocol, layers: int
) -> Rehearsed:
    """A twin that has answered with a number, and the prompts for it."""
    await check_finite(process)
    service = await find_service(client, process.base_url, process.address.key)
    prompts = {}
    for scenario in protocol.steps:
        most = replace(scenario, repeats=MOST_ROUNDS)
        prompts[scenario.name] = await make_prompts(client, service, most, secrets.randbits(32))
    return Rehearsed(layers, service, prompts, TwinTimes())


async def check_finite(process: EngineProcess) -> None:
    """AppError when the first token's probability is no number: the weights were not right."""
    question = {"prompt": "one two three", "n_predict": 1, "n_probs": 1, "temperature": 0}
    answer = await ask_engine(process, "/completion", question)
    told = answer.get("completion_probabilities")
    first = told[0] if isinstance(told, list) and told else {}
    shown = first.get("logprob", 0.0) if isinstance(first, dict) else 0.0
    if not isinstance(shown, int | float) or not math.isfinite(shown):
        raise AppError(
            Text(
                "The twin computes no numbers (NaN): its random weights do not suit this kind of "
                "model.",
                "缩小模型算出了 NaN：随机权重不适合这类模型。",
            ),
            Text(
                "`workhorse plan` forecasts it with a wider band.",
                "可用 `workhorse plan` 预测，误差范围较大。",
            ),
        )


async def one_round(
    twin: Rehearsed, scenario: Scenario, number: int, clock: Callable[[], float]
) -> list[Run]:
    """One round of a scenario; AppError when a request failed."""
    prompts = twin.prompts[scenario.name]
    if scenario.name == "deep":
        # The same prompt each time: its KV is kept, and only the decoding at its end is measured.
        bodies = [body(twin.service, prompts[0], scenario.output_tokens, cache=True)]
    else:
        first = number * scenario.streams
        chosen = prompts[first : first + scenario.streams]
        bodies = [body(twin.service, prompt, scenario.output_tokens) for prompt in chosen]
    runs = await measure_round(twin.service, bodies, clock, Tally())
    for run in runs:
        if run.error is not None:
            raise cannot_complete(twin.service.url, run.error)
    return runs


def keep(runs: Sequence[Run], scenario: Scenario, times: TwinTimes) -> bool:
    """Add a round's times; False when no answer had a length that could be measured."""
    speeds = [speed for run in runs if (speed := decode_tokens_per_s(run))]
    if not speeds:
        return False
    times.of(scenario.name).append(1 / median(speeds))
    if scenario.name not in ("deep", "streams"):
        first_s = ttft_s(runs[0])
        times.prompt_s.append(first_s if first_s is not None else runs[0].end_s)
    return True


def in_one_piece() -> AppError:
    """Every try's answer was there at once: too quick, or not streamed."""
    return AppError(
        Text("The twin's answers came in one piece each.", "缩小模型的回答每次都一次性返回。"),
        Text("Use another engine build.", "请换用其他引擎构建。"),
        speaker="engine",
    )
