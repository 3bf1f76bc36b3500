"""`fleet up` on one screen: share weights, plan on the nodes, deploy, serve, scale, drain."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from workhorse.config import Places
from workhorse.errors import EXIT_GOOD, EXIT_NO, AppError
from workhorse.fleet.collect import OnNodes, collect, wanted_models, weights_of, with_weights
from workhorse.fleet.commands import Commands
from workhorse.fleet.fleet_plan import FleetPlan
from workhorse.fleet.front import FleetFront
from workhorse.fleet.kinds import Choosing, NodeFound, choose
from workhorse.fleet.member import Member
from workhorse.fleet.node_facts import Node
from workhorse.fleet.plan_here import PlanRequest, WantedModel
from workhorse.fleet.replicas import Deploys, Nodes, Replicas
from workhorse.fleet.scale import Bounds, Scale, replicas_for
from workhorse.fleet.secret import read_token, replica_key
from workhorse.fleet.spread_up import Spreading, spread_plan, too_large
from workhorse.fleet.weights_share import PORTS, WeightsShare
from workhorse.plan.planner import served_name
from workhorse.plan.wish import Wish
from workhorse.tell import Teller
from workhorse.text import Text, same
from workhorse.up.decide import Ask

LOOK_EVERY_S = 2.0


@dataclass(frozen=True, slots=True)
class FleetAsk:
    """What the user asked of `fleet up`; None: we decide."""

    files: tuple[str, ...] = ()  # one model in one or several sizes; (): the packaged model
    engine: str | None = None
    wish: Wish = field(default_factory=Wish)
    replicas: int | None = None
    least: int | None = None  # of replicas, with autoscaling
    most: int | None = None
    users: int | None = None  # people who chat at a time
    host: str | None = None
    port: int | None = None
    config: Path | None = None
    skip_golden: bool = False
    trust_link: bool = False  # hold on several nodes what no node has room for


class Cluster(Nodes, OnNodes, Protocol):
    """The cluster, as `on_ray/cluster.py` has it. All calls block."""


class Serving(Deploys, Protocol):
    """Serve, as `on_ray/deploy.py` has it. All calls block."""

    def start(self, http_port: int) -> None:
        """Have it run, with HAProxy at this port of each node."""


class FleetTeller(Teller, Protocol):
    """Who tells the user how far we are."""

    def planned(self, plan: FleetPlan) -> None:
        """This is what the fleet will do."""

    def ready(self, model_name: str, url: str, took_s: float, *, keyed: bool) -> None:
        """The service answers."""


class FleetUp:
    """One run of `fleet up`; `serve` is the order of it all."""

    def __init__(
        self,
        ask: FleetAsk,
        where: Places,
        member: Member,
        cluster: Cluster,
        serving: Serving,
        tell: FleetTeller,
    ) -> None:
        self.ask, self.where, self.member, self.tell = ask, where, member, tell
        self._cluster, self._serving = cluster, serving
        self._key = replica_key(read_token(Path(member.token_file)))
        self._wanted: tuple[WantedModel, ...] = ()
        self._found: dict[str, NodeFound] = {}  # by the node's id
        self._share: WeightsShare | None = None
        self._spread_plan: FleetPlan | None = None

    async def plan(self) -> FleetPlan:
        """What the fleet would do, with the nodes as they are now."""
        self.tell.stage(Text("reading what is offered", "读取模型文件"))
        ask = Ask(engine=None if self.ask.engine is None else Path(self.ask.engine))
        names, where, tell = self.ask.files, self.where, self.tell
        self._wanted = await asyncio.to_thread(wanted_models, names, ask, where, tell)
        if self._share is not None:
            self.tell.stage(Text("hashing the weights", "计算权重文件的哈希"))
            self._wanted = await asyncio.to_thread(
                with_weights, self._wanted, self._share, where, tell
            )
        nodes = await asyncio.to_thread(self._cluster.nodes)
        self.tell.stage(
            Text(f"planning on {len(nodes)} nodes", f"在 {len(nodes)} 个节点上制定方案")
        )
        return await self._choose(nodes)

    async def _choose(self, nodes: Sequence[Node]) -> FleetPlan:
        """The plan for these nodes; those that are new, or were not usable, are asked."""
        request = PlanRequest(self._wanted, self.ask.wish, self.ask.engine)
        for node in nodes:
            self._recognise(node)
        known = {one.id for one in nodes if self._is_known(one)}
        for found in await collect(
            self._cluster, [one for one in nodes if one.id not in known], request
        ):
            self._found[found.node.id] = found
        there = [replace(self._found[one.id], node=one) for one in newest(nodes)]
        plan = choose(
            there,
            Choosing(
                self._model_name(),
                self.ask.wish,
                weights_of(self._wanted),
                self.ask.replicas if self.ask.most is None else None,
                skip_golden=self.ask.skip_golden,
            ),
        )
        wanted = too_large(self._wanted, there) if self.ask.trust_link else None
        return plan if wanted is None else await self._spread(there, wanted, request, plan)

    async def _spread(
        self,
        found: Sequence[NodeFound],
        wanted: WantedModel,
        request: PlanRequest,
        plan: FleetPlan,
    ) -> FleetPlan:
        """One replica over several nodes, made once: it stays when others come."""
        if self._spread_plan is None:
            # Where Ray is loaded already: the cluster that came with this object needs it.
            from workhorse.fleet.on_ray.lender import end_probing, probed

            how = Spreading(self._cluster, probed, end_probing, self.tell)
            self._spread_plan, _ = await spread_plan(
                how,
                [one.node for one in found],
                wanted,
                request,
                plan,
                found=found,
                skip_golden=self.ask.skip_golden,
            )
        return self._spread_plan

    def _recognise(self, node: Node) -> None:
        """A box that comes back is another node to Ray; its plan need not be made again.

        While it catches up with its work it would measure itself slower than it is.
        """
        if node.id in self._found or not node.alive or node.draining:
            return
        for found in tuple(self._found.values()):
            same_box = (found.node.name, found.node.kind) == (node.name, node.kind)
            if found.plans is not None and same_box:
                self._found[node.id] = replace(found, node=node)

    def _is_known(self, node: Node) -> bool:
        found = self._found.get(node.id)
        return found is not None and (found.plans is not None or not node.alive)

    def _model_name(self) -> str:
        return served_name(self._wanted[0].model.path)

    async def serve(self) -> int:
        """Turn the fleet into one service, until cancelled; returns an exit code."""
        began_s = time.monotonic()
        front = FleetFront(
            self.where, self.tell, key=self._key, config=self.ask.config, host=self.ask.host
        )
        commands = Commands()
        front.commands += commands.table()
        front.mount_all()
        self._share = share = WeightsShare(self._key, head=True)
        try:
            await front.open(self.ask.port)
            share.start(self.member.node_address, PORTS)
            plan = await self.plan()
            self.tell.planned(plan)
            if not plan.replicas:
                return EXIT_NO
            self.tell.stage(Text("starting the replicas", "启动副本"))
            await asyncio.to_thread(self._serving.start, self.member.ports.http)
            replicas = self._replicas(front, plan)
            commands.replicas = replicas
            front.at_end = replicas.end_all
            await replicas.see()
            await replicas.take_over()
            front.beside("replicas", replicas.run())
            front.beside("new nodes", self._follow(replicas))
            await first_ready(front, replicas)
            took_s, keyed = time.monotonic() - began_s, front.access.asks_for_key
            self.tell.ready(plan.model_name, front.url, took_s, keyed=keyed)
            front.notify.ready(front.headline)
            await asyncio.Event().wait()
        finally:
            await front.close()
            await asyncio.to_thread(share.stop)
        return EXIT_GOOD

    def _replicas(self, front: FleetFront, plan: FleetPlan) -> Replicas:
        scale = Scale(bounds_of(self.ask, plan))
        replicas = Replicas(
            front,
            self._cluster,
            self._serving,
            scale,
            self.tell.stage,
            http_port=self.member.ports.http,
        )
        replicas.offer((*plan.replicas, *plan.spare))
        return replicas

    async def _follow(self, replicas: Replicas) -> None:
        """Plan for nodes that come, or come back, while the service runs."""
        seen = usable(replicas.seen.nodes)
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            nodes = replicas.seen.nodes
            if usable(nodes) == seen:
                continue
            try:
                plan = await self._choose(nodes)
            except Exception as error:  # noqa: BLE001 - of Ray, whatever it raises
                why = error.what if isinstance(error, AppError) else same(repr(error))
                self.tell.stage(why)
                continue
            seen = usable(nodes)
            if plan.replicas:
                replicas.offer((*plan.replicas, *plan.spare))
                replicas.scale.bounds = bounds_of(self.ask, plan)


def bounds_of(ask: FleetAsk, plan: FleetPlan) -> Bounds:
    """How many replicas there may be: as many as were asked for, else every place that there is."""
    places = (*plan.replicas, *plan.spare)
    if ask.least is None and ask.most is None:
        count = ask.replicas or len(places)
        if ask.users is not None:
            count = replicas_for(ask.users, [one.plan.slots for one in places])
        return Bounds(count, count)
    most = ask.most or len(places)
    least = ask.least or 1
    if ask.users is not None and ask.least is None:
        least = replicas_for(ask.users, [one.plan.slots for one in places])
    return Bounds(min(least, most), most)


def usable(nodes: Sequence[Node]) -> frozenset[str]:
    """The nodes that may have replicas."""
    return frozenset(one.id for one in nodes if one.alive and not one.draining)


def newest(nodes: Sequence[Node]) -> list[Node]:
    """Each machine once: the dead starts of one that lives again are left out."""
    living = {one.name for one in nodes if one.alive}
    dead: dict[str, Any] = {one.name: one for one in nodes if one.name not in living}
    return [one for one in nodes if one.alive or dead.get(one.name) is one]


async def first_ready(front: FleetFront, replicas: Replicas) -> None:
    """Wait until a replica can be asked; AppError when none can start."""
    while not front.ready.is_set():
        if (why := replicas.hopeless()) is not None:
            raise why
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_EVERY_S):
                await front.ready.wait()
