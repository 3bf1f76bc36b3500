"""One engine behind the gateway: decided on, started, verified, and replaced while it serves."""

import asyncio
import threading
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
from workhorse.errors import EXIT_NO, AppError
from workhorse.knowledge.packaged_models import packaged_models
from workhorse.models.embedded import DEFAULT_MODEL
from workhorse.plan.planner import served_name
from workhorse.records import Plan, Verdict
from workhorse.run.ask import ask_engine
from workhorse.run.process import EngineProcess
from workhorse.run.supervisor import EngineUnavailable, Supervisor
from workhorse.serve.backend import Roster, Served, capacity_of
from workhorse.text import Text
from workhorse.up.decide import Ask, Decision, decide
from workhorse.up.measuring import READY_TIMEOUT_S
from workhorse.up.teller import Teller

LOG_LINES = 2000  # a load writes about 200


class Engine:
    """One engine's place behind the gateway: `planning` at first, then what its owner says.

    It stays in the roster over every restart, so a request that waits for it never has to look
    for another.
    """

    def __init__(self, ask: Ask, where: Places, tell: Teller, roster: Roster) -> None:
        self.ask = ask
        self.decision: Decision | None = None
        self.supervisor: Supervisor | None = None
        name = served_name(str(ask.model or packaged_models()[DEFAULT_MODEL].file_name))
        self.served = Served(name, self)
        self._where, self._tell, self._roster = where, tell, roster
        roster.put(self.served)

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

    async def decide(self) -> Decision:
        """Probe, fetch and plan, off the event loop; a download ends when it is cancelled."""
        leaving = threading.Event()

        def fetching(done_bytes: int, total_bytes: int | None) -> None:
            if leaving.is_set():  # the thread has no other way to learn that nobody waits for it
                raise asyncio.CancelledError
            self._tell.fetching(done_bytes, total_bytes)

        try:
            self.decision = await asyncio.to_thread(decide, self.ask, self._where, fetching)
        finally:
            leaving.set()
        return self.decision

    async def start(self, log_name: str) -> None:
        """Start what was decided and keep it alive; raises what fails at this first start."""
        if self.decision is None:
            raise RuntimeError("an engine is decided on before it starts")
        plan = self.decision.plan
        self.supervisor = supervise(
            plan, self._where.logs / log_name, self._tell, golden=not self.ask.skip_golden
        )
        planned = replace(self.served, capacity=capacity_of(plan))
        self._roster.put(planned, instead_of=self.served)
        self.served = planned
        await self.supervisor.start()
        self.supervisor.on_change(self._tell.changed)

    async def stop(self) -> None:
        """End the engine; safe at any time and more than once."""
        if self.supervisor is not None:
            await self.supervisor.stop()


def supervise(plan: Plan, log_path: Path, tell: Teller, *, golden: bool) -> Supervisor:
    """The engine's owner, which verifies it at each start before anybody is served."""

    async def verify(process: EngineProcess) -> None:
        verdict = await verify_engine(plan, process, golden=golden)
        tell.verified(verdict, golden=golden)
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
