"""A plan that spreads one model over named cards, by layers, rows or tensors. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from workhorse.knowledge.split_modes import split_rules
from workhorse.plan.checks import usable_gpus
from workhorse.plan.part import part_of
from workhorse.plan.placement import Placement, cards_of, place_as_told, ram_room
from workhorse.plan.placement_words import device_name
from workhorse.plan.planner import Course, decide_course, plan_of
from workhorse.plan.readers import readers_of
from workhorse.plan.several_lost import lost_copies
from workhorse.plan.speed import Experience, Reader, forecast, setup_for
from workhorse.plan.speed.transfers import CardLink, Shared, slowest_link
from workhorse.plan.wish import Wish
from workhorse.records import BudgetLine, EngineBuild, Gpu, Machine, Model, Plan, Rejected
from workhorse.text import Text

Within = Literal["one", "layer", "row", "tensor"]

# Tensor split was published to work from here on; on Volta it was reported to hang.
PROVEN_FROM = (7, 5)


@dataclass(frozen=True, slots=True)
class Spread:
    """A plan over several cards; `experimental`: why it is not taken unasked."""

    plan: Plan
    experimental: Text | None = None


def spread(
    machine: Machine,
    model: Model,
    build: EngineBuild,
    wish: Wish,
    history: Sequence[Experience],
    gpus: Sequence[int],
    mode: Within,
) -> Spread | Rejected:
    """The model on all of these cards, shared as `mode` says; Rejected says why that cannot be."""
    named = f"{mode} split over GPU {', '.join(map(str, gpus))}"
    rule = next((r for r in split_rules(mode) if r.refuses(build, model)), None)
    if rule is not None:
        return Rejected(named, rule.words)
    lost = lost_copies(machine, gpus, direct=mode == "tensor")
    if lost is not None:
        return Rejected(named, lost)
    heads = min((a.kv_heads for a in model.attention if a is not None), default=None)
    if mode == "tensor" and heads is not None and len(gpus) > heads:
        return Rejected(
            named,
            Text(
                f"The model has {heads} KV heads: some of {len(gpus)} cards would have none.",
                f"模型只有 {heads} 个 KV 头：{len(gpus)} 张卡中有些分不到。",
            ),
        )
    part = part_of(machine, gpus, tuple(node.index for node in machine.nodes))
    course = over_cards(part, model, build, wish, history)
    if course is None:
        return Rejected(
            named,
            Text(
                "The model with its context does not fit these cards whole.",
                "模型连同上下文放不进这些显卡。",
            ),
        )
    plan = plan_of(part, model, build, wish, history, course)
    if mode == "layer":
        return Spread(plan)
    kept = not (mode == "tensor" and (plan.kv_type_k != "f16" or not plan.flash_attention))
    if not kept:
        return Rejected(
            named,
            Text(
                "It needs flash attention and a KV cache that is not quantised; there is no room "
                "for that here.",
                "需要 flash attention 且 KV 不量化，当前条件不满足。",
            ),
        )
    cards = [card.gpu for card in course.placed.cards]
    link = slowest_link(cards, part.gpu_links, direct=False)
    heads = max((one.kv_heads for one in model.attention if one is not None), default=0)
    shared = Shared(mode, shares_of(course.placed), link, heads)  # type: ignore[arg-type]
    made = shared_plan(part, model, plan, course, shared, history)
    return Spread(made, unproven(mode, cards, link, model))


def over_cards(
    machine: Machine,
    model: Model,
    build: EngineBuild,
    wish: Wish,
    history: Sequence[Experience],
) -> Course | None:
    """The course with every layer on all cards of the machine; None when they have not the room."""
    course = decide_course(machine, model, build, wish, history)
    cards = sorted(
        cards_of(usable_gpus(machine, build), wish.headroom), key=lambda card: card.gpu.index
    )
    placed = place_as_told(
        model,
        course.placed.sizes,
        cards,
        ram_room(machine, wish.headroom),
        course.placed.layout,
        gpu_layers=model.layers + 1,
        expert_layers=0,
        lazy=course.placed.cut.lazy,
    )
    if placed is None or len(placed.cards) < 2:  # all but one of them are full
        return None
    readers = readers_of(machine, placed, course.cpu, course.pages)
    setup = setup_for(
        build,
        device_name(placed),
        huge_pages=course.pages.huge_pages,
        threads=course.cpu.threads,
    )
    return Course(placed, course.cpu, course.pages, readers, setup)


def shared_plan(
    machine: Machine,
    model: Model,
    plan: Plan,
    course: Course,
    shared: Shared,
    history: Sequence[Experience],
) -> Plan:
    """The plan of a layer split made one in which all cards compute each layer together."""
    percents = tuple(round(100 * share) for share in shared.shares.values())
    readers: Mapping[str, Reader] = (
        course.readers if isinstance(course.readers, Mapping) else {"": course.readers}
    )
    # What was measured of layers one after the other says nothing of this.
    setup = replace(course.setup, engine=f"{course.setup.engine}, {shared.mode} split")
    return replace(
        plan,
        split_mode=shared.mode,
        layer_split=percents,
        budget=shared_budget(plan.budget, shared),
        forecast=forecast(
            model,
            readers,
            kv_types=(plan.kv_type_k, plan.kv_type_v),
            setup=setup,
            history=history,
            placed=plan.placement,
            disk=machine.disks[0] if machine.disks else None,
            shared=shared,
        ),
    )


def shared_budget(lines: Sequence[BudgetLine], shared: Shared) -> tuple[BudgetLine, ...]:
    """The budget when each card holds its share of every matrix, and by tensors of the KV too.

    Buffers are as large as on one card; what is not on cards stays as it is.
    """
    divided = ("weights", "kv", "state") if shared.mode == "tensor" else ("weights",)
    whole: Counter[tuple[str, str | None]] = Counter()
    samples: dict[tuple[str, str | None], BudgetLine] = {}
    for line in lines:
        if line.device in shared.shares and line.item in divided:
            key = (line.item, line.part)
            whole[key] += line.n_bytes
            samples.setdefault(key, line)
    found = [
        replace(samples[key], device=device, n_bytes=round(n_bytes * share))
        for device, share in shared.shares.items()
        for key, n_bytes in whole.items()
    ]
    return (
        *found,
        *(line for line in lines if line.device not in shared.shares or line.item not in divided),
    )


def shares_of(placed: Placement) -> dict[str, float]:
    """The share of each card: by bandwidth, so that none waits, where each has the room for it;
    else by the room."""
    speeds = [card.gpu.rated_bandwidth_bytes_per_s or 0.0 for card in placed.cards]
    rooms = [float(card.room_bytes) for card in placed.cards]
    held = sum(line.n_bytes for line in placed.lines if line.device in placed.devices)
    for weights in (speeds, rooms):
        shares = [weight / (sum(weights) or 1.0) for weight in weights]
        if all(share * held <= room and share for share, room in zip(shares, rooms, strict=True)):
            break
    return dict(zip(placed.devices, shares, strict=True))


def unproven(mode: Within, cards: Sequence[Gpu], link: CardLink, model: Model) -> Text | None:
    """Why the way is not taken unasked; None where it may be."""
    if mode == "row":
        return Text(
            "Row split is deprecated: prompts are read several times more slowly (an owner lost "
            "77 %), and newer builds have dropped it.",
            "按行切分已被弃用：预填充会慢数倍（有用户损失 77 %），新版本已移除。",
        )
    old = [gpu for gpu in cards if (gpu.compute_capability or (0, 0)) < PROVEN_FROM]
    if old:
        return Text(
            f"Tensor split is experimental in llama.cpp and was reported to hang on cards like "
            f"{old[0].name} (issue 27366, August 2026). `workhorse tune` tries it.",
            f"llama.cpp 的张量切分仍属实验性，曾有 {old[0].name} 一类显卡卡死的报告"
            "（issue 27366，2026-08）。可用 `workhorse tune` 试验。",
        )
    if model.experts:
        return Text(
            "With experts tensor split was seen to be slower than layers (0.7 of their speed, "
            "llama.cpp pull request 19378).",
            "对专家模型，张量切分实测反而更慢（约为按层的 0.7，llama.cpp PR 19378）。",
        )
    if link.way != "nvlink":
        return Text(
            "Tensor split is experimental, and without NVLink the exchanges take "
            f"{link.exchange_s * 1e6:.0f} µs each. `workhorse tune` tries it and keeps it if it is "
            "faster and right.",
            f"张量切分属实验性；无 NVLink 时每次交换约 {link.exchange_s * 1e6:.0f} µs。"
            "`workhorse tune` 会试验，更快且正确才保留。",
        )
    return None
