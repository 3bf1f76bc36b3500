"""The life of one replica in its own process, from what it was told to its end.

`start` is the order of it all. The process ends as soon as its engine does, so that whoever
watches over it (Serve) puts another in its place; a process that lives on would take requests and
answer none.
"""

import asyncio
import logging
import os
import secrets
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from workhorse import __version__
from workhorse.config import Places
from workhorse.errors import EXIT_NO, AppError
from workhorse.fleet.engine_child import EngineChild
from workhorse.fleet.first_speeds import BUDGET_S, first_speeds, forecast_of
from workhorse.fleet.pass_through import PassThrough
from workhorse.fleet.replica_record import (
    ReplicaRecord,
    after_death,
    delay_s,
    read_record,
    write_record,
)
from workhorse.fleet.rpc_server import RpcBuild, build_at
from workhorse.fleet.spec import Helping, ReplicaFacts, ReplicaSpec
from workhorse.fleet.weights import Fetch, fetch
from workhorse.fleet.weights_files import plan_with
from workhorse.fleet.weights_share import WeightsShare
from workhorse.records import Plan
from workhorse.run.address import Address
from workhorse.serve.backend import images_of
from workhorse.settings import SupervisionSettings
from workhorse.text import Text
from workhorse.up.written_down import WrittenDown

EXIT_ENGINE_ENDED = 70  # sysexits.h, EX_SOFTWARE
# How long a replica whose engine kept ending waits before it says so and ends: Serve would start
# it anew at once, for ever.
CRASH_LOOP_PAUSE_S = 60.0

# Starts what other nodes lend, and says where it listens.
Lend = Callable[[Sequence[Helping], RpcBuild], tuple[str, ...]]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Node:
    """What a replica has to know of the node that it is on."""

    name: str
    host: str  # the address by which the other nodes reach it
    key: str  # the fleet's replica key


class ReplicaLife:
    """One replica; `start` it once, ask its `app`, `stop` it."""

    def __init__(
        self,
        spec: ReplicaSpec,
        where: Places,
        node: Node,
        *,
        leave: Callable[[int], object] = os._exit,
        budget_s: float = BUDGET_S,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        lend: Lend | None = None,
    ) -> None:
        self.spec, self.node = spec, node
        self.boot = secrets.token_hex(8)
        self.app = PassThrough(
            node.key,
            self.boot,
            route=spec.route,
            address=lambda: self.address,
            facts=self.facts,
        )
        self._where, self._leave = where, leave
        self._budget_s, self._sleep = budget_s, sleep
        self._lend = lend
        self._folder = where.run / "replicas"
        self._written = WrittenDown(self._folder, tuple, None)
        self._share: WeightsShare | None = None
        self._child: EngineChild | None = None
        self._record = ReplicaRecord("")
        self._speeds = forecast_of(spec.plan)
        self._ended: Text | None = None  # why the engine did
        self._ready_unix_s: float | None = None
        self._stopping = False

    @property
    def address(self) -> Address | None:
        """Where its engine answers; None: it does not."""
        return None if self._child is None else self._child.address

    @property
    def is_well(self) -> bool:
        """Whether its engine is ready and watched over."""
        return self._ready_unix_s is not None and self._child is not None and self._child.lives

    async def start(self) -> None:
        """Return when it serves; an AppError says in words for users why it cannot."""
        # Of the plan as it was told: where this node keeps the weights does not count.
        self._record = await asyncio.to_thread(
            read_record, self._folder, self.spec.name, self.spec.plan
        )
        await self._wait_for_turn()
        try:
            await self._start()
        except AppError as error:
            self._note_death(error.what, 0.0)
            await self.stop()
            raise
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        refuse_other_version(self.spec)
        plan = await asyncio.to_thread(self._plan_here)
        if self.spec.helpers and self._lend is not None:
            build = await asyncio.to_thread(build_at, Path(plan.engine.command[0]))
            rpc = await asyncio.to_thread(self._lend, self.spec.helpers, build)
            plan = replace(plan, rpc=rpc)
        # It knows no port before its engine starts: its process id stands for it.
        for ended in await self._written.open(self.node.host, os.getpid(), time.time()):
            log.warning(ended.told.en)
        await self._start_engine(plan)

    async def _wait_for_turn(self) -> None:
        wait_s = delay_s(self._record, time.time())
        if wait_s is not None:
            await self._sleep(wait_s)
            return
        await self._sleep(CRASH_LOOP_PAUSE_S)
        reason = self._record.reason or Text("no reason is known", "原因不明")
        raise AppError(
            Text(
                f"The engine of replica {self.spec.name} kept ending and is not started any "
                f"more: {reason.en}",
                f"副本 {self.spec.name} 的推理引擎反复退出，已不再启动：{reason.zh}",
            ),
            Text(
                f"Read its log on node {self.node.name}, {self._log_path}; another plan starts it "
                "again.",
                f"请在节点 {self.node.name} 上查看日志 {self._log_path}；更换方案后会重新启动。",
            ),
            speaker="engine",
            exit_code=EXIT_NO,
        )

    def _plan_here(self) -> Plan:
        """The plan with the weights where this node has them; fetches what is missing."""
        spec = self.spec
        if spec.weights is None:
            refuse_missing_weights(spec, self.node.name)
            return spec.plan
        folder = self._where.models / "fleet"
        self._share = WeightsShare(self.node.key, folder=folder)
        self._share.start(self.node.host)
        how = Fetch(
            self.node.key, self.node.name, self._share, tell=lambda words: log.warning(words.en)
        )
        return plan_with(spec.plan, fetch((spec.weights, *spec.beside), folder, how))

    async def _start_engine(self, plan: Plan) -> None:
        # Ray sets it to 1 in each of its workers.
        os.environ.pop("OMP_NUM_THREADS", None)
        self._child = child = EngineChild(
            plan,
            self._log_path,
            marker=self._written.marker,
            ready_timeout_s=self.spec.ready_timeout_s,
            golden=not self.spec.skip_golden,
            hung_after_s=SupervisionSettings().hung_after_s,
            on_death=self._engine_ended,
        )
        address = await child.start()
        # After a death people wait; in peace it is measured anew, for the machine may have changed.
        known = self._record.speeds if self._record.deaths_unix_s else None
        speeds = known or await first_speeds(plan, address, self._budget_s)
        if not child.lives:
            raise engine_ended(self._ended or Text("ended", "已退出"), self._log_path)
        self._speeds = speeds or self._speeds
        self._record = replace(self._record, speeds=speeds)
        await asyncio.to_thread(write_record, self._folder, self.spec.name, self._record)
        self._ready_unix_s = time.time()

    def facts(self) -> ReplicaFacts:
        """What it says of itself."""
        plan, speeds = self.spec.plan, self._speeds
        ready = self._ready_unix_s is not None
        return ReplicaFacts(
            name=self.spec.name,
            model_name=self.spec.model_name,
            state="draining" if self._stopping else "ready" if ready else "starting",
            node=self.node.name,
            engine_pid=None if self._child is None else self._child.pid,
            slots=plan.slots,
            context_tokens=plan.context_tokens,
            prefill_tokens_per_s=speeds.prefill_tokens_per_s,
            decode_tokens_per_s=speeds.decode_tokens_per_s,
            total_tokens_per_s=speeds.total_tokens_per_s,
            measured=self._record.speeds is not None,
            images=images_of(plan),
            since_unix_s=self._ready_unix_s or 0.0,
            boot=self.boot,
        )

    async def stop(self) -> None:
        """End the engine in order; safe more than once."""
        if self.is_well and not self._stopping:
            self._record = replace(self._record, deaths_unix_s=(), reason=None)
            await asyncio.to_thread(write_record, self._folder, self.spec.name, self._record)
        self._stopping = True
        if self._child is not None:
            await self._child.stop()
        if self._share is not None:
            await asyncio.to_thread(self._share.stop)
        self._written.remove()

    def _engine_ended(self, reason: Text) -> None:
        self._ended = reason
        if self._ready_unix_s is None:
            return  # `start` says why
        self._note_death(reason, time.time() - self._ready_unix_s)
        self._written.remove()
        sys.stderr.write(f"workhorse: replica {self.spec.name}: the engine ended: {reason.en}\n")
        sys.stderr.flush()
        self._leave(EXIT_ENGINE_ENDED)

    def _note_death(self, reason: Text, ran_s: float) -> None:
        self._record = after_death(self._record, time.time(), ran_s, reason)
        write_record(self._folder, self.spec.name, self._record)

    @property
    def _log_path(self) -> Path:
        return self._where.logs / f"replica-{self.spec.name}.log"


def refuse_other_version(spec: ReplicaSpec) -> None:
    """Raise unless the plan was made by this version: another one would read it in its own way."""
    if spec.version == __version__:
        return
    here = socket.gethostname()
    raise AppError(
        Text(
            f"{here} has workhorse {__version__}, and the head {spec.version}.",
            f"{here} 上的 workhorse 版本为 {__version__}，主节点为 {spec.version}。",
        ),
        Text(
            "Install the same version on every node, then leave the fleet and join it again.",
            "请在所有节点安装同一版本，然后离开集群并重新加入。",
        ),
        exit_code=EXIT_NO,
    )


def refuse_missing_weights(spec: ReplicaSpec, node_name: str) -> None:
    """Raise when a node that has to have the weights has none."""
    path = spec.plan.model_path
    if spec.plan.engine.kind == "fake" or Path(path).exists():
        return
    raise AppError(
        Text(f"Node {node_name} has no {path}.", f"节点 {node_name} 上没有 {path}。"),
        Text(
            "Start `workhorse fleet up` again: it looks again at what each node has.",
            "请重新运行 `workhorse fleet up`：它会重新检查各节点已有的文件。",
        ),
    )


def engine_ended(reason: Text, log_path: Path) -> AppError:
    """The engine ended before anybody was served."""
    return AppError(
        Text(f"The engine ended: {reason.en}", f"推理引擎已退出：{reason.zh}"),
        Text(f"Read its log: {log_path}", f"请查看引擎日志：{log_path}"),
        speaker="engine",
    )
