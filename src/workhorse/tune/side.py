"""One engine of a trial: started, asked and stopped; while it waits it takes no CPU time."""

import asyncio
import os
import signal
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import aiohttp

from workhorse.bench.load import Tally, body, measure_round, warm_up
from workhorse.bench.scenario import Scenario
from workhorse.bench.service import Service, cannot_complete, find_service
from workhorse.bench.tokenizer import make_prompts, tokenize
from workhorse.config import HOST
from workhorse.engines.adapter import adapter_for
from workhorse.engines.verify import GOLDEN_PROMPT
from workhorse.errors import AppError
from workhorse.records import Plan, Run
from workhorse.run.ask import ask_engine
from workhorse.run.process import EngineProcess, PortTaken, free_port
from workhorse.text import Text
from workhorse.tune.load import speed_of
from workhorse.tune.quality import likely_tokens
from workhorse.tune.trial import Goal
from workhorse.units import show_duration

T = TypeVar("T")

CLOCK = time.perf_counter
# The prompts of a round begin differently up to so many rounds; then the first ones come again,
# long after they were computed.
PROMPT_ROUNDS = 40
# Where tokens are guessed ahead, no text comes twice in a trial: an engine that remembers what it
# wrote would guess all of it. Greedy answers of small models go round in circles, which is as easy
# to guess; so they are drawn as most clients have it.
DRAFT_ROUNDS = 80
AS_CLIENTS_DRAW = {"temperature": 0.8}
PORT_TRIES = 3
# An answer of a tiny model may lie in the socket whole before we are woken to read it.
TRIES = 4
# A round that is overdue gets so long to show whether anything still comes.
STILL_S = 3.0
# Where the next token's probabilities are compared: the ends of one text cut ever later.
QUALITY_ENDS_TOKENS = tuple(range(32, 32 + 16 * 5, 5))
QUALITY_TOKENS = 64  # of the likeliest at each


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked in each round."""

    goal: Goal
    scenario: Scenario
    seed: int  # the same for both sides: both get the same prompts
    patience_s: float
    drafts: bool = False  # one of both sides guesses tokens ahead


class Side:
    """The owner of one engine, from its start to its end."""

    def __init__(self, plan: Plan, log_path: Path) -> None:
        self.plan = plan
        self.adapter = adapter_for(plan.engine)
        self.log_path = log_path
        self.process: EngineProcess | None = None
        self.held = False
        self.ready_after_s = 0.0
        self._service: Service | None = None
        self._load: Load | None = None
        self._bodies: Sequence[Sequence[bytes]] = ()
        self._round = 0
        self._tally = Tally()

    @property
    def running(self) -> EngineProcess:
        """The process; it has to be started before."""
        if self.process is None:
            raise RuntimeError("a side is started before it is asked")
        return self.process

    @property
    def lives(self) -> bool:
        """Whether the engine is there."""
        return self.process is not None and not self.process.exited.is_set()

    async def start(self, ready_s: float) -> None:
        """Start the engine and wait until it is ready; AppError with the cause when it is not."""
        began_s = CLOCK()
        for left in reversed(range(PORT_TRIES)):
            launch = self.adapter.launch(self.plan, free_port(HOST))
            self.process = EngineProcess(launch, self.log_path, explain=self.adapter.explain)
            self.held, self._load = False, None
            try:
                await self.process.start()
                await self.process.wait_ready(ready_s)
                break
            except PortTaken:
                if not left:
                    raise
        self.ready_after_s = CLOCK() - began_s

    async def stop(self) -> None:
        """End the engine; safe at any time and more than once."""
        if self.process is not None:
            self.release()
            await self.process.stop()

    def hold(self) -> None:
        """Have the kernel stop the engine where it is: one that waits must not spin."""
        if self.lives and not self.held:
            self._signal(signal.SIGSTOP)
            self.held = True

    def release(self) -> None:
        """Let it go on."""
        if self.held:
            self._signal(signal.SIGCONT)
            self.held = False

    def _signal(self, number: signal.Signals) -> None:
        if self.lives and self.running.pid is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.running.pid, number)

    async def prepare(self, client: aiohttp.ClientSession, load: Load, limit_s: float) -> None:
        """Make the prompts of a load and warm the engine up, unless that was done."""
        if self._load == load:
            return
        self._tally = Tally()
        await self._bounded(self._prepared(client, load), limit_s)

    async def _prepared(self, client: aiohttp.ClientSession, load: Load) -> None:
        process, scenario = self.running, load.scenario
        service = await find_service(client, process.base_url, process.address.key)
        # To decode, the prompt is the same each time: its KV is kept, the answer is computed.
        kept = load.goal == "decode" and not load.drafts
        rounds = DRAFT_ROUNDS if load.drafts else PROMPT_ROUNDS
        many = replace(scenario, repeats=1 if kept else rounds)
        *prompts, last = await make_prompts(client, service, many, load.seed)
        drawn = {**AS_CLIENTS_DRAW, "seed": load.seed} if load.drafts else {}
        asked = [body(service, one, scenario.output_tokens, cache=kept, **drawn) for one in prompts]
        streams = scenario.streams
        self._bodies = [asked[at : at + streams] for at in range(0, len(asked), streams)]
        if kept:
            await self._ask(service, asked)
        else:
            await warm_up(service, last, scenario, CLOCK)
        self._service, self._load, self._round = service, load, 0

    async def measure(self, limit_s: float) -> float:
        """One round of the load that it was prepared for: the goal's tokens a second.

        AppError when the engine dies or shows no speed, `Overdue` when it takes too long.
        """
        self._tally = Tally()
        return await self._bounded(self._measured(), limit_s)

    async def _measured(self) -> float:
        load, service = self._load, self._service
        if load is None or service is None:
            raise RuntimeError("a side is prepared before it is measured")
        for _ in range(TRIES):
            bodies = self._bodies[self._round % len(self._bodies)]
            self._round += 1
            if speed := speed_of(load.goal, await self._ask(service, bodies)):
                return speed
        raise AppError(
            Text("The answers came in one piece each: no speed.", "回答一次性返回，无法测速。"),
            Text("Use another engine build.", "请换用其他引擎构建。"),
            speaker="engine",
        )

    async def _bounded(self, work: Coroutine[object, object, T], limit_s: float) -> T:
        """What the work gives; Overdue when it takes longer."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task}, timeout=limit_s)
            before = self._tally.pieces
            if not task.done():
                await asyncio.wait({task}, timeout=STILL_S)
            if task.done():
                return task.result()
            raise Overdue(limit_s, self.log_path, slow=self._tally.pieces > before)
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def _ask(self, service: Service, bodies: Sequence[bytes]) -> list[Run]:
        runs = await measure_round(service, bodies, CLOCK, self._tally)
        for run in runs:
            if run.error is not None:
                if await self.running.ends_within(1.0):
                    raise self.running.failure()
                raise cannot_complete(service.url, run.error)
        return runs

    async def likely(self, client: aiohttp.ClientSession) -> tuple[dict[int, float], ...]:
        """The likeliest next tokens after ends of one text; empty where it does not tell them."""
        process = self.running
        service = await find_service(client, process.base_url, process.address.key)
        tokens = await tokenize(client, service, GOLDEN_PROMPT, add_special=True) or []
        found = []
        for end in QUALITY_ENDS_TOKENS:
            question = {
                "prompt": tokens[:end],
                "n_predict": 1,
                "n_probs": QUALITY_TOKENS,
                "temperature": 0,
                "cache_prompt": True,
            }
            if end > len(tokens):
                break
            found.append(likely_tokens(await ask_engine(process, "/completion", question)))
        return tuple(found) if all(found) else ()


class Overdue(AppError):
    """A round that was given up; `slow`: text still came, only too slowly."""

    def __init__(self, waited_s: float, log_path: Path, *, slow: bool) -> None:
        waited = show_duration(waited_s)
        what = Text(
            f"The engine hangs: no end of an answer after {waited}.",
            f"推理引擎停止响应：{waited} 内未完成回答。",
        )
        if slow:
            what = Text(
                f"So slow that its round was given up after {waited}.",
                f"过慢：{waited} 后放弃该轮测量。",
            )
        step = Text(f"Read its log: {log_path}", f"请查看引擎日志：{log_path}")
        super().__init__(what, step, speaker="engine")
        self.slow = slow
