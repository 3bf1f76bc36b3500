"""Which replicas there are: started, watched, scaled, drained, removed; one model's.

`look` is one round of it. Serve keeps each one running; this decides which there are to be.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from workhorse.errors import AppError
from workhorse.fleet.deployed import DeploymentState
from workhorse.fleet.front import FleetFront
from workhorse.fleet.matching import alike, entries_of, find_node, why_failed
from workhorse.fleet.node_facts import Node
from workhorse.fleet.remote_replica import RemoteReplica
from workhorse.fleet.scale import Load, Scale
from workhorse.fleet.spec import ReplicaSpec
from workhorse.fleet.status import (
    FleetStatus,
    ReplicaStatus,
    file_of,
    node_statuses,
    reason_of,
)
from workhorse.serve.backend import READY
from workhorse.text import Text

LOOK_EVERY_S = 2.0
# What could not start is tried again after this: a disk may have been emptied meanwhile.
TRY_AGAIN_S = 600.0
# So long the end of all replicas is waited for; Serve goes on with it in any case.
END_WITHIN_S = 60.0
# One that was ready and is away for so long does not count any more: another takes its place, and
# should it come back, one too many leaves.
AWAY_S = 120.0

Say = Callable[[Text], None]

log = logging.getLogger(__name__)


def leaving(name: str, running: int) -> Text:
    """What is told of a replica that is on its way out."""
    if not running:
        return Text(f"{name} ends", f"{name} 正在结束")
    return Text(
        f"{name}: {running} running {'answer ends' if running == 1 else 'answers end'} first",
        f"{name}：等待 {running} 个进行中的回答结束",
    )


class Deploys(Protocol):
    """Serve, as `on_ray/deploy.py` has it. All calls block."""

    def put(self, spec: ReplicaSpec) -> None:
        """Have this replica run."""

    def remove(self, name: str) -> None:
        """End a replica."""

    def states(self) -> Mapping[str, DeploymentState]:
        """How each replica is, by name."""
        ...

    def specs(self) -> Mapping[str, ReplicaSpec]:
        """What each replica was told, by name."""
        ...


class Nodes(Protocol):
    """The cluster, as `on_ray/cluster.py` has it. All calls block."""

    def nodes(self) -> tuple[Node, ...]:
        """Every node, dead ones too."""
        ...

    def set_draining(self, node_id: str, draining: bool) -> None:
        """Write down that a node gets no replica."""


@dataclass(slots=True)
class Seen:
    """What the latest look saw."""

    nodes: tuple[Node, ...] = ()
    states: Mapping[str, DeploymentState] = field(default_factory=dict)


class Replicas:
    """The replicas of one service; `run` looks after them until cancelled."""

    def __init__(
        self,
        front: FleetFront,
        nodes: Nodes,
        deploys: Deploys,
        scale: Scale,
        say: Say,
        *,
        http_port: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.front, self.scale = front, scale
        self.seen = Seen()
        self._nodes, self._deploys, self._say = nodes, deploys, say
        self._http_port, self._clock = http_port, clock
        self._offered: dict[str, ReplicaSpec] = {}  # by name, the best first
        self._ending: dict[str, asyncio.Task[None]] = {}
        self._looking = asyncio.Lock()
        self._failed_s: dict[str, float] = {}  # when one could not start
        self._told: dict[str, Text] = {}
        self._why: dict[str, AppError] = {}  # what could not start, and why

    def offer(self, specs: Sequence[ReplicaSpec]) -> None:
        """These may run, the best first; what runs by another spec is replaced."""
        self._offered = {one.name: one for one in specs}

    async def take_over(self) -> None:
        """Go on with what a service that was killed has left, and remove what is not wanted."""
        found = await asyncio.to_thread(self._deploys.specs)
        states = await asyncio.to_thread(self._deploys.states)
        for name in states:
            spec, offered = found.get(name), self._offered.get(name)
            if spec is not None and offered is not None and alike(spec, offered):
                self._say(Text(f"{name} runs already", f"{name} 已在运行"))
                self.front.add(spec)
            elif states[name].status != "ending":
                await asyncio.to_thread(self._deploys.remove, name)

    async def run(self) -> None:
        """Look after them until cancelled."""
        while True:
            try:
                await self.look()
            except Exception as error:  # noqa: BLE001 - of Ray, whatever it raises
                # The head may be starting again; what runs goes on without it.
                log.warning("The fleet cannot be looked at: %s", error)
            await asyncio.sleep(LOOK_EVERY_S)

    async def look(self) -> None:
        """One round: see, then remove, replace and add what is needed."""
        async with self._looking:
            await self.see()
            for replica in self._taking():
                if (why := self._why_to_leave(replica)) is not None:
                    self._end(replica, why)
            await self._add_or_remove()

    async def see(self) -> None:
        """Take in how nodes and replicas are now."""
        nodes, states = await asyncio.to_thread(
            lambda: (self._nodes.nodes(), self._deploys.states())
        )
        self.seen = Seen(nodes, states)
        self.front.entries.put(entries_of(nodes, states, self._http_port))
        self._note_states(states)

    def _taking(self) -> list[RemoteReplica]:
        return [one for one in self.front.replicas.values() if not one.draining]

    def _note_states(self, states: Mapping[str, DeploymentState]) -> None:
        for name, replica in self.front.replicas.items():
            state = states.get(name)
            replica.reason = None if state is None else reason_of(state)
            if replica.reason is not None and self._told.get(name) != replica.reason:
                self._told[name] = replica.reason
                self._say(Text(f"{name}: {replica.reason.en}", f"{name}：{replica.reason.zh}"))

    def _why_to_leave(self, replica: RemoteReplica) -> Text | None:
        """Why a replica is to go; None: it stays."""
        name, node = replica.spec.name, self._node_of(replica.spec)
        if node is not None and node.draining:
            return Text(f"node {node.name} is being drained", f"节点 {node.name} 正在排空")
        if replica.spec.node_id is not None and (node is None or not node.alive):
            return Text("its node is gone", "其节点已离线")
        offered = self._offered.get(name)
        if offered is not None and not alike(offered, replica.spec):
            return Text("another plan takes its place", "将由新方案替换")
        state = self.seen.states.get(name)
        if state is not None and state.status == "failed":
            self._failed_s[name] = self._clock()
            self._why[name] = why_failed(name, state)
            return Text("it could not start", "无法启动")
        return None

    def hopeless(self) -> AppError | None:
        """Why nothing runs and nothing will; None: something may."""
        failed = self._offered.keys() <= self._why.keys()
        if self._taking() or not failed or not self._why:
            return None
        return next(reversed(self._why.values()))

    def _node_of(self, spec: ReplicaSpec) -> Node | None:
        state = self.seen.states.get(spec.name)
        where = spec.node_id or (None if state is None else state.node_id)
        return next((one for one in self.seen.nodes if one.id == where), None)

    # more, fewer

    async def _add_or_remove(self) -> None:
        counted = self._counted()
        wanted = self.scale.wanted(self.load())
        if wanted < len(counted):
            last = min(counted, key=self._worth)
            self._end(last, Text("the others are enough", "其余副本已够用"))
        for spec in self._startable()[: max(0, wanted - len(counted))]:
            await self._start(spec)

    def _counted(self) -> list[RemoteReplica]:
        """Those that are there, or will be soon."""
        now_s = self._clock()
        return [
            one
            for one in self._taking()
            if one.away_since_s is None or now_s - one.away_since_s < AWAY_S
        ]

    def load(self) -> Load:
        """What the service has to do now."""
        taking = self._counted()
        ready = [one for one in taking if one.state == READY]
        line = [] if not taking else self.front.queue.waiting(taking[0].served)
        waits = [one.expected_wait_s for one in line if one.expected_wait_s is not None]
        return Load(
            self._clock(),
            len(ready),
            len(taking) - len(ready),
            sum(one.capacity.slots for one in ready),
            sum(self.front.running(one) for one in taking),
            len(line),
            max(waits, default=None),
        )

    def _worth(self, replica: RemoteReplica) -> tuple[bool, float, int]:
        """Who goes last: the ready one that writes most and has most to do."""
        total = replica.capacity.total_tokens_per_s or 0.0
        return (replica.state == READY, total, self.front.running(replica))

    def _startable(self) -> list[ReplicaSpec]:
        now_s, there = self._clock(), self.front.replicas
        return [
            spec
            for name, spec in self._offered.items()
            if name not in there
            and self._can_take(spec)
            and now_s - self._failed_s.get(name, float("-inf")) >= TRY_AGAIN_S
        ]

    def _can_take(self, spec: ReplicaSpec) -> bool:
        """Is there a node for it? One that nobody named may be any of its kind."""
        return any(
            one.alive and not one.draining and one.id == (spec.node_id or one.id)
            for one in self.seen.nodes
            if spec.node_id is not None or one.kind == spec.kind
        )

    async def _start(self, spec: ReplicaSpec) -> None:
        self._say(Text(f"starting {spec.name}", f"启动 {spec.name}"))
        try:
            await asyncio.to_thread(self._deploys.put, spec)
        except AppError as error:
            self._failed_s[spec.name] = self._clock()
            self._why[spec.name] = error
            self._say(error.what)
            return
        self._why.pop(spec.name, None)
        self.front.add(spec)

    def _end(self, replica: RemoteReplica, why: Text) -> None:
        name = replica.spec.name
        if name not in self._ending:
            self._say(Text(f"{name} leaves: {why.en}", f"{name} 退出：{why.zh}"))
            self.front.ask_no_more(replica)
            self._ending[name] = task = asyncio.create_task(self._leave(replica), name=name)
            task.add_done_callback(lambda _: self._ending.pop(name, None))

    async def _leave(self, replica: RemoteReplica) -> None:
        """Its running answers end, then it is removed."""
        await self.front.emptied(replica)
        name = replica.spec.name
        while True:
            try:
                await asyncio.to_thread(self._deploys.remove, name)
                break
            except AppError as error:
                log.warning("%s is still there: %s", name, error)
                await asyncio.sleep(LOOK_EVERY_S)
        await self.front.forget(replica)

    # what commands ask for

    async def drain(self, name: str, say: Say) -> None:
        """Take a node out of use; returns once its replicas are gone. AppError: no such node."""
        node = self.node_named(name)
        await asyncio.to_thread(self._nodes.set_draining, node.id, True)
        await self.look()
        while mine := self._on(node):
            for replica in mine:
                say(leaving(replica.spec.name, self.front.running(replica)))
            names = {one.spec.name for one in mine}
            tasks = [task for name, task in self._ending.items() if name in names]
            if tasks:
                await asyncio.wait(tasks)
            else:
                await asyncio.sleep(LOOK_EVERY_S)
        say(Text(f"node {node.name} is drained", f"节点 {node.name} 已排空"))

    async def undo(self, name: str, say: Say) -> None:
        """A node may have replicas again."""
        node = self.node_named(name)
        await asyncio.to_thread(self._nodes.set_draining, node.id, False)
        say(Text(f"node {node.name} takes replicas again", f"节点 {node.name} 恢复接收副本"))
        await self.look()

    def node_named(self, name: str) -> Node:
        """The living node of a name; AppError when there is none."""
        return find_node(self.seen.nodes, name)

    def _on(self, node: Node) -> list[RemoteReplica]:
        found = [(one, self._node_of(one.spec)) for one in self.front.replicas.values()]
        return [one for one, its in found if its is not None and its.id == node.id]

    def status(self) -> FleetStatus:
        """The fleet as it is now."""
        front, best = self.front, self.front.entries.best
        bounds = self.scale.bounds
        return FleetStatus(
            front.url,
            node_statuses(self.seen.nodes, None if best is None else best.node),
            tuple(self._status_of(one) for one in front.replicas.values()),
            front.status().waiting,
            front.activity.in_flight,
            bounds.least,
            bounds.most,
        )

    def _status_of(self, replica: RemoteReplica) -> ReplicaStatus:
        node, capacity, facts = self._node_of(replica.spec), replica.capacity, replica.facts
        return ReplicaStatus(
            replica.spec.name,
            None if node is None else node.name,
            replica.spec.model_name,
            "draining" if replica.draining else replica.state,
            None if replica.state == READY else replica.reason,
            replica.restarts,
            self.front.running(replica),
            capacity.slots,
            capacity.context_tokens,
            capacity.prefill_tokens_per_s,
            capacity.decode_tokens_per_s,
            capacity.total_tokens_per_s,
            measured=facts is not None and facts.measured,
            kind=replica.spec.kind,
            file=file_of(replica.spec),
            device=replica.spec.plan.device,
        )

    async def end_all(self) -> None:
        """Remove every replica, whatever it does; nobody is asked any more."""
        ending = tuple(self._ending.values())
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        names = set(self.front.replicas)
        for replica in tuple(self.front.replicas.values()):
            await asyncio.to_thread(self._deploys.remove, replica.spec.name)
            await self.front.forget(replica)
        until_s = self._clock() + END_WITHIN_S
        while names & set(await asyncio.to_thread(self._deploys.states)):
            if self._clock() >= until_s:
                log.warning("Serve is still ending: %s", ", ".join(sorted(names)))
                return
            await asyncio.sleep(LOOK_EVERY_S / 4)
