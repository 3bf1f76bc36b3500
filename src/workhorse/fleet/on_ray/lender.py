"""Lends a node's devices to a replica on another one: a Ray actor that ends with who made it."""

from collections.abc import Sequence

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from workhorse.config import places
from workhorse.errors import AppError
from workhorse.fleet.cannot_start import in_a_line
from workhorse.fleet.link import Answering, LinkAnswerer
from workhorse.fleet.member import this_member
from workhorse.fleet.node_facts import NAME
from workhorse.fleet.rpc_server import RpcBuild, RpcServer, same_build
from workhorse.fleet.spec import Helping
from workhorse.text import Text

START_WITHIN_S = 300.0


class Lender:
    """Runs on the node that lends; its process, and with it the RPC server, ends with its owner."""

    def __init__(self) -> None:
        self._server: RpcServer | None = None
        self._answerer: LinkAnswerer | None = None

    def lend(self, told: Helping, build: RpcBuild) -> str:
        """Start the RPC server of the same build, at this node's address in the fleet alone."""
        where = places()
        try:
            here = same_build(build, where.engines)
            self._server = RpcServer(
                here,
                this_member(where).node_address,
                threads=told.threads,
                cards=told.cards,
                folder=where.data / "fleet" / "rpc",
            )
            return self._server.start()
        except AppError as error:
            raise RuntimeError(in_a_line(error)) from None

    def lives(self) -> bool:
        """Whether the RPC server does."""
        return self._server is not None and self._server.pid is not None

    def answer_probe(self) -> Answering:
        """Wait for one probe of the link at this node's address."""
        self._answerer = LinkAnswerer(this_member(places()).node_address)
        return self._answerer.place


class Lenders:
    """The helpers of one replica; they end when it does, also when it is killed."""

    def __init__(self) -> None:
        self._actors: list[ray.actor.ActorHandle] = []

    def lend(self, helpers: Sequence[Helping], build: RpcBuild) -> tuple[str, ...]:
        """Where they listen, in the same order; AppError when one does not. Blocks for seconds."""
        try:
            self._actors = [self._actor(one) for one in helpers]
            asked = [
                actor.lend.remote(one, build)
                for actor, one in zip(self._actors, helpers, strict=True)
            ]
            return tuple(ray.get(asked, timeout=START_WITHIN_S))
        except (ray.exceptions.RayError, RuntimeError, ValueError) as error:
            self.end()
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            names = ", ".join(one.name for one in helpers)
            raise AppError(
                Text(
                    f"{names} did not lend its devices: {lines[-1] if lines else error!r}",
                    f"{names} 未能出借设备：{lines[-1] if lines else error!r}",
                ),
                Text(
                    "`workhorse fleet status` shows the nodes; all have to have the same engine "
                    "build (workhorse engine list).",
                    "用 `workhorse fleet status` 查看节点；各节点须安装相同的引擎构建"
                    "（workhorse engine list）。",
                ),
            ) from error

    def _actor(self, one: Helping) -> "ray.actor.ActorHandle":
        # By its name: its id is another one after it was started again.
        return (
            ray.remote(Lender)
            .options(
                num_cpus=0,
                resources=dict(one.needs),
                max_restarts=0,
                label_selector={NAME: one.name},
            )
            .remote()
        )

    def end(self) -> None:
        """End them; safe more than once."""
        for actor in self._actors:
            ray.kill(actor)
        self._actors = []


def probed(node_id: str) -> tuple[Answering, "ray.actor.ActorHandle"]:
    """A node that waits for one probe; kill the actor when it has come."""
    there = NodeAffinitySchedulingStrategy(node_id, soft=False)
    actor = ray.remote(Lender).options(num_cpus=0, scheduling_strategy=there).remote()
    return ray.get(actor.answer_probe.remote(), timeout=START_WITHIN_S), actor


def end_probing(actor: "ray.actor.ActorHandle") -> None:
    """The node waits for no probe any more."""
    ray.kill(actor)
