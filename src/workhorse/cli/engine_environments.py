"""What `engine` does with environments: engines that come as Python packages."""

import argparse
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from workhorse.cli.engine_work import Work
from workhorse.engines.supply.asked import Asked, ask
from workhorse.engines.supply.builds import disk_bytes, processes_in
from workhorse.engines.supply.environment import (
    Environment,
    begun,
    install,
    installed,
    reached,
    read_environment,
)
from workhorse.errors import EXIT_NO, EXIT_USAGE, AppError
from workhorse.knowledge.engine_environments import (
    EnvironmentRecipe,
    environments,
    environments_for,
)
from workhorse.knowledge.gpus import Capability
from workhorse.knowledge.versions import version, version_range
from workhorse.machine.open_root import open_files
from workhorse.machine.probe import read_machine
from workhorse.models.part_file import local_errors, sync_folder
from workhorse.records import Finding, Machine, Verdict
from workhorse.text import Language, Text
from workhorse.units import show_bytes

ENGINES = tuple(dict.fromkeys(recipe.engine for recipe in environments()))
ROOT = Path("/")


@dataclass(frozen=True, slots=True)
class EnvironmentRow:
    """One environment in the list."""

    environment: Environment
    architectures: tuple[str, ...]  # the cards that it reaches
    disk_bytes: int


def add_target(parser: argparse.ArgumentParser, language: Language) -> None:
    """`--for`: the cards that an environment is installed for."""
    words = Text(
        "install vllm or lmdeploy for these cards: cpu, such as sm_70, or auto (what is here)",
        "安装 vllm、lmdeploy 时适用的显卡：cpu、sm_70 等，或 auto（按本机）",
    )
    parser.add_argument("--for", metavar="CARD", help=words.in_language(language))


def is_environment(word: str) -> bool:
    """Whether `engine install WORD` means an environment and not a file."""
    return word in ENGINES or any(recipe.name == word for recipe in environments())


def list_environments(work: Work) -> tuple[EnvironmentRow, ...]:
    """What is there, with its disk use; nothing is started."""
    return tuple(
        EnvironmentRow(
            one,
            reached(one.target, one.asked.architectures),
            disk_bytes(work.builds.folder / one.name),
        )
        for one in installed(work.builds)
    )


def begun_bytes(work: Work) -> int:
    """What environments take that were begun and not finished."""
    return sum(disk_bytes(folder) for folder in begun(work.builds))


def install_environment(work: Work, word: str, target: str | None) -> EnvironmentRow:
    """Install the environment that `word` and `--for` mean; raises AppError."""
    machine = read_machine(open_files(ROOT))
    recipe = recipe_for(word, target, machine)
    refuse_unmet(recipe, machine)
    if found_none := not_for_these_cards(recipe, machine):
        work.tell.found(Verdict((found_none,)))
    size, disk = show_bytes(recipe.download_bytes), show_bytes(recipe.disk_bytes)
    work.tell.stage(
        Text(
            f"{recipe.name}: about {size} to fetch, {disk} on the disk",
            f"{recipe.name}：约需下载 {size}，占用磁盘 {disk}",
        )
    )
    found = install(recipe, work.builds, work.tell)
    if found.asked.trouble and machine.gpus:
        work.tell.found(Verdict((does_not_load(found.name, found.asked.trouble),)))
    folder = work.builds.folder / found.name
    architectures = reached(found.target, found.asked.architectures)
    return EnvironmentRow(found, architectures, disk_bytes(folder))


def recipe_for(word: str, target: str | None, machine: Machine) -> EnvironmentRecipe:
    """The environment by its own name, or of an engine for a card; AppError for none."""
    named = next((recipe for recipe in environments() if recipe.name == word), None)
    if named is not None:
        return named
    capability = capability_of(target, machine)
    found = environments_for(word, capability)
    if found:
        return found[0]
    where = "the CPU" if capability is None else f"sm_{capability[0]}{capability[1]}"
    where_zh = "CPU" if capability is None else where
    others = ", ".join(recipe.name for recipe in environments() if recipe.engine == word)
    raise AppError(
        Text(f"There is no {word} for {where}.", f"没有适用于 {where_zh} 的 {word}。"),
        Text(
            f"There are {others}; llama.cpp runs everywhere.",
            f"现有 {others}；llama.cpp 随处可用。",
        ),
        exit_code=EXIT_NO,
    )


def capability_of(target: str | None, machine: Machine) -> Capability | None:
    """The card that is meant: `sm_70`, `cpu` (None), or the best that is here."""
    if target is None or target == "auto":
        known = [g.compute_capability for g in machine.gpus if g.compute_capability is not None]
        return max(known, default=None)
    if target == "cpu":
        return None
    digits = target.removeprefix("sm_")
    if not target.startswith("sm_") or not digits.isdecimal() or not 2 <= len(digits) <= 3:
        raise AppError(
            Text(f"{target[:40]!r} is no card.", f"{target[:40]!r} 不是显卡代号。"),
            Text("Write cpu, auto or such as sm_70.", "请写 cpu、auto 或 sm_70 这样的代号。"),
            exit_code=EXIT_USAGE,
        )
    return int(digits[:-1]), int(digits[-1])


def not_for_these_cards(recipe: EnvironmentRecipe, machine: Machine) -> Finding | None:
    """A warning before gigabytes are fetched for a card that is not here."""
    here = [g.compute_capability for g in machine.gpus if g.compute_capability is not None]
    if recipe.is_for(None) or any(recipe.is_for(capability) for capability in here):
        return None
    listed = ", ".join(sorted({f"sm_{major}{minor}" for major, minor in here}))
    return Finding(
        code="engine.other-cards",
        level="warning",
        seen=Text(
            f"{recipe.name} is for cards of compute capability {recipe.target}; here: "
            f"{listed or 'none'}.",
            f"{recipe.name} 适用于计算能力 {recipe.target} 的显卡；本机：{listed or '无'}。",
        ),
        why=Text("It cannot be used on this machine.", "它无法在本机使用。"),
        remedy=Text("Let the card decide.", "请由显卡决定版本。"),
        source="engine_environments.toml",
        command=f"workhorse engine install {recipe.engine}",
    )


def refuse_unmet(recipe: EnvironmentRecipe, machine: Machine) -> None:
    """AppError for a C library, a driver or a CPU that the packages cannot run with."""
    missing = sorted(set(recipe.needs_flags) - set(machine.cpu.flags))
    driver = machine.driver.version if machine.driver else None
    facts = {"glibc": machine.system.glibc, "driver": driver}
    for need, wanted in recipe.needs.items():
        seen = version(facts[need] or "")
        if seen is not None and not version_range(wanted).holds(seen):
            missing.append(f"{need} {wanted} ({facts[need]})")
    if missing and machine.cpu.flags:
        listed = ", ".join(missing)
        raise AppError(
            Text(
                f"{recipe.name} needs what is not here: {listed}.",
                f"{recipe.name} 所需条件不满足：{listed}。",
            ),
            Text(
                "llama.cpp runs on this machine: workhorse engine build",
                "本机可用 llama.cpp：workhorse engine build",
            ),
            exit_code=EXIT_NO,
        )


def verify_environment(work: Work, name: str) -> Verdict:
    """Ask it again what it is, and compare with its record."""
    folder = work.builds.folder / name
    record = read_environment(folder)
    if record is None:
        raise AppError(
            Text(f"The record of {name} cannot be read.", f"{name} 的记录无法读取。"),
            Text(f"workhorse engine remove {name}", f"workhorse engine remove {name}"),
        )
    work.tell.stage(Text(f"asking {name}", f"查询 {name}"))
    try:
        asked = ask(folder, record.engine, record.module)
    except AppError as error:
        return Verdict((does_not_load(name, error.what.en),))
    found = list(altered(name, record.asked, asked))
    if asked.trouble and read_machine(open_files(ROOT)).gpus:
        found.append(does_not_load(name, asked.trouble))
    return Verdict(tuple(found))


def altered(name: str, before: Asked, now: Asked) -> Sequence[Finding]:
    """A warning for packages that are not those that were installed."""
    changed = sorted(set(before.packages) ^ set(now.packages))
    if not changed:
        return ()
    listed = ", ".join(changed[:4])
    return (
        Finding(
            code="engine.packages-differ",
            level="warning",
            seen=Text(
                f"{len(changed)} packages of {name} are not those of its record: {listed}.",
                f"{name} 中有 {len(changed)} 个软件包与记录不符：{listed}。",
            ),
            why=Text(
                "Somebody installed into it; what was tried no longer holds.",
                "有人改动过该环境，先前的验证不再有效。",
            ),
            remedy=Text("Remove it and install it again.", "请删除后重新安装。"),
            source="environment.json",
            command=f"workhorse engine remove {name}",
        ),
    )


def does_not_load(name: str, cause: str) -> Finding:
    """The blocker for an engine whose own code does not load here."""
    return Finding(
        code="engine.does-not-load",
        level="blocker",
        seen=Text(f"{name}: {cause[:300]}", f"{name}：{cause[:300]}"),
        why=Text(
            "A library or the driver is missing, or the packages do not fit each other.",
            "缺少库或驱动，或软件包互不兼容。",
        ),
        remedy=Text(
            "Check the driver (`workhorse doctor`), or install it again.",
            "请检查驱动（`workhorse doctor`），或重新安装。",
        ),
        source="the environment's own python",
    )


def remove_environments(work: Work, names: Sequence[str], *, begun_too: bool) -> int:
    """Remove them whole, with `begun_too` what was begun as well; the bytes freed.

    AppError while a process runs from one. What it compiled and cached lies inside it, so nothing
    is left.
    """
    with work.builds.alone():
        refuse_used(work, names)
        folders = [work.builds.folder / name for name in dict.fromkeys(names)]
        folders += begun(work.builds) if begun_too else []
        freed_bytes = sum(disk_bytes(folder) for folder in folders)
        for folder in folders:
            with local_errors(folder):
                # Renamed first: an interrupted removal leaves no half environment of that name.
                gone = folder.with_name(f".part-{folder.name}")
                folder.rename(gone)
                shutil.rmtree(gone)
                sync_folder(folder.parent)
    return freed_bytes


def refuse_used(work: Work, names: Sequence[str]) -> None:
    """AppError while a process runs from one of these environments."""
    for name in names:
        if users := processes_in(work.builds.folder / name):
            listed = ", ".join(map(str, users[:8]))
            raise AppError(
                Text(f"{name} is in use by process {listed}.", f"{name} 正被进程 {listed} 使用。"),
                Text(
                    "Stop the service that runs it, then remove it.", "请先停止使用它的服务再删除。"
                ),
            )
