"""What speaks against a plan for vLLM or LMDeploy, before anything starts. Pure."""

from typing import Protocol

from workhorse.knowledge.fp16_overflow import overflows_of
from workhorse.plan.checks import (
    check_cpu,
    check_gpu_access,
    check_gpu_code,
    check_model,
    doubts_as_findings,
)
from workhorse.plan.placement import Card
from workhorse.plan.wish import Wish
from workhorse.records import EngineBuild, Finding, Machine, Model, Pool, Stored
from workhorse.text import Text
from workhorse.units import show_bytes

# The first compute capability that vLLM's kernels for packed weights are for; the rest run on every
# card that it has code for (get_min_capability of vllm 0.9.2 to 0.33.0, compat/vllm.toml, 2026-11).
FIRST_CARD = {
    "awq": (7, 5),
    "compressed-tensors": (7, 5),
    "fp8": (7, 5),
    "modelopt": (7, 5),
    "nvfp4": (7, 5),
    "mxfp4": (8, 0),
}
# Of the models that TurboMind knows, those whose windows it keeps (turbomind/models of 0.18.0).
WINDOWS_IN_TURBOMIND = {"GptOssForCausalLM"}


class Filled(Protocol):
    """What was found to fit, or the smallest that does not."""

    @property
    def fits(self) -> bool:
        """False: even this does not fit."""
        ...

    @property
    def weight_bytes(self) -> int:
        """The weights."""
        ...

    @property
    def pool_bytes(self) -> int:
        """The pool."""
        ...

    @property
    def compute_bytes(self) -> int:
        """Scratch."""
        ...


def findings(
    machine: Machine,
    model: Model,
    stored: Stored,
    build: EngineBuild,
    wish: Wish,
    card: Card | None,
    fit: Filled,
    pool: Pool,
) -> tuple[Finding, ...]:
    """Everything worth knowing, blockers among it."""
    return (
        *check_cpu(machine, build),
        *(check_gpu_code(machine, build) if card is None else ()),
        *check_gpu_access(machine),
        *check_class(stored, build),
        *check_card(build, card),
        *check_embeddings(model, build),
        *check_windows(model, stored, build),
        *check_packing(stored, build, card),
        *check_overflow(model, build, card, pool),
        *check_model(model, wish.context_tokens),
        *doubts_as_findings(machine.doubts),
        *check_room(machine, model, wish, card, fit),
    )


def check_class(stored: Stored, build: EngineBuild) -> tuple[Finding, ...]:
    """A blocker when the engine says that it does not know this kind of model.

    LMDeploy would take its slow engine for it without being asked; vLLM would refuse to start.
    """
    known = build.model_classes
    if known is None or not stored.classes or set(stored.classes) & set(known):
        return ()
    name = stored.classes[0]
    return (
        Finding(
            code="engine.unknown_model_class",
            level="blocker",
            seen=Text(f"{build.version} does not know {name}.", f"{build.version} 不支持 {name}。"),
            why=Text(
                "LMDeploy would quietly take its slow PyTorch engine, vLLM would not start.",
                "LMDeploy 会悄悄改用缓慢的 PyTorch 引擎，vLLM 则无法启动。",
            ),
            remedy=Text(
                "Serve a GGUF file of this model with llama.cpp, or install a newer environment.",
                "请用 llama.cpp 运行其 GGUF 文件，或安装更新的环境。",
            ),
            source="the engine's own list of models, asked when it was installed",
            evidence=(f"architectures: {', '.join(stored.classes)}",),
        ),
    )


def check_card(build: EngineBuild, card: Card | None) -> tuple[Finding, ...]:
    """A blocker for LMDeploy, or a vLLM for cards, without a card that it can use."""
    if card is not None or (build.engine == "vllm" and build.gpu_architectures == ()):
        return ()
    return (
        Finding(
            code="engine.needs_card",
            level="blocker",
            seen=Text(
                f"{build.version} computes on cards only, and there is none that it can use.",
                f"{build.version} 只能在显卡上运行，而本机没有可用的显卡。",
            ),
            why=Text("It would end at the start.", "它会在启动时退出。"),
            remedy=Text(
                "On a CPU take llama.cpp, or the environment for the CPU.",
                "在 CPU 上请用 llama.cpp，或安装 CPU 环境。",
            ),
            source=build.source,
            command="workhorse engine install vllm --for cpu",
        ),
    )


def check_embeddings(model: Model, build: EngineBuild) -> tuple[Finding, ...]:
    """A blocker for an embedding model on LMDeploy, whose TurboMind gives no embeddings."""
    if build.engine != "lmdeploy" or not model.pooling:
        return ()
    return (
        Finding(
            code="engine.no_embeddings",
            level="blocker",
            seen=Text(
                f"{model.name} is an embedding model, and TurboMind gives no embeddings.",
                f"{model.name} 是嵌入模型，而 TurboMind 不支持嵌入。",
            ),
            why=Text("Every request would be refused.", "所有请求都会被拒绝。"),
            remedy=Text(
                "Take vLLM, or a GGUF file of it with llama.cpp.",
                "请用 vLLM，或用 llama.cpp 运行其 GGUF 文件。",
            ),
            source="lmdeploy 0.18.0 serve/openai/endpoints/auxiliary.py, read 2026-11",
        ),
    )


def check_windows(model: Model, stored: Stored, build: EngineBuild) -> tuple[Finding, ...]:
    """A warning for sliding windows on LMDeploy: TurboMind attends to the whole context."""
    windows = {a.window_tokens for a in model.attention if a is not None and a.window_tokens}
    if build.engine != "lmdeploy" or not windows or set(stored.classes) & WINDOWS_IN_TURBOMIND:
        return ()
    return (
        Finding(
            code="engine.no_windows",
            level="warning",
            seen=Text(
                f"{model.name} attends to the last {min(windows)} tokens in some layers; TurboMind "
                "attends to all of them.",
                f"{model.name} 的部分层只关注最近 {min(windows)} 个词元；TurboMind 会关注全部。",
            ),
            why=Text(
                "Answers to longer prompts are not those of the model.",
                "较长提示词的回答将与模型本身不同。",
            ),
            remedy=Text(
                "Take vLLM or llama.cpp, or a --context within the window.",
                "请用 vLLM 或 llama.cpp，或将 --context 设在窗口之内。",
            ),
            source="lmdeploy 0.18.0 turbomind/models/utils.py; docs/supported_models.md",
        ),
    )


def check_packing(stored: Stored, build: EngineBuild, card: Card | None) -> tuple[Finding, ...]:
    """A blocker for weights that the engine's kernels refuse on this card."""
    capability = card.gpu.compute_capability if card else None
    since = FIRST_CARD.get(stored.method or "")
    if build.engine != "vllm" or capability is None or since is None or capability >= since:
        return ()
    return (
        Finding(
            code="engine.weights_refused",
            level="blocker",
            seen=Text(
                f"The weights are packed as {stored.method}, which vLLM refuses on this card.",
                f"权重格式为 {stored.method}，vLLM 在该显卡上不支持。",
            ),
            why=Text(
                f"Its kernels for them begin at compute capability {since[0]}.{since[1]}.",
                f"其内核要求计算能力 {since[0]}.{since[1]} 起。",
            ),
            remedy=Text(
                "LMDeploy computes with AWQ and MXFP4 on Volta and Turing; or take a GPTQ or "
                "float16 version.",
                "LMDeploy 在 Volta、Turing 上支持 AWQ 和 MXFP4；或改用 GPTQ、float16 版本。",
            ),
            source="compat/vllm.toml",
            command="workhorse engine install lmdeploy",
        ),
    )


def check_overflow(
    model: Model, build: EngineBuild, card: Card | None, pool: Pool
) -> tuple[Finding, ...]:
    """A warning for a model that is known to leave the range of float16."""
    capability = card.gpu.compute_capability if card else None
    if pool.dtype != "float16" or capability is None:
        return ()
    return tuple(
        Finding(
            code=f"fp16.{report.id}",
            level="blocker" if report.refused else "note" if report.handled else "warning",
            seen=Text(
                f"{model.name} is known to overflow in float16 ({report.engine}).",
                f"{model.name} 已知在 float16 下会溢出（{report.engine}）。",
            ),
            why=report.cause,
            remedy=report.remedy,
            source=report.source,
        )
        for report in overflows_of(model.architecture, model.name)
        if report.engine in ("any", build.engine) and report.on(capability)
    )


def check_room(
    machine: Machine, model: Model, wish: Wish, card: Card | None, fit: Filled
) -> tuple[Finding, ...]:
    """The blocker for a model that does not fit."""
    if fit.fits:
        return ()
    need = show_bytes(fit.weight_bytes + fit.pool_bytes + fit.compute_bytes)
    where = Text("main memory has", "内存")
    if card is not None:
        where = Text(f"{card.gpu.name} has", card.gpu.name)
    elif len(machine.nodes) > 1:
        where = Text("the memory node that it binds itself to has", "它所绑定的内存节点")
    asked = wish.context_tokens is not None
    return (
        Finding(
            code="memory.does_not_fit",
            level="blocker",
            seen=Text(
                f"{model.name} needs {need} beside the engine itself; {where.en} less to give.",
                f"{model.name} 除引擎本身外还需 {need}，{where.zh}不足。",
            ),
            why=Text(
                "Such an engine holds the whole model on one device.",
                "该引擎需将整个模型放在一个设备上。",
            ),
            remedy=Text(
                "Ask for a smaller --context."
                if asked
                else "Serve a GGUF file of it with llama.cpp, "
                "which spreads a model over cards and main memory, or take 4-bit weights.",
                "请减小 --context。"
                if asked
                else "请用 llama.cpp 运行其 GGUF 文件（可分布到多块显卡与内存），或使用 4 位权重。",
            ),
            source="plan/pooled.py",
        ),
    )
