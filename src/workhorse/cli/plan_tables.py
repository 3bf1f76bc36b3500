"""The tables of `plan`: a comparison of models, and where every figure comes from."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from workhorse.cli.show import print_table
from workhorse.plan.compare import Compared
from workhorse.plan.memory import Layout, layer_kv_bytes
from workhorse.plan.speed import explain
from workhorse.plan.words import BASES, DEVICES, ITEMS, PARTS
from workhorse.records import Attention, BudgetLine, Estimate, Model, Placed, Plan
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


def print_kept(model: Model, plan: Plan, language: Language) -> None:
    """What the layers keep between tokens, by kind of layer: how many, how much for a slot."""
    layout = Layout(plan.context_tokens, 1, plan.kv_type_k, plan.kv_type_v)
    layout = replace(layout, micro_batch_tokens=plan.micro_batch_tokens)
    kinds = Counter(attention for attention in model.attention if attention is not None)
    rows = [
        (
            kind_name(kind, language),
            str(count),
            show_bytes(layer_kv_bytes(kind, layout)),
            show_bytes(count * layer_kv_bytes(kind, layout) * plan.slots),
        )
        for kind, count in kinds.items()
    ]
    states = Counter(state for state in model.recurrent if state is not None)
    for state, count in states.items():
        size = state.rolling_bytes + state.state_bytes
        words = Text("recurrent state, F32", "循环状态，F32").in_language(language)
        rows.append((words, str(count), show_bytes(size), show_bytes(size * count * plan.slots)))
    if rows:
        print_table(
            Text("Kept between tokens", "词元间保留"),
            (
                Text("kind of layer", "层类型"),
                Text("layers", "层数"),
                Text("a layer and slot", "每层每槽"),
                Text("all", "合计"),
            ),
            rows,
            language,
        )


def kind_name(kind: Attention, language: Language) -> str:
    """What a layer keeps per token, and of how many."""
    heads = f"{kind.kv_heads} × ({kind.key_size} + {kind.value_size})"
    if kind.window_tokens is not None:
        heads += f", {kind.window_tokens}"
    for side in kind.side:
        heads += f" + {side.key_size + side.value_size} / {side.tokens_a_cell}"
    return Text(f"KV of {heads}", f"KV {heads}").in_language(language)


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
                f"{show_bytes(row.weight_bytes)} ({row.quantisation}, {row.bits_a_weight:.1f} bit)",
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


def item_name(line: BudgetLine, language: Language) -> str:
    """An item as tables call it, with the part of the weights that it is."""
    item = ITEMS[line.item].in_language(language)
    if line.part is None:
        return item
    colon = Text(": ", "：").in_language(language)
    return f"{item}{colon}{PARTS[line.part].in_language(language)}"


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


def print_explained(model: Model, plan: Plan, language: Language) -> None:
    """Every term of memory and of speed with its source."""
    print_kept(model, plan, language)
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
                item_name(line, language),
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
