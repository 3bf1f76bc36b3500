"""What can be tried of the division between cards and main memory. Pure.

Gains in `seen` are the largest that were measured or published, and order the variables.
"""

from workhorse.knowledge.llamacpp_flags import CARD_SAMPLING
from workhorse.knowledge.split_modes import split_rules
from workhorse.text import Text
from workhorse.tune.offer import Around, NotHere, Offer, sorted_numbers
from workhorse.tune.settings import CARD, HOST, on_one_card

SAMPLING_SEEN = 1.38
NO_CARD = Text("No card is in use.", "未使用显卡。")


def gpu_layers(around: Around) -> Offer | NotHere:
    """More or fewer layers on the cards, where not all of them are there."""
    plan = around.plan
    if not plan.gpu_indexes:
        return NotHere("gpu layers", NO_CARD)
    if not around.reads_ram:
        return NotHere("gpu layers", Text("All layers are on cards.", "全部层都在显卡上。"))
    values = steps(plan.gpu_layers, plan.layers)
    because = Text(
        "Each layer on a card is read many times faster than in main memory.",
        "显卡上的每一层都比内存中快许多倍。",
    )
    now = plan.gpu_layers
    return Offer("gpu layers", str(now), sorted_numbers(values, now), True, because, 1.5, True)


def expert_layers(around: Around) -> Offer | NotHere:
    """More or fewer layers whose experts lie in main memory."""
    plan, model = around.plan, around.model
    if not plan.gpu_indexes:
        return NotHere("expert layers", NO_CARD)
    if not model.experts or "--n-cpu-moe" not in plan.engine.knows:
        return NotHere(
            "expert layers",
            Text("The model has no experts to move.", "模型没有可移动的专家层。")
            if not model.experts
            else Text("This build cannot move them.", "该构建无法移动专家层。"),
        )
    if not around.reads_ram:
        return NotHere("expert layers", Text("All experts are on cards.", "全部专家都在显卡上。"))
    now = plan.expert_layers_in_ram
    values = steps(now, model.layers)
    because = Text(
        "A token reads few experts: in main memory they cost least of all weights.",
        "每个词元只读少数专家：放在内存时代价最小。",
    )
    return Offer("expert layers", str(now), sorted_numbers(values, now), True, because, 1.5, True)


def sampling(around: Around) -> Offer | NotHere:
    """Where tokens are chosen: one stream after the other on the host, or on the card."""
    plan = around.plan
    if not plan.gpu_indexes:
        return NotHere("sampling", NO_CARD)
    if CARD_SAMPLING not in plan.engine.knows or plan.embeddings:
        return NotHere("sampling", Text("This build cannot be told.", "该构建无法设置此项。"))
    if not on_one_card(plan):
        return NotHere(
            "sampling",
            Text(
                "It has been seen to work with one card that holds all layers.",
                "仅在单卡容纳全部层时验证过。",
            ),
        )
    because = Text(
        "The host looks through the whole vocabulary for each stream in turn: a 7B with 152,000 "
        "tokens gave 38 % more with 16 streams on an H200, 135M with 49,000 gave 12 % less.",
        "主机要逐路扫描整个词表：H200 上词表 15.2 万的 7B 模型 16 路并发改由显卡采样快 38 %，"
        "词表 4.9 万的 135M 模型反而慢 12 %。",
    )
    now = CARD if plan.card_sampling else HOST
    return Offer("sampling", now, (HOST, CARD), False, because, SAMPLING_SEEN, False)


def split(around: Around) -> Offer | NotHere:
    """Layer after layer over the cards, or each layer over all of them."""
    plan = around.plan
    if len(plan.gpu_indexes) < 2:
        return NotHere("split", Text("One card, or none, is in use.", "仅使用一张显卡或未使用。"))
    if "--split-mode" not in plan.engine.knows:
        return NotHere("split", Text("This build cannot be told.", "该构建无法设置此项。"))
    refusals = {mode: refused(around, mode) for mode in ("row", "tensor")}
    modes = tuple(mode for mode, words in refusals.items() if words is None)
    if not modes and refusals["tensor"] is not None:
        return NotHere("split", refusals["tensor"])
    because = Text(
        "All cards read at once, and wait for each other over the link (1.4 and 1.7 times the "
        "speed of layers were published, 2026-08; less where the link is slow).",
        "各卡同时读取，但要经链路互相等待（公开数据为按层的 1.4 与 1.7 倍，2026-08；"
        "链路慢则更少）。",
    )
    return Offer("split", plan.split_mode, ("layer", *modes), False, because, 1.4, False)


def refused(around: Around, mode: str) -> Text | None:
    """Why the engine would not share this model so; None when it would."""
    plan = around.plan
    rule = next((r for r in split_rules(mode) if r.refuses(plan.engine, around.model)), None)
    if rule is not None:
        return rule.words
    if mode == "tensor" and (plan.kv_type_k != "f16" or not plan.flash_attention):
        return Text(
            "Tensor split needs flash attention and a KV cache that is not quantised.",
            "张量切分需要 flash attention 且 KV 不量化。",
        )
    return None


def steps(now: int, most: int) -> set[int]:
    """Numbers near `now` and farther ones, up to `most`."""
    return {n for step in (1, 2, 4, 8) for n in (now - step, now + step) if 0 <= n <= most} | {now}
