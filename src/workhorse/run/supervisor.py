"""Keep one engine alive: start, restart, give up, and tell where it answers."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from workhorse.errors import AppError
from workhorse.records import Launch
from workhorse.run.address import Address
from workhorse.run.policy import STEADY_S, last_error, next_delay_s
from workhorse.run.process import EngineProcess, Explain, PortTaken, free_port
from workhorse.run.stillness import Stillness, Vitals, says_at_rest
from workhorse.run.vitals import read_vitals
from workhorse.text import Text, same
from workhorse.units import show_duration

State = Literal["starting", "ready", "restarting", "stopped", "given_up"]

PORT_TRIES = 3
LOOK_EVERY_S = 15.0
LOG_CHECK_S = 60.0
DEATH_NEWS_S = 0.5
# Which slots are at work, by llama-server's own word. An engine whose computing thread hangs may
# go on answering this and /health from other threads (tried with 0.5.0, 2026-11), so what counts
# is not that it answers.
PROBE_PATH = "/slots"
PROBE_S = 10.0
HUNG_GRACE_S = 1.0  # what hangs seldom hears a TERM

log = logging.getLogger(__name__)


def vitals_of(process: EngineProcess) -> Vitals | None:
    """What /proc says of a running engine; blocks for some milliseconds."""
    return None if process.pid is None else read_vitals(process.pid, process.launch.port)


@dataclass(frozen=True, slots=True)
class Status:
    """How the engine is. `generation` is another number for each process that was started."""

    state: State
    reason: Text | None  # why it is not ready
    generation: int
    restarts: int
    address: Address | None  # None: not ready


class EngineUnavailable(AppError):
    """There is no engine to ask now."""


class Supervisor:
    """The owner of the engine over all its restarts.

    `launch_for(port)` says how to start it on a free port of `host`. `after_ready` runs when the
    health endpoint is good and before anybody is told, at each start; what it raises counts as a
    failed start. An engine that hangs for `hung_after_s` (`stillness`) is ended and started again;
    None: nobody looks. One task owns the process; everything else only asks it.
    """

    def __init__(
        self,
        launch_for: Callable[[int], Launch],
        log_path: Path,
        *,
        ready_timeout_s: float,
        host: str = "127.0.0.1",
        explain: Explain = last_error,
        after_ready: Callable[[EngineProcess], Awaitable[None]] | None = None,
        next_delay: Callable[[Sequence[float], float], float | None] = next_delay_s,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        hung_after_s: float | None = None,
        look_every_s: float = LOOK_EVERY_S,
        vitals: Callable[[EngineProcess], Vitals | None] = vitals_of,
    ) -> None:
        self.process: EngineProcess | None = None
        self.status = Status("stopped", None, 0, 0, None)
        self._launch_for = launch_for
        self._log_path = log_path
        self._ready_timeout_s = ready_timeout_s
        self._host = host
        self._explain = explain
        self._after_ready = after_ready
        self._next_delay = next_delay
        self._clock = clock
        self._sleep = sleep
        self._hung_after_s = hung_after_s
        self._look_every_s = look_every_s
        self._vitals = vitals
        self._observers: list[Callable[[Status], None]] = []
        self._settled = asyncio.Event()  # ready, or never again
        self._settled.set()
        self._owner: asyncio.Task[None] | None = None
        self._stopping = False

    @property
    def owned(self) -> bool:
        """Whether the engine has an owner, or has ended for good: what a watchdog may count on."""
        over = self.status.state in ("stopped", "given_up")
        return over or (self._owner is not None and not self._owner.done())

    def on_change(self, observer: Callable[[Status], None]) -> None:
        """Call `observer` with each new status, soon after it came."""
        self._observers.append(observer)

    async def start(self) -> None:
        """Start the engine and keep it alive from then on.

        What fails at this first start is raised and leaves nothing behind. Also starts again
        after `stop` or after it gave up.
        """
        if self._owner is not None and not self._owner.done():
            raise RuntimeError("the engine has an owner already")
        first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stopping = False
        self._change("starting", None)
        self._owner = asyncio.create_task(self._own(first), name="engine owner")
        try:
            await first
        except asyncio.CancelledError:
            await self.stop()
            raise
        except Exception:
            await asyncio.wait({self._owner})
            raise

    async def address(self, wait_s: float) -> Address:
        """Where the engine answers; waits up to `wait_s` while it is being started.

        Raises EngineUnavailable, at once when the engine will not come back.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._settled.wait()
        if self.status.address is None:
            raise self._unavailable(wait_s)
        return self.status.address

    async def stop(self) -> None:
        """End the engine and the watch over it; safe at any time and more than once."""
        owner = self._owner
        if owner is None:
            return
        if not self._stopping:
            # A second cancel would turn the orderly end of the engine into a kill.
            self._stopping = True
            self._change("stopped", None)
            owner.cancel()
        await asyncio.wait({owner})
        if not owner.cancelled() and (error := owner.exception()):
            raise error

    async def _own(self, first: asyncio.Future[None]) -> None:
        """Own the process until it is stopped or given up; `first` learns of the first start."""
        deaths: list[float] = []
        try:
            while True:
                try:
                    process = await self._bring_up_somewhere()
                except Exception as error:  # noqa: BLE001 - see below
                    if not first.done():
                        told = error.what if isinstance(error, AppError) else None
                        self._change("stopped", told)
                        first.set_exception(error)
                        return
                    # Whatever it was, it must not end the watch: nobody else restarts the engine.
                    reason = error.what if isinstance(error, AppError) else same(repr(error))
                else:
                    if not first.done():
                        first.set_result(None)
                    since_s = self._clock()
                    reason = await self._watch(process)
                    if self._clock() - since_s >= STEADY_S:
                        deaths.clear()
                deaths.append(self._clock())
                delay_s = self._next_delay(deaths, self._clock())
                if delay_s is None:
                    self._change("given_up", reason)
                    return
                self._change("restarting", reason)
                await self._sleep(delay_s)
        finally:
            if not first.done():
                first.set_exception(self._unavailable(0))
            if not self._settled.is_set():
                self._change("stopped", self.status.reason)
            if self.process is not None:
                await self.process.stop()

    async def _bring_up_somewhere(self) -> EngineProcess:
        for _ in range(PORT_TRIES - 1):
            with suppress(PortTaken):
                return await self._bring_up()
        return await self._bring_up()

    async def _bring_up(self) -> EngineProcess:
        launch = self._launch_for(free_port(self._host))
        self.process = process = EngineProcess(launch, self._log_path, explain=self._explain)
        self.status = replace(self.status, generation=self.status.generation + 1)
        try:
            await process.start()
            await process.wait_ready(self._ready_timeout_s)
            await self._verify(process)
        except BaseException:
            await process.stop()
            raise
        self._change("ready", None)
        return process

    async def _verify(self, process: EngineProcess) -> None:
        if self._after_ready is None:
            return
        try:
            await self._after_ready(process)
        except Exception as error:
            # When the engine dies under the check, its end is the cause and not what the check
            # saw of it; the connection breaks a moment before the end is known.
            if await process.ends_within(DEATH_NEWS_S):
                raise process.failure() from error
            raise

    async def _watch(self, process: EngineProcess) -> Text:
        """Why the process ended, once it has, or was ended because it hung."""
        stillness = Stillness()
        log_due_s = self._clock() + LOG_CHECK_S
        while not await process.ends_within(self._look_every_s):
            try:
                if self._clock() >= log_due_s:
                    # Copies up to 64 MiB: not while streams wait for this loop.
                    await asyncio.to_thread(process.limit_log)
                    log_due_s = self._clock() + LOG_CHECK_S
                hangs = await self._hangs(process, stillness)
            except Exception:
                # Such as no thread for it. Nobody else watches the engine, so this goes on.
                log.exception("The engine could not be looked at.")
                stillness.forget()
                continue
            if hangs:
                reason = stillness.reason
                try:
                    await process.stop(HUNG_GRACE_S)
                except AppError as error:  # not even KILL ends it
                    return error.what
                return reason
        return process.why_ended()

    async def _hangs(self, process: EngineProcess, stillness: Stillness) -> bool:
        if self._hung_after_s is None:
            return False
        vitals = await asyncio.to_thread(self._vitals, process)
        if stillness.see(vitals, self._clock()) < self._hung_after_s:
            return False
        # A connection that is kept open looks like a request, and an engine at rest like one
        # that hangs: its slots tell them apart.
        if says_at_rest(await process.says(PROBE_PATH, PROBE_S)):
            stillness.forget()
            return False
        return not process.exited.is_set()

    def _change(self, state: State, reason: Text | None) -> None:
        address = self.process.address if state == "ready" and self.process is not None else None
        restarts = self.status.restarts + (state == "restarting")
        self.status = replace(
            self.status, state=state, reason=reason, restarts=restarts, address=address
        )
        if state in ("starting", "restarting"):
            self._settled.clear()
        else:
            self._settled.set()
        loop = asyncio.get_running_loop()
        for observer in self._observers:
            # Not called here: an observer that fails must not take the engine with it.
            loop.call_soon(observer, self.status)

    def _unavailable(self, waited_s: float) -> EngineUnavailable:
        reason, waited = self.status.reason or Text("", ""), Text("", "")
        if waited_s >= 1:
            shown = show_duration(waited_s)
            waited = Text(f" (waited {shown})", f"（已等待 {shown}）")
        soon = Text("Ask again in a few seconds.", "请几秒后重试。")
        log = Text(
            f"Read the engine's log, {self._log_path}, then start workhorse again.",
            f"请查看引擎日志 {self._log_path}，然后重新启动 workhorse。",
        )
        what, next_step = {
            "starting": (
                Text(
                    f"The engine is still loading the model{waited.en}.",
                    f"推理引擎仍在加载模型{waited.zh}。",
                ),
                soon,
            ),
            "restarting": (
                Text(
                    f"The engine is being restarted{waited.en}: {reason.en}",
                    f"推理引擎正在重启{waited.zh}：{reason.zh}",
                ),
                soon,
            ),
            "given_up": (
                Text(
                    f"The engine kept ending and is not started any more: {reason.en}",
                    f"推理引擎反复退出，已不再重启：{reason.zh}",
                ),
                log,
            ),
        }.get(self.status.state, (Text("The engine is stopped.", "推理引擎已停止。"), log))
        return EngineUnavailable(what, next_step, speaker="gateway")
