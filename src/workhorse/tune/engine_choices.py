"""What can be tried of the engine: kernels, caches, batches, drafts, builds, files. Pure.

Gains in `seen` are the largest that were measured or published, and order the variables.
"""

from workhorse.knowledge.llamacpp_flags import spell
from workhorse.plan.checks import usable_gpus
from workhorse.plan.planner import TWO_BATCHES_S
from workhorse.plan.wish import quantised_kv_fits
from workhorse.text import Text
from workhorse.tune.offer import Around, NotHere, Offer, sorted_numbers
from workhorse.tune.settings import KEYS, OFF

# Types that lose too little for anybody to have measured it, and one whose loss is measured here.
KV_TYPES = ("q8_0", "f16")
LOSSY_KV_TYPE = "q4_0"
# On a CPU 14 % faster than f16 with flash attention where either change alone gave nothing
# (docs/measured/2026-12-01-tune-real.md: a 1.1B shape, 768 tokens deep).
QUANTISED_KEYS = KEYS + "q8_0"
# A 1.1B Q4_0, 256 tokens deep, on two CPUs with AMX and a build by clang: 13.6 tok/s with flash
# attention, 22 to 24 without; gcc's build there 14 to 17 either way (2026-12).
FLASH_ATTENTION_SEEN = 1.65
BATCHES_TOKENS = (32, 64, 128, 256, 512, 1024, 2048)
SLOTS_MAX = 64
# Kinds of guessing that need no second model, the number of tokens where it can be told
# (common/speculative.cpp of llama.cpp, commit 0c1e570, 2026-10-01: MTP takes it from
# --spec-draft-n-max, n-grams have sizes of their own).
MTP_TOKENS = (1, 2, 3, 4)
NGRAM_KINDS = ("ngram-simple", "ngram-mod")


def flash_attention(around: Around) -> Offer | NotHere:
    """On or off; on old cards it can cost most of the speed with some models."""
    plan, build = around.plan, around.plan.engine
    if any(spell("flash attention", v, build.knows, build.forms) is None for v in ("on", OFF)):
        return NotHere(
            "flash attention", Text("This build cannot be told.", "该构建无法设置此项。")
        )
    if plan.gpu_indexes and not build.flash_attention:
        return NotHere(
            "flash attention",
            Text(
                "This build has not shown on a card yet that its flash attention is right.",
                "该构建尚未在显卡上证明其 flash attention 结果正确。",
            ),
        )
    if plan.kv_type_v != "f16":
        return NotHere(
            "flash attention",
            Text(
                f"A {plan.kv_type_v} KV cache cannot do without it.",
                f"{plan.kv_type_v} 的 KV 缓存离不开它。",
            ),
        )
    because = Text(
        "It cost 80 % of decode with one model on a V100, 40 % on a CPU with AMX, and gives some "
        "percent elsewhere.",
        "曾有模型在 V100 上因它损失 80 % 解码速度，在带 AMX 的 CPU 上损失 40 %，"
        "其他情况可快百分之几。",
    )
    now = "on" if plan.flash_attention else OFF
    return Offer("flash attention", now, (OFF, "on"), False, because, FLASH_ATTENTION_SEEN, False)


def kv(around: Around) -> Offer | NotHere:
    """A smaller KV type reads less, and unpacks more."""
    plan = around.plan
    if not quantised_kv_fits(around.model):
        return NotHere(
            "kv",
            Text(
                "A quantised KV cache needs heads of whole blocks.",
                "量化 KV 缓存要求注意力头大小为整块。",
            ),
        )
    now = plan.kv_type_k if plan.kv_type_k == plan.kv_type_v else KEYS + plan.kv_type_k
    values = {now, "f16", QUANTISED_KEYS}
    # Values need flash attention to be quantised, keys do not (llama.cpp 0c1e570, 2026-10-01).
    if plan.flash_attention:
        values |= set(KV_TYPES)
        if around.given.constraints.kl_divergence is not None:
            values.add(LOSSY_KV_TYPE)
    because = Text(
        "A smaller type reads less of a long context, and takes time to unpack.",
        "更小的类型在长上下文时读取更少，但解包需要时间。",
    )
    return Offer("kv", now, tuple(sorted(values)), False, because, 1.05, around.decodes)


def batch(around: Around) -> Offer | NotHere:
    """Tokens of a prompt between two looks at the other streams."""
    return batches(around, "batch", around.plan.batch_tokens)


def micro_batch(around: Around) -> Offer | NotHere:
    """Tokens computed at once."""
    return batches(around, "micro-batch", around.plan.micro_batch_tokens)


def batches(around: Around, name: str, now: int) -> Offer | NotHere:
    """Sizes with which an abandoned prompt still frees its slot in time."""
    if around.given.goal == "decode":
        return NotHere(
            name,
            Text("One stream is decoded token by token.", "单路解码逐词元进行，与批次无关。"),
        )
    if around.plan.embeddings:
        return NotHere(name, Text("The whole input is one batch.", "整个输入作为一个批次。"))
    room = around.plan.forecast.prefill_tokens_per_s.value * TWO_BATCHES_S / 2
    values = {size for size in BATCHES_TOKENS if size <= max(room, now)}
    if name == "micro-batch":
        values = {size for size in values if size <= around.plan.batch_tokens}
    else:
        values = {size for size in values if size >= around.plan.micro_batch_tokens}
    if len(values | {now}) < 2:
        return NotHere(
            name,
            Text(
                "A larger one would keep the slot of an abandoned prompt for more than a second.",
                "再大则客户端断开后槽位要超过一秒才能释放。",
            ),
        )
    because = Text(
        "Caches hold small pieces, kernels like large ones: 5 to 13 % of prefill were seen.",
        "小批次利于缓存，大批次利于计算核：预填充实测相差 5–13 %。",
    )
    return Offer(name, str(now), sorted_numbers(values, now), True, because, 1.13, False)


def slots(around: Around) -> Offer | NotHere:
    """More requests at a time share each read of the weights."""
    if around.given.goal != "total":
        return NotHere(
            "slots",
            Text(
                "One stream is no faster with more slots beside it.",
                "单路速度不会因为更多槽位而提高。",
            ),
        )
    least, now = max(1, around.given.constraints.slots), around.plan.slots
    values = {n for n in (1, 2, 4, 8, 16, 32, SLOTS_MAX) if least <= n <= now * 8}
    because = Text(
        "More streams share one read of the weights, and each gets less.",
        "更多并发共用一次权重读取，但单路变慢。",
    )
    return Offer("slots", str(now), sorted_numbers(values, now), True, because, 2.0, True)


def drafts(around: Around) -> Offer | NotHere:
    """Tokens guessed ahead: by the model's own draft layers, or from what was written before."""
    plan, build = around.plan, around.plan.engine
    if around.given.goal != "decode":
        return NotHere(
            "drafts",
            Text(
                "With many streams at a time a guess takes the place of another one's token.",
                "并发时，草拟会占用其他请求的计算。",
            ),
        )
    if spell("draft kind", "ngram-mod", build.knows, build.forms) is None or plan.embeddings:
        return NotHere("drafts", Text("This build cannot draft.", "该构建不支持草拟。"))
    now = OFF
    if plan.drafts is not None:
        now = " ".join(filter(None, (plan.drafts.kind, str(plan.drafts.tokens or ""))))
    values = [OFF, *NGRAM_KINDS]
    if around.model.draft_layers:
        values += [f"draft-mtp {n}" for n in MTP_TOKENS]
    if now not in values:
        values.append(now)
    because = Text(
        "One read of the weights checks several guessed tokens: much where texts repeat, nothing "
        "in free talk.",
        "一次权重读取可验证多个草拟词元：重复性文本收益大，自由对话几乎没有。",
    )
    return Offer("drafts", now, tuple(values), False, because, 1.5, False)


def engine(around: Around) -> Offer | NotHere:
    """Other builds of the engine that can run here."""
    machine, own = around.given.machine, around.plan.engine
    flags = set(machine.cpu.flags)
    fitting = [
        build.version
        for build in (around.given.plan.engine, *around.given.builds)
        if build.engine == own.engine
        and set(build.needs_flags) <= flags
        and (not around.given.plan.gpu_indexes or usable_gpus(machine, build))
    ]
    values = tuple(dict.fromkeys((own.version, *fitting)))
    if len(values) < 2:
        return NotHere(
            "engine",
            Text("No other engine build that runs here is at hand.", "没有其他可用的引擎构建。"),
        )
    because = Text(
        "A build for this very CPU or card was 10 % faster at decode and prefill.",
        "为本机 CPU 或显卡专门构建的版本曾快约 10 %。",
    )
    return Offer("engine", own.version, values, False, because, 1.1, False)


def quant(around: Around) -> Offer | NotHere:
    """Other files of the same model that the user named."""
    files = (around.given.model, *around.given.files)
    values = tuple(dict.fromkeys(model.path for model in files))
    if len(values) < 2:
        return NotHere(
            "quant", Text("No other file of this model was named.", "未指定该模型的其他文件。")
        )
    because = Text(
        "Fewer bytes a token, at the price of quality.", "每个词元读取更少字节，以质量为代价。"
    )
    return Offer("quant", around.plan.model_path, values, False, because, 2.0, True)
