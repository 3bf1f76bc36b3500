"""The engine of one replica: started, verified, measured, and never started a second time.

It is a child of the replica's process, which ends with it: who starts it again is Serve.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from workhorse.engines.adapter import adapter_for
from workhorse.errors import EXIT_NO, AppError
from workhorse.records import Plan
from workhorse.run.address import Address
from workhorse.run.process import EngineProcess
from workhorse.run.supervisor import Status, Supervisor
from workhorse.text import Text
from workhorse.up.engine import marked, verify_engine


class EngineChild:
    """One engine by one plan; `on_death` hears of its end once, unless it was stopped.

    Start it on a thread that lives as long as it shall: the kernel ends it with that thread.
    """

    def __init__(
        self,
        plan: Plan,
        log_path: Path,
        *,
        marker: str,
        ready_timeout_s: float,
        golden: bool,
        hung_after_s: float | None,
        on_death: Callable[[Text], None],
    ) -> None:
        self.plan = plan
        self._golden = golden
        self._on_death = on_death
        adapter = adapter_for(plan.engine)
        self._supervisor = Supervisor(
            lambda port: marked(adapter.launch(plan, port), marker),
            log_path,
            ready_timeout_s=ready_timeout_s,
            explain=adapter.explain,
            after_ready=self._verify,
            next_delay=never,
            hung_after_s=hung_after_s,
        )

    async def start(self) -> Address:
        """Start it and wait until it answers as planned; an AppError says why it does not."""
        await self._supervisor.start()
        self._supervisor.on_change(self._changed)
        if self._supervisor.status.state == "given_up":  # it ended within this very moment
            self._changed(self._supervisor.status)
        return await self._supervisor.address(0)

    @property
    def address(self) -> Address | None:
        """Where it answers; None once it has ended."""
        return self._supervisor.status.address

    @property
    def pid(self) -> int | None:
        """Its process; None when there is none."""
        process = self._supervisor.process
        return None if process is None or process.exited.is_set() else process.pid

    @property
    def lives(self) -> bool:
        """Whether it is ready and has an owner that watches it."""
        return self.address is not None and self._supervisor.owned

    async def stop(self) -> None:
        """End it in order; safe at any time and more than once."""
        await self._supervisor.stop()

    def _changed(self, status: Status) -> None:
        if status.state == "given_up":
            self._on_death(status.reason or Text("ended", "已退出"))

    async def _verify(self, process: EngineProcess) -> None:
        verdict = await verify_engine(self.plan, process, golden=self._golden)
        if verdict.blocked:
            worst = next(one for one in verdict.findings if one.level == "blocker")
            raise AppError(worst.seen, worst.remedy, speaker="engine", exit_code=EXIT_NO)


def never(_deaths: Sequence[float], _now: float) -> None:
    """When to start it again: Serve starts another replica instead."""
