"""The tables of `plan`: a comparison of models, and where every figure comes from."""

from collections.abc import Sequence

from workhorse.cli.show import print_table
from workhorse.cli.words import BASES, DEVICES, ITEMS
from workhorse.plan.compare import Compared
from workhorse.plan.speed import explain
from workhorse.records import Estimate, Placed, Plan
from workhorse.text import Language, Text, same
from workhorse.units import (
    UNKNOWN,
    show_bytes,
    show_duration,
    show_range,
    show_share,
    three_digits,
)

FITS = {
    "cards": Text("whole on", "全部放入"),
    "partly": Text("partly on", "部分放入"),
    "memory": Text("in", "放入"),
    "no": Text("does not fit", "放不下"),
}
GROUPS = {
    "layers": Text("layers", "层"),
    "experts": Text("experts of layers", "专家（层）"),
    "output": Text("output", "输出"),
    "embedding": Text("embedding", "嵌入"),
    "tables": Text("tables", "按行表"),
}
ALONE = Text("the one device", "唯一设备")


def print_comparison(rows: Sequence[Compared], language: Language) -> None:
    """One row a model: fits where, how fast, with what context, at what loss."""
    head = (
        Text("model", "模型"),
        Text("weights", "权重"),
        Text("fits", "位置"),
        Text("decode tok/s", "解码 tok/s"),
        Text("prefill tok/s", "预填充 tok/s"),
        Text("context", "上下文"),
        Text("quality lost", "质量损失"),
    )
    print_table(
        Text("Compared", "对比"),
        head,
        (
            (
                row.name,
                f"{show_bytes(row.weight_bytes)} ({row.bits_a_weight:.1f} bit)",
                fits_where(row, language),
                show_speed(row.decode_tokens_per_s) if row.fit != "no" else UNKNOWN,
                show_speed(row.prefill_tokens_per_s) if row.fit != "no" else UNKNOWN,
                f"{row.slots} × {row.context_tokens} {row.kv_type}" if row.fit != "no" else UNKNOWN,
                UNKNOWN if row.quality is None else row.quality.in_language(language),
            )
            for row in rows
        ),
        language,
    )


def fits_where(row: Compared, language: Language) -> str:
    """Where a model fits, in words."""
    words = FITS[row.fit].in_language(language)
    if row.fit == "no":
        return words
    devices = row.devices
    if row.fit == "memory":
        devices = DEVICES["RAM"].in_language(language)
    return f"{words} {devices}"


def show_speed(estimate: Estimate | None) -> str:
    """A speed with its interval; `—` when unknown."""
    if estimate is None:
        return UNKNOWN
    return show_range(estimate.value, estimate.low, estimate.high, three_digits)


def device_name(device: str, language: Language) -> str:
    """A device as tables call it."""
    return DEVICES.get(device, same(device)).in_language(language)


def print_placement(plan: Plan, language: Language) -> None:
    """One row a group of tensors: how much, and which device holds it."""
    print_table(
        Text("Placement", "放置"),
        (Text("group", "分组"), Text("device", "设备"), Text("size", "大小")),
        (
            (group_name(group, language), place_name(group, language), show_bytes(group.n_bytes))
            for group in plan.placement
        ),
        language,
    )


def group_name(group: Placed, language: Language) -> str:
    """A group with its layers."""
    words = GROUPS[group.group].in_language(language)
    if group.first_layer is None:
        return words
    return f"{words} {group.first_layer}–{group.last_layer}"


def place_name(group: Placed, language: Language) -> str:
    """A device, and of main memory the nodes."""
    name = device_name(group.device, language)
    if not group.memory_nodes:
        return name
    nodes = ", ".join(map(str, group.memory_nodes))
    if len(group.memory_nodes) == 1:
        return name + Text(f", node {nodes}", f"，节点 {nodes}").in_language(language)
    return name + Text(f", nodes {nodes} in turn", f"，节点 {nodes} 交错").in_language(language)


def print_explained(plan: Plan, language: Language) -> None:
    """Every term of memory and of speed with its source."""
    head = (
        Text("device", "设备"), Text("item", "项目"), Text("size", "大小"),
        Text("basis", "依据"), Text("from", "来源"),
    )  # fmt: skip
    print_table(
        Text("Memory, term by term", "内存明细"),
        head,
        (
            (
                device_name(line.device, language),
                ITEMS[line.item].in_language(language),
                f"{line.n_bytes:,} B",
                BASES[line.basis].in_language(language),
                line.source.in_language(language),
            )
            for line in plan.budget
        ),
        language,
    )
    terms = explain(plan.forecast)
    if not terms:
        return
    print_table(
        Text("One token, term by term", "单个词元耗时明细"),
        (
            Text("device", "设备"),
            Text("what", "项目"),
            Text("time", "时间"),
            Text("share", "占比"),
            Text("from", "来源"),
        ),
        (
            (
                ALONE.in_language(language)
                if term.device == "alone"
                else device_name(term.device, language),
                term.what.in_language(language),
                show_duration(term.seconds),
                show_share(term.share),
                term.source.in_language(language),
            )
            for term in terms
        ),
        language,
    )
