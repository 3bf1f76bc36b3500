"""The engine for a model on this machine: what the user named, or what fits best and why."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from workhorse.engines.adapter import adapter_named
from workhorse.engines.choose_engine import Contender, Wanted, choose_engine
from workhorse.engines.supply.builds import Builds
from workhorse.engines.supply.pick import Picked, named_engine, pick_engine
from workhorse.engines.supply.pick_environment import (
    contenders,
    named_environment,
    none_installed,
)
from workhorse.errors import EXIT_NO, EXIT_USAGE, AppError
from workhorse.knowledge.engine_environments import environments
from workhorse.plan.speed import Experience
from workhorse.plan.what_if import assumed_environment
from workhorse.records import EngineBuild, Machine, Reason, Rejected
from workhorse.text import Text

AUTO, LLAMACPP = "auto", "llama.cpp"
# Engines that compute with a checkpoint as it is.
POOLED = ("vllm", "lmdeploy")


def is_pooled(build: EngineBuild) -> bool:
    """Whether a build computes with a checkpoint and one pool of KV."""
    return build.engine in POOLED


def asks_for_pooled(engine: Path | None) -> bool:
    """Whether the word of `--engine` can only mean such an engine: its name, or an environment."""
    if engine is None:
        return False
    word = str(engine)
    known = (*POOLED, *(recipe.name for recipe in environments()))
    return word in known or (os.sep in word and (engine.expanduser() / "bin" / "python").exists())


def assume(word: str, machine: Machine) -> Picked:
    """The environment that would be installed on a machine that is not here; AppError for none."""
    build = assumed_environment(machine, word)
    if build is None:
        raise AppError(
            Text(
                f"There is no {word} for that machine's cards.", f"没有适用于该机器显卡的 {word}。"
            ),
            Text("llama.cpp runs there: leave out --engine.", "可用 llama.cpp：请去掉 --engine。"),
            exit_code=EXIT_NO,
        )
    because = Text(
        "Assumed, because the machine is not here: `workhorse engine install` gives it such a one.",
        "该机器不在本地，故作此假定：可用 `workhorse engine install` 安装。",
    )
    return Picked(build, (Reason("engine", build.version, because),))


def pick(
    engine: Path | None,
    builds: Builds,
    machine: Machine,
    wanted: Wanted,
    history: Sequence[Experience],
) -> Picked:
    """The engine that was named (`auto` and None: by us), with the reasons; raises AppError."""
    word = AUTO if engine is None else str(engine)
    if word in POOLED:
        found = contenders(builds, word)  # type: ignore[arg-type]
        if not found:
            raise none_installed(word)
        choice = choose_engine(found, wanted, machine, history)
        chosen = choice.chosen or found[0]  # its plan says what speaks against it
        return Picked(chosen.build, choice.reasons, choice.rejected)
    if word == LLAMACPP:
        return pick_engine(builds, machine)
    if word != AUTO and engine is not None:
        outside = named_environment(engine, builds)
        if outside is None and any(recipe.name == word for recipe in environments()):
            raise none_installed(word)
        return Picked(outside.build) if outside is not None else named_engine(engine, builds)
    return pick_freely(builds, machine, wanted, history)


def pick_freely(
    builds: Builds, machine: Machine, wanted: Wanted, history: Sequence[Experience]
) -> Picked:
    """The best of llama.cpp's builds and the environments that are here."""
    environments = contenders(builds)
    if not environments:
        return pick_engine(builds, machine)
    if "gguf" not in wanted.formats:
        choice = choose_engine(environments, wanted, machine, history)
        if choice.chosen is not None:
            reads = Rejected(LLAMACPP, Text("It reads GGUF files.", "它读取 GGUF 文件。"))
            return Picked(choice.chosen.build, choice.reasons, (*choice.rejected, reads))
        return with_rejected(pick_engine(builds, machine), choice.rejected)
    best = pick_engine(builds, machine)
    both = [Contender(LLAMACPP, best.build), *environments]
    choice = choose_engine(both, wanted, machine, history)
    if choice.chosen is None or choice.chosen.name == LLAMACPP:
        reasons = best.reasons or choice.reasons
        return Picked(best.build, reasons, (*best.rejected, *choice.rejected))
    return Picked(choice.chosen.build, choice.reasons, choice.rejected)


def with_rejected(picked: Picked, more: tuple[Rejected, ...]) -> Picked:
    """The same engine, with more that was not taken."""
    return replace(picked, rejected=(*picked.rejected, *more))


def refuse_format(build: EngineBuild, wanted: Wanted) -> None:
    """AppError when the engine that was named cannot read the model at all."""
    adapter = adapter_named(build.engine)
    if set(adapter.skills.formats) & set(wanted.formats):
        return
    reads, has = ", ".join(adapter.skills.formats), ", ".join(wanted.formats)
    raise AppError(
        Text(
            f"{adapter.title} reads {reads} files, and this model is here as {has}.",
            f"{adapter.title} 读取 {reads} 文件，而该模型是 {has} 格式。",
        ),
        Text(
            "Name the folder of its checkpoint, or leave out --engine.",
            "请指定其原始模型目录，或去掉 --engine。",
        ),
        exit_code=EXIT_USAGE,
    )
