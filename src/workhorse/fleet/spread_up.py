"""A model that no node has room for: which nodes hold it together, and what one replica is told."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from workhorse.config import Places, places
from workhorse.errors import EXIT_NO, AppError
from workhorse.fleet.fleet_plan import FleetPlan
from workhorse.fleet.kinds import NodeFound, runnable
from workhorse.fleet.link import Answering, measure
from workhorse.fleet.node_facts import Node, gpu_resource, numa_resource
from workhorse.fleet.plan_here import PlanRequest, WantedModel
from workhorse.fleet.rpc_server import RpcBuild, build_at
from workhorse.fleet.spec import Helping, ReplicaSpec
from workhorse.fleet.spread import Helper, Link, Spread, spread_over
from workhorse.fleet.spread_words import Alternative, advice, no_rpc
from workhorse.fleet.vllm_nodes import by_hand, launches
from workhorse.plan.cpus import allowed_cores
from workhorse.plan.placement import ram_room
from workhorse.records import EngineBuild, Machine
from workhorse.tell import Teller
from workhorse.text import Text
from workhorse.up.decide import Ask, look_around

VLLM_PORT = 8001
# Said before anything listens.
LOUD = Text(
    "WARNING: --trust-link: the nodes' RPC ports ask for no key. Whoever reaches them can read and "
    "write the memory of the engines there: prompts, answers, weights. Only on a network that "
    "nobody else is on.",
    "警告：--trust-link：节点的 RPC 端口没有任何认证。能访问这些端口的人可以读写引擎内存"
    "（提示词、回答、权重）。仅可用于没有他人接入的网络。",
)


@dataclass(frozen=True, slots=True)
class SpreadGround:
    """What a node brings: itself, its engine, and the programs by their hashes."""

    machine: Machine
    engine: EngineBuild
    build: RpcBuild


def ground_here(engine: str | None, where: Places | None = None) -> SpreadGround:
    """Runs on a node: what it brings. An AppError when its engine cannot share a model."""
    ask = Ask(engine=None if engine is None else Path(engine))
    found = look_around(ask, where or places())
    build = found.picked.build
    if "--rpc" not in build.knows:
        raise no_rpc(build)
    return SpreadGround(found.machine, build, build_at(Path(build.command[0])))


class Links(Protocol):
    """How links are measured; see `on_ray/lender.py`. Blocks."""

    def on_node(self, node: Node, function: Any, *args: Any, **kwargs: Any) -> Any:
        """What a function returns on a node."""
        ...


class Probing(Protocol):
    """A node that waits for one probe of its link."""

    def __call__(self, node_id: str) -> tuple[Answering, Any]:
        """Where it waits, and what ends it (`end`)."""
        ...


@dataclass(frozen=True, slots=True)
class Spreading:
    """What a spread is made of."""

    cluster: Links
    probing: Probing
    end_probing: Any
    tell: Teller


def too_large(wanted: Sequence[WantedModel], found: Sequence[NodeFound]) -> WantedModel | None:
    """The first file that no node can run alone; None when each has one."""
    runs = {option.file for one in found if one.plans is not None for option in runnable(one.plans)}
    return next((one for number, one in enumerate(wanted) if number not in runs), None)


async def spread_plan(
    how: Spreading,
    nodes: Sequence[Node],
    wanted: WantedModel,
    request: PlanRequest,
    alone: FleetPlan,
    *,
    found: Sequence[NodeFound] = (),
    skip_golden: bool = False,
) -> tuple[FleetPlan, Spread]:
    """The plan of one replica of `wanted` on several nodes; `alone`: what single nodes could do.

    The node with the most room is the main one; as few others help as have the room. Raises
    AppError: too few nodes with one build, or no room.
    """
    if wanted.stored is not None:
        raise vllm_by_hand(nodes, wanted, found)
    how.tell.stage(LOUD)
    living = [one for one in nodes if one.alive and not one.draining]
    grounds = await _grounds(how, living, request)
    main, *rest = sorted(grounds, key=lambda one: -_room(one[1], request))
    same = [one for one in rest if one[1].build.same_as(main[1].build)]
    if not same:
        raise _alone(main[0], [node for node, _ in rest])
    how.tell.stage(Text("measuring the links", "测量节点间链路"))
    helpers: list[Helper] = []
    for node, ground in same:
        link = await asyncio.to_thread(_link, how, main[0], node)
        helpers.append(Helper(node.id, node.name, ground.machine, link))
        try:
            spread = spread_over(
                wanted.model, main[1].machine, main[1].engine, helpers, request.wish
            )
        except AppError:
            if len(helpers) == len(same):
                raise
            continue
        break
    spec = spec_of(main[0], main[1], spread, {n.id: g for n, g in same}, wanted, alone.model_name)
    spec = replace(spec, skip_golden=skip_golden)
    how.tell.stage(advice(spread.forecast.decode_tokens_per_s, alternatives(alone)))
    return replace(alone, kinds=(), replicas=(spec,), spare=()), spread


def vllm_by_hand(
    nodes: Sequence[Node], wanted: WantedModel, found: Sequence[NodeFound]
) -> AppError:
    """The error for a checkpoint: vLLM can be started over machines, and not by the fleet."""
    plans = [
        engine.plan
        for one in found
        if one.plans is not None
        for option in one.plans.options
        for engine in option.engines
        if engine.plan.engine.engine == "vllm" and engine.plan.model_path == wanted.model.path
    ]
    if not plans:
        return AppError(
            Text(
                "A checkpoint is shared by several machines with vLLM alone.",
                "未量化的模型目录只能用 vLLM 跨机器运行。",
            ),
            Text(
                "Offer a GGUF file, or add --engine vllm to get vLLM's commands.",
                "请提供 GGUF 文件，或加 --engine vllm 以获得 vLLM 的启动命令。",
            ),
            exit_code=EXIT_NO,
        )
    addresses = [one.address for one in nodes if one.alive and not one.draining]
    starts = launches(plans[0], addresses, "tensor", heads=wanted.model.heads or 1, port=VLLM_PORT)
    lines = by_hand(starts)
    return AppError(
        Text(
            "The fleet does not start vLLM over several machines by itself: how fast the link has "
            "to be for that was never measured.",
            "集群不会自动跨机器启动 vLLM：所需的链路速度尚无实测。",
        ),
        Text(
            "By hand, one command a machine:\n" + "\n".join(one.en for one in lines),
            "可手动启动，每台机器一条命令：\n" + "\n".join(one.zh for one in lines),
        ),
        exit_code=EXIT_NO,
    )


async def _grounds(
    how: Spreading, nodes: Sequence[Node], request: PlanRequest
) -> list[tuple[Node, SpreadGround]]:
    """What each node brings; those without a fitting engine are told, and left out."""

    async def ask(node: Node) -> SpreadGround | AppError:
        try:
            found: SpreadGround = await asyncio.to_thread(
                how.cluster.on_node, node, ground_here, request.engine
            )
        except AppError as error:
            return error
        return found

    answers = await asyncio.gather(*map(ask, nodes))
    found = []
    last: AppError | None = None
    for node, answer in zip(nodes, answers, strict=True):
        if isinstance(answer, AppError):
            last = answer
            how.tell.stage(Text(f"{node.name}: {answer.what.en}", f"{node.name}：{answer.what.zh}"))
        else:
            found.append((node, answer))
    if not found and last is not None:
        raise last
    if len(found) < 2:
        raise _alone(found[0][0] if found else None, [])
    return found


def _room(ground: SpreadGround, request: PlanRequest) -> int:
    return ram_room(ground.machine, request.wish.headroom) or 0


def _link(how: Spreading, main: Node, helper: Node) -> Link:
    """What is measured from the main node to a helper."""
    place, actor = how.probing(helper.id)
    try:
        found: Link = how.cluster.on_node(main, measure, place, own=main.address)
    finally:
        how.end_probing(actor)
    return found


def spec_of(
    node: Node,
    ground: SpreadGround,
    spread: Spread,
    helpers: dict[str, SpreadGround],
    wanted: WantedModel,
    model_name: str,
) -> ReplicaSpec:
    """What the replica is told: its own node, its helpers, what each claims."""
    return ReplicaSpec(
        name=_route_name(node.name),
        model_name=model_name,
        plan=spread.plan,
        weights=wanted.weights[0] if wanted.weights else None,
        needs=_needs(ground.machine, spread.plan.gpu_indexes),
        kind=node.kind,
        node_id=node.id,
        beside=wanted.weights[1:],
        helpers=tuple(
            Helping(
                share.node_id,
                share.name,
                share.cards,
                share.threads,
                _needs(helpers[share.node_id].machine, share.cards),
            )
            for share in spread.shares
        ),
    )


def _needs(machine: Machine, cards: Sequence[int]) -> dict[str, float]:
    """All memory nodes, and the cards in use: nothing else works beside it."""
    nodes = tuple(sorted(allowed_cores(machine))) or (0,)
    names = [*map(gpu_resource, cards), *map(numa_resource, nodes)]
    return dict.fromkeys(names, 1.0)


def _route_name(name: str) -> str:
    plain = "".join(c if c.isascii() and c.isalnum() else "-" for c in name.lower())
    return f"{plain.strip('-')[:40] or 'node'}-spread"


def alternatives(plan: FleetPlan) -> tuple[Alternative, ...]:
    """What single nodes could do with the other files."""
    found = []
    for kind in plan.kinds:
        speeds = [
            one.plan.forecast.decode_tokens_per_s.value
            for one in kind.option.engines
            if one.plan.forecast.decode_tokens_per_s is not None
        ]
        if speeds:
            found.append(
                Alternative(kind.option.name, kind.nodes[0], max(speeds), kind.option.bits_a_weight)
            )
    return tuple(found)


def _alone(main: Node | None, others: Sequence[Node]) -> AppError:
    name = main.name if main is not None else "—"
    listed = ", ".join(one.name for one in others)
    return AppError(
        Text(
            f"No other node has the engine build of {name}, byte for byte"
            f"{f' ({listed} have another)' if listed else ''}.",
            f"没有其他节点具有与 {name} 完全相同的引擎构建"
            f"{f'（{listed} 的构建不同）' if listed else ''}。",
        ),
        Text(
            "Export that build on one machine and install it on the others: workhorse engine "
            "install FILE",
            "请从一台机器导出该构建，并在其他机器安装：workhorse engine install 文件",
        ),
        exit_code=EXIT_NO,
    )
