"""The main job on one screen: listen, probe, check, plan, fetch, launch, verify, serve, measure."""

import asyncio
import threading
import time
from dataclasses import replace
from pathlib import Path

from workhorse.config import Places
from workhorse.engines.llamacpp import launch
from workhorse.engines.llamacpp_log import explain, read_report
from workhorse.engines.verify import (
    GOLDEN_PROMPT,
    golden_request,
    judge_answer,
    judge_embedding,
    judge_log,
)
from workhorse.errors import EXIT_GOOD, EXIT_NO, AppError
from workhorse.knowledge.packaged_models import packaged_models
from workhorse.models.embedded import DEFAULT_MODEL
from workhorse.models.read import servable
from workhorse.plan.planner import served_name
from workhorse.records import Plan, Verdict
from workhorse.run.ask import ask_engine
from workhorse.run.process import EngineProcess
from workhorse.run.supervisor import EngineUnavailable, Supervisor
from workhorse.serve.activity import Activity
from workhorse.serve.app import Gateway, build_app
from workhorse.serve.backend import Roster, Served, capacity_of
from workhorse.text import Text
from workhorse.up.decide import Ask, decide
from workhorse.up.measuring import READY_TIMEOUT_S, measure_when_quiet
from workhorse.up.teller import Teller

LOG_LINES = 2000  # a load writes about 200


async def up(ask: Ask, where: Places, tell: Teller) -> int:
    """Turn this machine into a verified service, until cancelled; returns an exit code.

    The port is open from the start and stays open while the engine comes and goes.
    """
    began_s = time.monotonic()
    if ask.model:
        file = servable(ask.model, ask.quant)
        ask = replace(ask, model=file, quant=ask.quant if file == Path(ask.model) else None)
    activity, engine = Activity(), EngineToCome()
    name = served_name(str(ask.model or packaged_models()[DEFAULT_MODEL].file_name))
    to_come = Served(name, engine)
    roster = Roster((to_come,))
    gateway = Gateway(build_app(roster, activity=activity))
    port = await gateway.start(ask.host, ask.port)
    leaving = threading.Event()

    def fetching(done_bytes: int, total_bytes: int | None) -> None:
        if leaving.is_set():  # the thread has no other way to learn that nobody waits for it
            raise asyncio.CancelledError
        tell.fetching(done_bytes, total_bytes)

    try:
        tell.stage(Text("looking at this machine and planning", "检测本机并制定方案"))
        decision = await asyncio.to_thread(decide, ask, where, fetching)
        tell.decided(decision)
        if decision.plan.verdict.blocked:
            return EXIT_NO
        tell.stage(Text("starting the engine", "启动引擎"))
        supervisor = supervise(ask, decision.plan, where.logs / f"engine-{port}.log", tell)
        engine.supervisor = supervisor
        roster.put(replace(to_come, capacity=capacity_of(decision.plan)), instead_of=to_come)
        try:
            await supervisor.start()
            tell.ready(decision.plan, f"http://{ask.host}:{port}", time.monotonic() - began_s)
            supervisor.on_change(tell.changed)
            if ask.measure:
                await measure_when_quiet(decision, supervisor, activity, where, tell)
            await asyncio.Event().wait()  # until cancelled
        finally:
            # First the gateway: running answers may end before their engine does.
            await gateway.stop()
            await supervisor.stop()
    finally:
        leaving.set()
        await gateway.stop()
    return EXIT_GOOD


class EngineToCome:
    """The gateway's backend: the supervisor once there is one, `planning` before."""

    def __init__(self) -> None:
        self.supervisor: Supervisor | None = None

    @property
    def state(self) -> str:
        """The engine's state in one word."""
        return self.supervisor.status.state if self.supervisor else "planning"

    @property
    def restarts(self) -> int:
        """How often the engine was started again."""
        return self.supervisor.status.restarts if self.supervisor else 0

    async def address(self, wait_s: float) -> str:
        """Where the engine answers; see `Supervisor.address`."""
        if self.supervisor is None:
            raise EngineUnavailable(
                Text("The service is still being set up.", "服务仍在准备中。"),
                Text("Ask again in a few seconds.", "请几秒后重试。"),
                speaker="gateway",
            )
        return await self.supervisor.address(wait_s)


def supervise(ask: Ask, plan: Plan, log_path: Path, tell: Teller) -> Supervisor:
    """The engine's owner, which verifies it at each start before anybody is served."""

    async def verify(process: EngineProcess) -> None:
        verdict = await verify_engine(plan, process, golden=not ask.skip_golden)
        tell.verified(verdict, golden=not ask.skip_golden)
        if verdict.blocked:
            worst = next(f for f in verdict.findings if f.level == "blocker")
            raise AppError(worst.seen, worst.remedy, speaker="engine", exit_code=EXIT_NO)

    return Supervisor(
        lambda port: launch(plan, port),
        log_path,
        ready_timeout_s=READY_TIMEOUT_S,
        explain=explain,
        after_ready=verify,
    )


async def verify_engine(plan: Plan, process: EngineProcess, *, golden: bool) -> Verdict:
    """The engine's log against the plan, and its answer to the golden prompt.

    An embedding model is asked for one embedding instead.
    """
    findings = judge_log(plan, read_report(process.log_tail(LOG_LINES)))
    if plan.embeddings:
        answer = await ask_engine(process, "/v1/embeddings", {"input": GOLDEN_PROMPT})
        return Verdict((*findings, *judge_embedding(answer)))
    if golden:
        answer = await ask_engine(process, "/completion", golden_request())
        return Verdict((*findings, *judge_answer(answer)))
    return Verdict(findings)
