"""The tables of a fleet's plan: what each kind of node does, each replica, and what rests."""

from collections.abc import Sequence

from workhorse.cli.show import console, print_table
from workhorse.fleet.fleet_plan import Candidate, FleetPlan, KindPlan
from workhorse.fleet.replica_speeds import planned_speeds
from workhorse.fleet.spec import ReplicaSpec
from workhorse.records import Plan
from workhorse.text import Language, Text
from workhorse.units import UNKNOWN, show_bytes, show_rate, three_digits


def print_fleet_plan(plan: FleetPlan, language: Language) -> None:
    """What would run where and why, what would not, and what all of it promises."""
    if plan.kinds:
        print_kinds(plan, language)
        print_reasons(plan, language)
    if plan.replicas:
        print_replicas(plan, language)
    if plan.not_used:
        print_table(
            Text("Nodes that are not used", "未使用的节点"),
            (Text("node", "节点"), Text("why", "原因"), Text("what would help", "解决办法")),
            (
                (one.node, one.why.in_language(language), one.remedy.in_language(language))
                for one in plan.not_used
            ),
            language,
        )
    if plan.spare:
        count = len(plan.spare)
        words = Text(
            f"{count} more {'place is' if count == 1 else 'places are'} free for further replicas.",
            f"另有 {count} 个位置可供扩展副本。",
        )
        console().print(words.in_language(language))
    total = Text(
        f"{len(plan.replicas)} replicas, {plan.slots} requests at a time, "
        f"{show_rate(plan.total_tokens_per_s)} in all as forecast.",
        f"共 {len(plan.replicas)} 个副本，同时处理 {plan.slots} 个请求，"
        f"预测总吞吐 {show_rate(plan.total_tokens_per_s)}。",
    )
    console().print(total.in_language(language))


def print_kinds(plan: FleetPlan, language: Language) -> None:
    """One row a kind of node."""
    print_table(
        Text(f"{plan.model_name} on this fleet", f"{plan.model_name} 在本集群上的方案"),
        (
            Text("kind", "类型"),
            Text("nodes", "节点"),
            Text("file", "文件"),
            Text("engines a node", "每节点引擎"),
            Text("slots × context", "槽位 × 上下文"),
            Text("tok/s alone", "单路 tok/s"),
            Text("each, all slots", "满载每路"),
            Text("a node in all", "每节点总计"),
        ),
        map(kind_row, plan.kinds),
        language,
    )


def kind_row(kind: KindPlan) -> tuple[str, ...]:
    """What a box of this kind does."""
    option = kind.option
    first = option.engines[0].plan
    alone = max((speed for one in option.engines if (speed := alone_of(one))), default=None)
    return (
        kind.kind,
        f"{len(kind.nodes)}: {', '.join(kind.nodes)}",
        f"{option.name} ({show_bytes(option.weight_bytes)})",
        f"{len(option.engines)} × {first.engine.version}",
        slots_and_context([one.plan for one in option.engines]),
        UNKNOWN if alone is None else three_digits(alone),
        show_rate(option.stream_tokens_per_s),
        show_rate(option.total_tokens_per_s),
    )


def slots_and_context(plans: Sequence[Plan]) -> str:
    """`16 × 8192`, as many of them as differ."""
    return ", ".join(dict.fromkeys(f"{one.slots} × {one.context_tokens}" for one in plans))


def alone_of(one: Candidate) -> float | None:
    """Decode speed of one stream alone."""
    speeds = planned_speeds(one.plan)
    return None if speeds is None else 1 / speeds.step_s[0]


def print_reasons(plan: FleetPlan, language: Language) -> None:
    """Why each kind has its file, and why not another."""
    rows = [
        (kind.kind, reason.value, reason.because.in_language(language))
        for kind in plan.kinds
        for reason in kind.reasons
    ]
    no = Text("not", "未选").in_language(language)
    rows += [
        (kind.kind, f"{no} {one.option}", one.because.in_language(language))
        for kind in plan.kinds
        for one in kind.rejected
    ]
    print_table(
        Text("Why", "原因"),
        (Text("kind", "类型"), Text("file", "文件"), Text("because", "原因")),
        rows,
        language,
    )


def print_replicas(plan: FleetPlan, language: Language) -> None:
    """One row a replica: its name, what it claims of its node."""
    print_table(
        Text("Replicas", "副本"),
        (
            Text("replica", "副本"),
            Text("device", "设备"),
            Text("claims", "占用资源"),
            Text("slots × context", "槽位 × 上下文"),
            Text("weights", "权重"),
        ),
        (replica_row(one, language) for one in plan.replicas),
        language,
    )


def replica_row(one: ReplicaSpec, language: Language) -> tuple[str, ...]:
    """What one replica is."""
    there = Text("are on the node", "已在节点上").in_language(language)
    return (
        one.name,
        one.plan.device,
        ", ".join(one.needs),
        slots_and_context([one.plan]),
        there if one.weights is None else one.weights.file_name,
    )
