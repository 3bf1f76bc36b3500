"""Which file each kind of node gets, which of its engines start, and which nodes rest. Pure.

Equal boxes get equal files, so that answers differ by kind at most; each node keeps the plan that
was made on it.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from workhorse import __version__
from workhorse.fleet.fleet_plan import (
    READING_TOKENS_PER_S,
    FleetPlan,
    KindPlan,
    NodePlans,
    NotUsed,
    Option,
    total_of,
)
from workhorse.fleet.node_facts import VERSION, Node
from workhorse.fleet.spec import READY_TIMEOUT_S, ReplicaSpec, WeightsSource
from workhorse.plan.wish import Wish, slots_for
from workhorse.records import Reason, Rejected
from workhorse.text import Text
from workhorse.units import show_rate

# A stream slower than this holds a slot for minutes and its reader leaves: such a box does not
# help a chat. Our own judgement.
SLOWEST_TOKENS_PER_S = 1.5
# Eight bits a weight lose no more than F16 does (knowledge/quant_losses.toml): more are no gain.
BITS_ENOUGH = 8.0
NAME_LONGEST = 40  # of a node, in the names of its replicas


@dataclass(frozen=True, slots=True)
class NodeFound:
    """A node and what it can do; `plans` None: it could not be asked, for the reason `why`."""

    node: Node
    plans: NodePlans | None
    why: Text | None = None


@dataclass(frozen=True, slots=True)
class Choosing:
    """What the fleet is to serve."""

    model_name: str
    wish: Wish = field(default_factory=Wish)
    # For each file, in the order of the request: what a node fetches, the main file first.
    weights: tuple[tuple[WeightsSource, ...], ...] = ()
    replicas: int | None = None  # None: as many as there are places
    ready_timeout_s: float = READY_TIMEOUT_S
    skip_golden: bool = False


def choose(found: Sequence[NodeFound], asked: Choosing) -> FleetPlan:
    """The plan for a fleet of these nodes: a file and engines for each kind, what rests and why."""
    resting = [why for one in found if (why := unusable(one)) is not None]
    out = {one.node for one in resting}
    by_kind: dict[str, list[NodeFound]] = {}
    for one in found:
        if one.node.name not in out:
            by_kind.setdefault(one.node.kind, []).append(one)
    kinds: list[KindPlan] = []
    replicas: list[ReplicaSpec] = []
    names = route_names([one.node for one in found])
    for kind, nodes in by_kind.items():
        plan, specs, slow = plan_kind(kind, nodes, asked, names)
        resting += slow
        if plan is not None:
            kinds.append(plan)
            replicas += specs
    kinds.sort(key=lambda one: -(one.option.total_tokens_per_s or 0.0))
    replicas.sort(key=lambda one: -(total_of(one.plan) or 0.0))
    most = len(replicas) if asked.replicas is None else asked.replicas
    return FleetPlan(
        asked.model_name,
        tuple(kinds),
        tuple(replicas[:most]),
        tuple(resting),
        tuple(replicas[most:]),
    )


def plan_kind(
    kind: str, nodes: Sequence[NodeFound], asked: Choosing, names: Mapping[str, str]
) -> tuple[KindPlan | None, list[ReplicaSpec], list[NotUsed]]:
    """What equal boxes do: their plan, their replicas, and those of them that rest."""
    plans = [(one.node, one.plans) for one in nodes if one.plans is not None]
    # The first node speaks for its kind: boxes of a kind differ in what they learned at most.
    options = {option.file: option for option in runnable(plans[0][1])}
    best, reasons, rejected = best_option(tuple(options.values()), asked.wish)
    slowest = best.stream_tokens_per_s
    if asked.wish.purpose != "batch" and slowest is not None and slowest < SLOWEST_TOKENS_PER_S:
        return None, [], [too_slow(node, slowest) for node, _ in plans]
    specs: list[ReplicaSpec] = []
    resting: list[NotUsed] = []
    used: list[str] = []
    for node, its in plans:
        option = next((one for one in runnable(its) if one.file == best.file), None)
        if option is None:
            resting.append(differs(node, best))
            continue
        used.append(node.name)
        specs += replicas_of(node, option, asked, names[node.id])
    return KindPlan(kind, tuple(used), best, reasons, rejected), specs, resting


def replicas_of(node: Node, option: Option, asked: Choosing, name: str) -> list[ReplicaSpec]:
    """What each engine of a node is told."""
    weights = asked.weights[option.file] if asked.weights else ()
    return [
        ReplicaSpec(
            name=f"{name}-{one.place.name}",
            model_name=asked.model_name,
            plan=one.plan,
            weights=weights[0] if weights else None,
            needs=one.needs,
            kind=node.kind,
            node_id=node.id,
            ready_timeout_s=asked.ready_timeout_s,
            skip_golden=asked.skip_golden,
            beside=weights[1:],
        )
        for one in option.engines
    ]


def best_option(
    options: Sequence[Option], wish: Wish
) -> tuple[Option, tuple[Reason, ...], tuple[Rejected, ...]]:
    """The file for a kind of node, why, and why not the others.

    For people: the one that loses least of those that write at reading speed in every slot, with
    all slots that were wished for, and that lie on the cards whole where there are any. For
    documents: the one that writes most in all.
    """
    batch = wish.purpose == "batch"

    def rank(one: Option) -> tuple[bool, bool, int, float, float]:
        total = one.total_tokens_per_s or 0.0
        bits = min(one.bits_a_weight, BITS_ENOUGH)
        slots = min(slots_for(wish), *(engine.plan.slots for engine in one.engines))
        reads = batch or (one.stream_tokens_per_s or 0.0) >= READING_TOKENS_PER_S
        best = (total, bits) if batch or not reads else (bits, total)
        return (reads, one.fit != "partly", slots, *best)

    best = max(options, key=rank)
    rejected = tuple(
        Rejected(one.name, why_not(one, best, wish)) for one in options if one is not best
    )
    return (
        best,
        (Reason("quant", best.quantisation, why_this(best, options, batch=batch)),),
        rejected,
    )


def why_this(best: Option, options: Sequence[Option], *, batch: bool) -> Text:
    """Why a kind of node gets this file."""
    speed = show_rate(best.stream_tokens_per_s)
    if len(options) == 1:
        return Text("The only file that runs here.", "唯一能在此运行的文件。")
    if batch:
        total = show_rate(best.total_tokens_per_s)
        return Text(f"Most in all: {total}.", f"总吞吐最高：{total}。")
    if (best.stream_tokens_per_s or 0.0) < READING_TOKENS_PER_S:
        return Text(
            f"None is as fast as people read with all slots at work; this is the fastest: {speed} "
            "for each stream.",
            f"全部槽位工作时都达不到阅读速度；该文件最快：每路 {speed}。",
        )
    return Text(
        f"Loses least of those that write as fast as people read: {speed} for each stream with "
        "all slots at work.",
        f"在达到阅读速度的文件中质量损失最小：全部槽位工作时每路 {speed}。",
    )


def why_not(one: Option, best: Option, wish: Wish) -> Text:
    """Why a kind of node does not get this file."""
    speed = show_rate(one.stream_tokens_per_s)
    slots = min(engine.plan.slots for engine in one.engines)
    if wish.purpose != "batch" and (one.stream_tokens_per_s or 0.0) < READING_TOKENS_PER_S:
        return Text(
            f"{speed} for each stream with all slots at work: slower than people read.",
            f"全部槽位工作时每路 {speed}：慢于阅读速度。",
        )
    if one.fit == "partly" and best.fit == "cards":
        return Text(
            "Lies in main memory in part: prompts would be read many times slower.",
            "部分权重在内存中：读取提示词会慢很多倍。",
        )
    if slots < slots_for(wish):
        return Text(
            f"Leaves room for {slots} of {slots_for(wish)} slots.",
            f"剩余空间只够 {slots} 个槽位（需要 {slots_for(wish)} 个）。",
        )
    if min(one.bits_a_weight, BITS_ENOUGH) < min(best.bits_a_weight, BITS_ENOUGH):
        bits = f"{one.bits_a_weight:.1f}"
        return Text(
            f"{bits} bits a weight: loses more, and the better one is fast enough.",
            f"每权重 {bits} 位：损失更大，而更好的文件已足够快。",
        )
    total = show_rate(one.total_tokens_per_s)
    return Text(f"Slower in all: {total}, no better.", f"总吞吐较低：{total}，且质量不更好。")


def runnable(plans: NodePlans) -> tuple[Option, ...]:
    """The options of which every engine can run."""
    return tuple(
        one
        for one in plans.options
        if not any(engine.plan.verdict.blocked for engine in one.engines)
    )


def unusable(one: NodeFound) -> NotUsed | None:
    """Why nothing can run on a node; None when something can."""
    node, version = one.node, one.node.labels.get(VERSION)
    if not node.alive:
        return resting(
            node,
            Text("It is gone.", "节点已离线。"),
            Text("Start it: it joins by itself.", "请启动该节点，它会自动加入。"),
        )
    if node.draining:
        return resting(
            node,
            Text("It is being drained.", "节点正在排空。"),
            Text(
                "`workhorse fleet drain --help` tells how to take it back.",
                "恢复方法见 `workhorse fleet drain --help`。",
            ),
        )
    if version is not None and version != __version__:
        return resting(
            node,
            Text(
                f"It runs workhorse {version}, the head {__version__}.",
                f"该节点运行 workhorse {version}，主节点为 {__version__}。",
            ),
            Text("Install the head's version there.", "请在该节点安装与主节点相同的版本。"),
        )
    if one.plans is None:
        why = one.why or Text("It could not be asked.", "无法查询该节点。")
        return resting(node, why, Text("Ask again.", "请重试。"))
    return None if runnable(one.plans) else resting(node, *why_nothing_runs(one.plans))


def why_nothing_runs(plans: NodePlans) -> tuple[Text, Text]:
    """Why none of the files runs on a node, and what would help."""
    blockers = [
        finding
        for option in plans.options
        for engine in option.engines
        for finding in engine.plan.verdict.findings
        if finding.level == "blocker"
    ]
    if blockers:  # of the last file that was offered, the smallest as a rule
        return blockers[-1].seen, blockers[-1].remedy
    return (
        next(iter(plans.refused), Text("No file was offered.", "没有可用的文件。")),
        Text(
            "`workhorse doctor` on that node says more.",
            "在该节点运行 `workhorse doctor` 查看详情。",
        ),
    )


def resting(node: Node, why: Text, remedy: Text) -> NotUsed:
    """A node that gets no replica."""
    return NotUsed(node.name, node.kind, why, remedy)


def too_slow(node: Node, tokens_per_s: float) -> NotUsed:
    """A node whose streams nobody would wait for."""
    speed = show_rate(tokens_per_s)
    return resting(
        node,
        Text(
            f"{speed} for each stream at best: nobody waits for that in a chat.",
            f"每路最多 {speed}：对话中无人愿意等待。",
        ),
        Text(
            "Offer a smaller quant or model, or serve documents (--for batch).",
            "请提供更小的量化或模型，或用于批处理（--for batch）。",
        ),
    )


def differs(node: Node, best: Option) -> NotUsed:
    """A node that cannot run what its kind runs."""
    return resting(
        node,
        Text(
            f"{best.name}, which the others of its kind run, does not run here.",
            f"同类节点运行的 {best.name} 无法在此运行。",
        ),
        Text("`workhorse plan` on that node says why.", "在该节点运行 `workhorse plan` 查看原因。"),
    )


def route_names(nodes: Iterable[Node]) -> dict[str, str]:
    """A name for each node that is a part of a route, by the node's id; no two are equal."""
    names: dict[str, str] = {}
    for node in nodes:
        slug = re.sub(r"[^a-z0-9]+", "-", node.name.lower()).strip("-")[:NAME_LONGEST].strip("-")
        name, number = slug or "node", 1
        while name in names.values():
            number += 1
            name = f"{slug or 'node'}-{number}"
        names[node.id] = name
    return names
