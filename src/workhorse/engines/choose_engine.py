"""Which engine serves a model here, and why not the others. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from workhorse.engines.adapter import adapter_named
from workhorse.knowledge.engine_environments import environments
from workhorse.plan.checks import usable_gpus
from workhorse.plan.placement import Card
from workhorse.plan.pooled_checks import check_class, check_packing
from workhorse.plan.speed import Experience
from workhorse.records import EngineBuild, Machine, Reason, Rejected, Stored
from workhorse.text import Text
from workhorse.units import show_rate

Format = Literal["gguf", "safetensors"]

# From so many requests at a time on, an engine that computes them together in one pool is worth
# its minute of start (one H200, llama.cpp Q4_K_M 7B: 8 clients get 2.7 times what one gets,
# measured 2026-11; vLLM and TurboMind are published with ten times and more).
MANY_USERS = 4
AMPERE = (8, 0)


@dataclass(frozen=True, slots=True)
class Contender:
    """An engine that is here, by the name that `--engine` takes."""

    name: str
    build: EngineBuild


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be served: the forms in which the model is here, for how many at a time."""

    formats: tuple[Format, ...]
    users: int
    model_names: tuple[str, ...] = ()  # under which it was measured
    stored: Stored | None = None


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """The engine to take (None: none that is here can), why, and why not the others."""

    chosen: Contender | None
    reasons: tuple[Reason, ...]
    rejected: tuple[Rejected, ...]


def choose_engine(
    contenders: Sequence[Contender],
    wanted: Wanted,
    machine: Machine,
    history: Sequence[Experience] = (),
) -> EngineChoice:
    """The engine that was measured as the fastest, else the one whose kind fits best.

    llama.cpp for GGUF files and few users, TurboMind for many on cards before Ampere, vLLM for
    many on newer ones.
    """
    fitting: list[Contender] = []
    rejected: list[Rejected] = []
    for one in contenders:
        why = unfit(one.build, wanted, machine)
        if why is None:
            fitting.append(one)
        else:
            rejected.append(Rejected(one.name, why))
    if not fitting:
        return EngineChoice(None, (), tuple(rejected))
    speeds = {one.name: measured(one.build, wanted, history) for one in fitting}
    known = [one for one in fitting if speeds[one.name] is not None]
    if len(known) > 1:
        best = max(known, key=lambda one: speeds[one.name] or 0.0)
        because = Text(
            f"The fastest that was measured here with this model: {show_rate(speeds[best.name])} "
            "for one request.",
            f"本机实测该模型最快：单请求 {show_rate(speeds[best.name])}。",
        )
    else:
        best = max(fitting, key=lambda one: (suits(one.build, wanted, machine), -rank(one)))
        because = kind_words(best.build, wanted, machine)
    for one in fitting:
        if one is not best:
            rejected.append(Rejected(one.name, lost_words(one, best, speeds)))
    return EngineChoice(best, (Reason("engine", best.name, because),), tuple(rejected))


def unfit(build: EngineBuild, wanted: Wanted, machine: Machine) -> Text | None:
    """Why this engine cannot serve the model here; None: it can."""
    adapter = adapter_named(build.engine)
    if not set(adapter.skills.formats) & set(wanted.formats):
        reads = ", ".join(adapter.skills.formats)
        return Text(f"{adapter.title} reads {reads} files.", f"{adapter.title} 读取 {reads} 文件。")
    if build.kind != "environment":
        return None
    cards = usable_gpus(machine, build) if build.gpu_architectures else ()
    if build.gpu_architectures != () and not cards:
        return Text("It has code for cards that are not here.", "其代码适用的显卡不在本机。")
    card = Card(cards[0], 0) if cards else None
    for found in (
        *(check_class(wanted.stored, build) if wanted.stored else ()),
        *(check_packing(wanted.stored, build, card) if wanted.stored else ()),
    ):
        return found.seen
    return None


def measured(build: EngineBuild, wanted: Wanted, history: Sequence[Experience]) -> float | None:
    """Tokens a second of one request that this engine reached here with the model; None: never."""
    found = [
        one.measured_tokens_per_s
        for one in history
        if one.model_name in wanted.model_names
        and one.setup.engine.startswith(f"{build.engine} {build.version},")
    ]
    return found[0] if found else None  # the newest comes first


def suits(build: EngineBuild, wanted: Wanted, machine: Machine) -> int:
    """How well the kind of engine fits, the best the highest."""
    if build.engine == "llama.cpp":
        if machine.gpus and not usable_gpus(machine, build):
            return 0  # it would leave the card idle
        return 2 if wanted.users < MANY_USERS or not machine.gpus else 0
    if not build.gpu_architectures:
        return 0 if machine.gpus else 1
    old = best_capability(machine) < AMPERE
    first = "lmdeploy" if old else "vllm"
    return 3 if build.engine == first else 1


def rank(one: Contender) -> int:
    """The place of an environment among those of its engine, the one to prefer first."""
    return next((r.rank for r in environments() if r.name == one.name), 0)


def best_capability(machine: Machine) -> tuple[int, int]:
    """Of the cards that are here; (0, 0) without one."""
    return max((g.compute_capability for g in machine.gpus if g.compute_capability), default=(0, 0))


def kind_words(build: EngineBuild, wanted: Wanted, machine: Machine) -> Text:
    """Why this kind of engine is taken."""
    title = adapter_named(build.engine).title
    if build.engine == "llama.cpp":
        if not machine.gpus:
            return Text(
                "The quickest on a CPU, and it starts in seconds.",
                "在 CPU 上最快，且几秒即可启动。",
            )
        return Text(
            "For one to a few requests at a time it is as fast and starts in seconds.",
            "一到数个请求时同样快，且几秒即可启动。",
        )
    if not build.gpu_architectures:
        return Text(
            f"{title} reads this model as it is, on the CPU; a GGUF file with llama.cpp would be "
            "faster there.",
            f"{title} 可在 CPU 上直接读取该模型；用 llama.cpp 运行 GGUF 会更快。",
        )
    few = wanted.users < MANY_USERS
    users = f"{wanted.users} requests at a time" if not few else "it reads this model as it is"
    users_zh = f"同时 {wanted.users} 个请求" if not few else "可直接读取该模型"
    if build.engine == "lmdeploy":
        return Text(
            f"{users}: TurboMind computes them together on this card's tensor cores.",
            f"{users_zh}：TurboMind 用该卡的张量核心合并计算。",
        )
    return Text(
        f"{users}: {title} computes them together in one pool.",
        f"{users_zh}：{title} 在一个缓存池中合并计算。",
    )


def lost_words(one: Contender, best: Contender, speeds: dict[str, float | None]) -> Text:
    """Why a fitting engine was not taken."""
    mine, its = speeds[one.name], speeds[best.name]
    if mine is not None and its is not None:
        return Text(
            f"Measured here with this model: {show_rate(mine)} against {show_rate(its)}.",
            f"本机实测该模型：{show_rate(mine)}，低于 {show_rate(its)}。",
        )
    return Text(
        f"{best.name} fits this machine and so many requests better; `--engine {one.name}` takes "
        "it all the same.",
        f"{best.name} 更适合本机与该请求数；可用 `--engine {one.name}` 指定。",
    )
