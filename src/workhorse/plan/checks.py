"""What cannot work, and what works worse than the user may expect, before anything starts."""

from collections.abc import Sequence

from workhorse.records import EngineBuild, Finding, Gpu, Machine, Model
from workhorse.text import Text, same


def check_cpu(machine: Machine, build: EngineBuild) -> tuple[Finding, ...]:
    """A blocker when the CPU lacks instructions that the build uses without asking."""
    missing = sorted(set(build.needs_flags) - set(machine.cpu.flags))
    if not missing or not machine.cpu.flags:
        return ()
    flags, name = ", ".join(missing), machine.cpu.name or "CPU"
    return (
        Finding(
            code="cpu.instructions_missing",
            level="blocker",
            seen=Text(f"{name} has no {flags}.", f"{name} 不支持 {flags}。"),
            why=Text(
                f"The engine {build.engine} {build.version} uses them without asking and would "
                "die of an illegal instruction.",
                f"引擎 {build.engine} {build.version} 会直接使用这些指令，运行时会因非法指令崩溃。",
            ),
            remedy=Text(
                "Make an engine for this CPU on that machine; `up` then takes it.",
                "请在该机器上构建适合其 CPU 的引擎，之后 `up` 会自动使用。",
            ),
            source=build.source,
            command="workhorse engine build",
        ),
    )


def check_gpu_code(machine: Machine, build: EngineBuild) -> tuple[Finding, ...]:
    """A warning when a GPU is here that the build has no code for: it would idle in silence."""
    if not machine.gpus:
        return ()
    gpu = machine.gpus[0]
    if usable_gpus(machine, build):
        return ()
    built_for = ", ".join(build.gpu_architectures or ())
    listed = Text(built_for, built_for) if built_for else Text("no GPU", "没有任何显卡")
    return (
        Finding(
            code="gpu.no_code",
            level="warning",
            seen=Text(
                f"{gpu.name} is here, but the engine can use: {listed.en}.",
                f"检测到 {gpu.name}，但引擎可用的是：{listed.zh}。",
            ),
            why=Text(
                "The model will run on the CPU, many times slower than on the card.",
                "模型将在 CPU 上运行，比显卡慢很多倍。",
            ),
            remedy=Text(
                f"Pass a llama-server built with CUDA for {architecture(gpu) or 'this card'}.",
                f"请指定一个为 {architecture(gpu) or '该显卡'} 编译的 CUDA 版 llama-server。",
            ),
            source=build.source,
            command="workhorse up --engine /path/to/llama-server",
        ),
    )


def check_attention(build: EngineBuild, *, on_cards: bool) -> tuple[Finding, ...]:
    """A warning when flash attention stays off because nobody saw it right on a card."""
    if build.flash_attention or not on_cards:
        return ()
    return (
        Finding(
            code="engine.attention-unproven",
            level="warning",
            seen=Text(
                f"Flash attention of {build.version} has not been compared with the CPU's on this "
                "card; it stays off.",
                f"{build.version} 的 flash attention 尚未在本卡上与 CPU 结果对比，因此保持关闭。",
            ),
            why=Text(
                "A compiler once made code of it that writes garbage. Without it prompts are read "
                "more slowly and the KV cache is not quantised.",
                "曾有编译器生成的代码输出乱码。关闭后提示词处理较慢，KV 缓存也不能量化。",
            ),
            remedy=Text("Have the card prove it.", "请在显卡上验证。"),
            source="manifest.json: flash_attention; proof.json",
            command="workhorse engine verify",
        ),
    )


def architecture(gpu: Gpu) -> str | None:
    """The GPU's code name for compilers, such as `sm_70`; `None` when not known."""
    if gpu.compute_capability is None:
        return None
    major, minor = gpu.compute_capability
    return f"sm_{major}{minor}"


def usable_gpus(machine: Machine, build: EngineBuild) -> tuple[Gpu, ...]:
    """GPUs that the build can use; all of them when it does not say what it was built for."""
    if build.gpu_architectures is None:
        return machine.gpus
    return tuple(gpu for gpu in machine.gpus if architecture(gpu) in build.gpu_architectures)


def check_model(model: Model, context_asked_tokens: int | None) -> tuple[Finding, ...]:
    """Warnings about the model itself: no chat template, a context longer than it was trained."""
    found = []
    trained = model.context_trained_tokens
    if context_asked_tokens and trained and context_asked_tokens > trained:
        found.append(
            Finding(
                code="model.context_beyond_training",
                level="warning",
                seen=Text(
                    f"{context_asked_tokens} tokens of context asked, trained for {trained}.",
                    f"要求上下文 {context_asked_tokens}，模型训练长度仅 {trained}。",
                ),
                why=Text(
                    "Answers degrade beyond the trained length.", "超出训练长度后回答质量下降。"
                ),
                remedy=Text(f"Use --context {trained}.", f"使用 --context {trained}。"),
                source=f"{model.name}: context_length",
            )
        )
    if model.chat_template is None and not model.pooling and model.format == "gguf":
        found.append(
            Finding(
                code="model.no_chat_template",
                level="note",
                seen=Text("The model file has no chat template.", "模型文件没有对话模板。"),
                why=Text(
                    "It is a base model; chat requests fall back to a generic template.",
                    "这可能是基座模型，对话请求将使用通用模板。",
                ),
                remedy=Text(
                    "Use /v1/completions, or an instruct model.",
                    "请使用 /v1/completions 或换用指令微调模型。",
                ),
                source="tokenizer.chat_template",
            )
        )
    return tuple(found)


def check_ranking(model: Model, build: EngineBuild) -> tuple[Finding, ...]:
    """A blocker for a model that ranks on a build that cannot be told to rank."""
    if not model.ranks or "--reranking" in build.knows:
        return ()
    return (
        Finding(
            code="engine.no_reranking",
            level="blocker",
            seen=Text(
                f"{model.name} ranks documents; {build.engine} {build.version} has no --reranking.",
                f"{model.name} 是重排序模型；{build.engine} {build.version} 没有 --reranking。",
            ),
            why=Text("It would refuse /v1/rerank.", "它会拒绝 /v1/rerank 请求。"),
            remedy=Text("Use a newer llama.cpp.", "请使用较新的 llama.cpp。"),
            source="pooling_type; llama-server --help",
            command="workhorse engine build",
        ),
    )


# Troubles of a card that computes all the same; the doctor tells them.
STILL_WORKS = ("errors", "inforom", "unlicensed")


def check_gpu_access(machine: Machine) -> tuple[Finding, ...]:
    """A warning when cards are there that the plan has to do without."""
    troubles = [t for t in machine.gpu_troubles if t.code not in STILL_WORKS]
    if not troubles:
        return ()
    cards = {trouble.pci_address: trouble for trouble in troubles if trouble.pci_address}
    which = ", ".join(f"{place} ({cards[place].pci_id or '?'})" for place in list(cards)[:8])
    said = "; ".join(dict.fromkeys(trouble.said for trouble in troubles if trouble.said))
    named = (f": {which}", f"：{which}") if which else ("", "")
    words = (f" ({said})", f"（{said}）") if said else ("", "")
    return (
        Finding(
            code="gpu.not_usable",
            level="warning",
            seen=Text(
                f"An NVIDIA card cannot be used{named[0]}{words[0]}.",
                f"有 NVIDIA 显卡无法使用{named[1]}{words[1]}。",
            ),
            why=Text("The plan does without it.", "本方案不使用它。"),
            remedy=Text(
                "Run `workhorse doctor`: it tells the cause and what to do.",
                "请运行 `workhorse doctor`，查看原因和解决办法。",
            ),
            source="the driver's answer and the PCI bus, by probe",
            command="workhorse doctor",
            evidence=tuple(trouble.code for trouble in troubles[:8]),
        ),
    )


def doubts_as_findings(doubts: Sequence[Text]) -> tuple[Finding, ...]:
    """What the probe could not read, as notes."""
    return tuple(
        Finding(
            code="probe.doubt",
            level="note",
            seen=doubt,
            why=Text("The plan may be less exact for it.", "方案的准确度可能因此降低。"),
            remedy=Text(
                "Run `workhorse probe` on the machine itself to see it all.",
                "在该机器上运行 `workhorse probe` 查看详情。",
            ),
            source=same("probe").en,
        )
        for doubt in doubts
    )
