"""What a user should know of where a plan puts the weights."""

from collections.abc import Sequence

from workhorse.plan.memory import device_bytes
from workhorse.plan.placement import Card, Placement, cards_of
from workhorse.plan.placement_words import fitting_quant
from workhorse.plan.wish import Wish
from workhorse.records import Finding, Gpu, Model
from workhorse.text import Text
from workhorse.units import show_bytes, show_share

# Beyond it a card has no room for what a driver, a display or a longer prompt takes on the side.
FULL_SHARE = 0.9


def check_fit(
    cards: Sequence[Card], ram_bytes: int | None, model: Model, wish: Wish, placed: Placement
) -> tuple[Finding, ...]:
    """The blocker for a model that does not fit even with the smallest settings.

    It names a quant that would fit main memory, alone or with the cards, where there is one.
    """
    if placed.fits:
        return ()
    needed, rooms = device_bytes(placed.lines, "RAM"), [ram_bytes or 0]
    if cards and sum(card.room_bytes for card in cards) + rooms[0] < needed:
        rooms += [card.room_bytes for card in cards]
        together = Text("main memory and cards together have", "内存与显卡合计")
    else:
        together = Text("main memory has", "内存")
    need, room = show_bytes(needed), show_bytes(sum(rooms))
    return (
        Finding(
            code="memory.does_not_fit",
            level="blocker",
            seen=Text(
                f"{model.name} needs {need} with the smallest settings; {together.en} {room} to "
                "give.",
                f"{model.name} 按最小设置也需 {need}，{together.zh}仅可用 {room}。",
            ),
            why=Text(
                "It would be killed, or swap until it crawls.", "会被系统终止，或因换页而极慢。"
            ),
            remedy=_what_would_fit(needed, rooms, model, wish, placed),
            source="plan/placement.py",
        ),
    )


def _what_would_fit(
    needed: int, rooms: Sequence[int], model: Model, wish: Wish, placed: Placement
) -> Text:
    """A smaller quant, or less of what was asked where no quant makes room for that."""
    better = fitting_quant(model, placed.sizes.weights, rooms, wish.least_bits)
    weights = sum(line.n_bytes for line in placed.lines if line.item == "weights")
    rest = needed - weights + (weights if better is None else better[1])
    asked = [
        option
        for option, value in (("--context", wish.context_tokens), ("--slots", wish.slots))
        if value is not None
    ]
    if asked and rest > sum(rooms) >= weights:
        return Text(
            f"Ask for less: a smaller {' or '.join(asked)}. The weights alone would fit.",
            f"请减小 {' 或 '.join(asked)}：仅权重本身放得下。",
        )
    if better is not None:
        size = show_bytes(better[1])
        return Text(
            f"Use {better[0]} of this model (about {size}), or free memory.",
            f"请使用该模型的 {better[0]} 量化（约 {size}），或释放内存。",
        )
    return Text(
        f"Free memory or use a smaller model: no quant of at least {wish.least_bits:g} bits fits.",
        f"请释放内存或换更小的模型：不低于 {wish.least_bits:g} 位的量化都放不下。",
    )


def check_gpu_room(
    cards: Sequence[Gpu], model: Model, wish: Wish, placed: Placement
) -> tuple[Finding, ...]:
    """A warning when weights lie in main memory although the build could use a card."""
    on_cards = bool(placed.cards) and not placed.cut.weights_in_ram
    if not cards or on_cards or not placed.fits:
        return ()
    free = [gpu.memory_free_bytes or gpu.memory_total_bytes or 0 for gpu in cards]
    rooms = [card.room_bytes for card in cards_of(cards, wish.headroom)]
    better = fitting_quant(model, placed.sizes.weights, rooms, wish.least_bits)
    size, free_words = show_bytes(model.weight_bytes), show_bytes(sum(free))
    names = ", ".join(dict.fromkeys(gpu.name for gpu in cards))
    seen = Text(
        f"{model.name} has {size} of weights; {names}: {free_words} free.",
        f"{model.name} 权重 {size}；{names} 空闲 {free_words}。",
    )
    if better is None:
        remedy = Text(
            f"No quant of at least {wish.least_bits:g} bits fits the cards whole: a smaller model, "
            "another card, or less --headroom puts more on the cards.",
            f"不低于 {wish.least_bits:g} 位的量化都放不下：可换更小的模型、加显卡，"
            "或降低 --headroom。",
        )
    else:
        remedy = Text(
            f"{better[0]} of this model (about {show_bytes(better[1])}) would fit the cards.",
            f"该模型的 {better[0]} 量化（约 {show_bytes(better[1])}）可放入显卡。",
        )
    if placed.cards:
        code, why = "gpu.model_partly_in_ram", _partly(placed)
    else:
        code, why = (
            "gpu.model_too_large",
            Text(
                f"With KV cache, buffers and {show_share(wish.headroom)} of headroom it does not "
                "fit: it will run on the CPU, many times slower.",
                f"加上 KV 缓存、缓冲区和 {show_share(wish.headroom)} 余量后放不下，"
                "将在 CPU 上运行，慢很多倍。",
            ),
        )
    return (Finding(code, "warning", seen, why, remedy, "plan/placement.py"),)


def _partly(placed: Placement) -> Text:
    held = show_bytes(
        sum(
            line.n_bytes for line in placed.lines if line.device == "RAM" and line.item == "weights"
        )
    )
    return Text(
        f"{held} of weights lie in main memory: what a token reads of them comes at its "
        "bandwidth, many times below a card's.",
        f"有 {held} 权重在内存中：每个词元要以内存带宽读取其中一部分，比显存慢很多倍。",
    )


def check_fullness(placed: Placement) -> tuple[Finding, ...]:
    """A warning for each card of which more than nine tenths will be in use."""
    found = []
    for card, device in zip(placed.cards, placed.devices, strict=True):
        total = card.gpu.memory_total_bytes or 0
        free = card.gpu.memory_free_bytes
        others = 0 if free is None else max(0, total - free)
        share = (others + device_bytes(placed.lines, device)) / max(total, 1)
        if share > FULL_SHARE:
            found.append(_nearly_full(card.gpu, share))
    return tuple(found)


def _nearly_full(gpu: Gpu, share: float) -> Finding:
    used = show_share(share)
    return Finding(
        code="gpu.nearly_full",
        level="warning",
        seen=Text(
            f"{used} of GPU {gpu.index} ({gpu.name}) will be in use.",
            f"GPU {gpu.index}（{gpu.name}）的显存将使用 {used}。",
        ),
        why=Text(
            "A display, another process or a driver's reserve can end the service with an "
            "out-of-memory error.",
            "显示输出、其他进程或驱动预留都可能让服务因显存不足而退出。",
        ),
        remedy=Text(
            "Leave the default headroom of 20 %, or use --slots 1 or a smaller --context.",
            "请保留默认的 20 % 余量，或用 --slots 1、更小的 --context。",
        ),
        source="plan/placement.py",
    )
