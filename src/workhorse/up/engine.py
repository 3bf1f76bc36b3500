"""One engine behind the gateway: decided on, started, verified, and replaced while it serves."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from workhorse.config import Places
from workhorse.engines.adapter import adapter_for
from workhorse.errors import EXIT_NO, AppError
from workhorse.guard.lost import LOST
from workhorse.knowledge.packaged_models import packaged_models
from workhorse.models.embedded import DEFAULT_MODEL
from workhorse.models.read import needs_local_file
from workhorse.plan.planner import served_name
from workhorse.records import Launch, Plan, Verdict
from workhorse.run.address import Address
from workhorse.run.ask import ask_engine
from workhorse.run.live_processes import MARKER_NAME, LiveProcess, read_process
from workhorse.run.process import EngineProcess
from workhorse.run.supervisor import EngineUnavailable, Supervisor
from workhorse.serve.backend import READY, Served, capacity_of
from workhorse.text import Text
from workhorse.up.decide import Ask, Decision
from workhorse.up.measuring import READY_TIMEOUT_S
from workhorse.up.teller import Teller

LOG_LINES = 2000  # at either end; a load of llama.cpp writes about 200


@dataclass(frozen=True, slots=True)
class Supervision:
    """What all engines of a service have in common."""

    marker: str  # by which the engines of a service that died are known
    hung_after_s: float
    on_change: Callable[[], None]  # called after an engine started, died or ended
    prepare: Callable[[Plan], Plan]  # adds what the service needs of each engine
    # Called at each start with the engine's address, before anybody is served.
    started: Callable[["Engine", Plan, Address], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Loaded:
    """What an engine was started as: equal again means that starting it anew changes nothing."""

    launch: Launch
    version: str
    files: tuple[tuple[str, int, int], ...]  # path, bytes, nanoseconds of the last change


class Engine:
    """One engine's place behind the gateway: `planning` at first, then what its owner says.

    It stays over every restart, so a request that waits for it never has to look for another;
    one that was replaced sends whoever still asks for it to its successor.
    """

    def __init__(self, ask: Ask, where: Places, tell: Teller, supervision: Supervision) -> None:
        self.ask = ask
        self.decision: Decision | None = None
        self.supervisor: Supervisor | None = None
        self.successor: Engine | None = None
        self.log_name: str | None = None
        name = served_name(str(ask.model or packaged_models()[DEFAULT_MODEL].file_name))
        self.served = Served(name, self)
        self.waiting = 0  # requests that ask for its address right now
        self.loaded: Loaded | None = None  # of what it was started last
        self.leader = self  # the first of the engines that one ask has led to
        self.on = ""  # where it runs, when several engines serve its model
        self.lost: Text | None = None  # why it is out of service until it is started anew
        self._where, self._tell, self._supervision = where, tell, supervision
        self._starts_before = 0  # under owners that a reload has replaced
        self._free = asyncio.Event()  # nobody has to wait for a reload
        self._free.set()

    @property
    def state(self) -> str:
        """The engine's state in one word."""
        if not self._free.is_set():
            return "reloading"
        if self.lost is not None:
            return LOST
        return self.supervisor.status.state if self.supervisor else "planning"

    @property
    def restarts(self) -> int:
        """How often the engine was started again."""
        return self._starts_before + (self.supervisor.status.restarts if self.supervisor else 0)

    @property
    def reason(self) -> Text | None:
        """Why it is not ready."""
        if self.lost is not None:
            return self.lost
        return self.supervisor.status.reason if self.supervisor else None

    @property
    def pid(self) -> int | None:
        """The process that is there now."""
        process = self.supervisor.process if self.supervisor else None
        return None if process is None or process.exited.is_set() else process.pid

    def live_process(self) -> LiveProcess | None:
        """That process as it can be known again; None until it has become the engine."""
        ready = self.supervisor is not None and self.supervisor.status.state == READY
        return read_process(self.pid) if ready and self.pid is not None else None

    async def address(self, wait_s: float) -> Address:
        """Where the engine answers; see `Supervisor.address`.

        During a reload it waits for the reload's end, however long that takes: nobody is refused
        for it.
        """
        self.waiting += 1
        try:
            while True:
                await self._free.wait()
                if self.successor is not None:
                    return await self.successor.address(wait_s)
                if self.supervisor is None:
                    raise EngineUnavailable(
                        Text("The service is still being set up.", "服务仍在准备中。"),
                        Text("Ask again in a few seconds.", "请几秒后重试。"),
                        speaker="gateway",
                    )
                try:
                    return await self.supervisor.address(wait_s)
                except EngineUnavailable:
                    if self._free.is_set() and self.successor is None:
                        raise
        finally:
            self.waiting -= 1

    def hold(self) -> None:
        """Whoever asks for the address waits from now on, until `release`."""
        self._free.clear()

    def release(self) -> None:
        """Whoever waits goes on."""
        self._free.set()

    async def take(self, decision: Decision, on: str) -> None:
        """Be the engine of this decision; see `several.Part`."""
        if decision.model.format != "gguf" and decision.plan.pool is None:
            raise needs_local_file(self.ask.model or "")
        plan = await asyncio.to_thread(self._supervision.prepare, decision.plan)
        self.decision, self.on = replace(decision, plan=plan), on

    async def start(self, log_name: str) -> None:
        """Start what was decided and keep it alive; raises what fails at this first start."""
        plan = self.plan
        marker = self._supervision.marker
        self.log_name, self.lost = log_name, None
        self.loaded = await asyncio.to_thread(loaded_by, plan)
        if self.loaded.launch.key_variable is None:
            self._tell.stage(
                Text(
                    f"{plan.engine.version} takes no key: every user of this machine can ask its "
                    "port directly",
                    f"{plan.engine.version} 不支持密钥：本机所有用户都能直接访问其端口",
                )
            )

        async def verify(process: EngineProcess) -> None:
            await self._verify(plan, process)

        adapter = adapter_for(plan.engine)
        self.supervisor = Supervisor(
            lambda port: marked(adapter.launch(plan, port), marker),
            self._where.logs / log_name,
            ready_timeout_s=READY_TIMEOUT_S,
            explain=adapter.explain,
            after_ready=verify,
            hung_after_s=self._supervision.hung_after_s,
        )
        self.supervisor.on_change(lambda _: self._supervision.on_change())
        await self.supervisor.start()
        self.supervisor.on_change(lambda status: self._tell.changed(status, self.on))

    @property
    def decided(self) -> Decision:
        """What was decided; it has to be before anything starts."""
        if self.decision is None:
            raise RuntimeError("an engine is decided on before it starts")
        return self.decision

    @property
    def plan(self) -> Plan:
        """Its plan; the same."""
        return self.decided.plan

    async def _verify(self, plan: Plan, process: EngineProcess) -> None:
        golden = not self.ask.skip_golden
        verdict = await verify_engine(plan, process, golden=golden)
        self._tell.verified(verdict, golden=golden)
        if verdict.blocked:
            worst = next(f for f in verdict.findings if f.level == "blocker")
            raise AppError(worst.seen, worst.remedy, speaker="engine", exit_code=EXIT_NO)
        await self._supervision.started(self, plan, process.address)

    async def start_anew(self, decision: Decision, log_name: str) -> None:
        """Start another plan in the place of what ran here, which has been stopped.

        When that fails, what ran here is started once more and the error raised.
        """
        before = (self.decision, self.supervisor, self.loaded, self.log_name, self.lost)
        self._starts_before = self.restarts + 1
        self.decision = decision
        try:
            await self.start(log_name)
        except Exception:
            self.decision, self.supervisor, self.loaded, self.log_name, self.lost = before
            if self.supervisor is not None:
                self._starts_before -= self.supervisor.status.restarts
                if self.lost is None:
                    await self.supervisor.start()
            raise

    async def lose(self, why: Text) -> None:
        """End it for good: it is started again only when somebody asks for that."""
        self.lost = why
        self._supervision.on_change()
        await self.stop()

    def kill(self) -> None:
        """End the engine's process without waiting for anything; `stop` cleans up."""
        if self.supervisor is not None and self.supervisor.process is not None:
            self.supervisor.process.kill()

    async def stop(self) -> None:
        """End the engine; safe at any time and more than once."""
        if self.supervisor is not None:
            await self.supervisor.stop()


def served_as_planned(engine: Engine) -> Served:
    """What the gateway has to know of an engine that was decided on."""
    plan = engine.plan
    return replace(
        engine.served, capacity=capacity_of(plan), engine=plan.engine.engine, on=engine.on
    )


def loaded_by(plan: Plan) -> Loaded:
    """What the plan would load now."""
    files = []
    projector = () if plan.projector is None else (plan.projector.path,)
    for path in (plan.model_path, *projector, *plan.engine.command[:1]):
        with suppress(OSError):
            found = Path(path).stat()
            files.append((path, found.st_size, found.st_mtime_ns))
    start = adapter_for(plan.engine).launch(plan, 0)
    return Loaded(start, plan.engine.version, tuple(files))


def marked(start: Launch, marker: str) -> Launch:
    """The launch with the service's marker in its environment."""
    return replace(start, env={**start.env, MARKER_NAME: marker})


async def verify_engine(plan: Plan, process: EngineProcess, *, golden: bool) -> Verdict:
    """The engine's log against the plan, and its answer to the golden prompt.

    An embedding model is asked for one embedding instead.
    """
    adapter = adapter_for(plan.engine)
    findings = adapter.judge(plan, process.log_ends(LOG_LINES))
    # An engine that must not serve need not be asked.
    if Verdict(findings).blocked or not (golden or plan.embeddings):
        return Verdict(findings)
    question = adapter.first_question(plan)
    answer = await ask_engine(process, question.path, question.body)
    return Verdict((*findings, *adapter.judge_answer(plan, answer)))
