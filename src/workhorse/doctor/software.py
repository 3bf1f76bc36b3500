"""What drivers, toolkits and engines can do with the cards of a machine."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

from workhorse.doctor.card_kinds import CardKind, card_kinds
from workhorse.doctor.card_notes import card_notes
from workhorse.doctor.engine_code import engine_findings
from workhorse.doctor.fp16 import fp16_findings
from workhorse.doctor.rule_words import rule_finding
from workhorse.knowledge.compat import Facts, Rule, rules
from workhorse.knowledge.gpus import Generation
from workhorse.knowledge.versions import version
from workhorse.records import CudaToolkit, Finding, Level, Machine, Model
from workhorse.text import Text, same

_TABLES = "workhorse knowledge/compat/, 2026-11"


def judge_software(machine: Machine, model: Model | None = None) -> tuple[Finding, ...]:
    """Findings about drivers, CUDA toolkits and engines against the cards, the C library, the CPU.

    With a `model`, also what its weights and its range of numbers mean on these cards. Not sorted.
    """
    facts = machine_facts(machine)
    kinds = card_kinds(machine)
    found = [
        *(rule_finding(rule, facts, []) for rule in _subject("system") if rule.applies(facts)),
        *_windows(machine),
        *_unknown_driver(machine),
        *_drivers(facts, kinds),
        *_one_driver_for_all(kinds),
        *_toolkits(machine.software.toolkits, facts, kinds),
        *engine_findings(machine.software.engines, facts, kinds, model),
        *fp16_findings(machine.software.engines, kinds, model),
    ]
    capabilities = [kind.capability for kind in kinds if kind.capability is not None]
    for kind in kinds:
        found += card_notes(kind, facts, capabilities)
    # Rules that do not depend on the card are met once for each.
    return tuple({(finding.code, finding.seen.en): finding for finding in found}.values())


def machine_facts(machine: Machine) -> dict[str, str | frozenset[str]]:
    """What the rules of knowledge/compat/ may ask of a machine; what is unknown is left out."""
    module = machine.driver.open_module if machine.driver else None
    known: dict[str, str | None] = {
        "driver": machine.driver.version if machine.driver else None,
        "driver_module": None if module is None else ("open" if module else "proprietary"),
        "kernel": machine.system.kernel,
        "glibc": machine.system.glibc,
    }
    facts: dict[str, str | frozenset[str]] = {key: told for key, told in known.items() if told}
    if machine.cpu.architecture == "x86_64" and machine.cpu.flags:
        facts["cpu_flags"] = frozenset(machine.cpu.flags)
    return facts


def _drivers(facts: Facts, kinds: Sequence[CardKind]) -> list[Finding]:
    """A driver that does not drive the card blocks: nothing else about the card matters then."""
    found = []
    for kind in kinds:
        here = kind.facts(facts)
        met = [rule for rule in _subject("driver") if rule.applies(here)]
        # A driver that does not drive the card is not the right branch of it either.
        failing = [rule for rule in met if rule.effect == "fails"]
        for rule in failing or met:
            about = [kind.label] if "capability" in rule.when else []
            level: Level | None = "blocker" if rule.effect == "fails" else None
            found.append(rule_finding(rule, here, about, level=level))
    return found


def _subject(subject: str) -> list[Rule]:
    return [rule for rule in rules() if rule.id.startswith(f"{subject}.")]


def _one_driver_for_all(kinds: Sequence[CardKind]) -> list[Finding]:
    """Two cards that no driver, or no kernel module, serves together; once for two generations."""
    known = [(kind, kind.generation) for kind in kinds if kind.generation]
    found: dict[frozenset[str], Finding] = {}
    for (one, old), (other, new) in combinations(known, 2):
        if reason := _conflict(old, new):
            found.setdefault(
                frozenset((old.name, new.name)), _two_drivers(one, other, old, new, reason)
            )
    return list(found.values())


def _conflict(one: Generation, other: Generation) -> Text | None:
    if {one.kernel_module, other.kernel_module} == {"proprietary", "open"}:
        return Text(
            "One needs the proprietary kernel module, the other the open one; only one can be"
            " loaded.",
            "一方需要闭源内核模块，另一方需要开源内核模块，而两者只能加载一个。",
        )
    for old, new in ((one, other), (other, one)):
        if old.driver_last and new.driver_first and old.driver_last < new.driver_first:
            return Text(
                f"{old.name} ends with driver {old.driver_last}, {new.name} starts with"
                f" {new.driver_first}.",
                f"{old.name} 到驱动 {old.driver_last} 为止，{new.name} 从驱动"
                f" {new.driver_first} 开始。",
            )
    return None


def _two_drivers(
    one: CardKind, other: CardKind, old: Generation, new: Generation, reason: Text
) -> Finding:
    return Finding(
        code="driver.none-for-all",
        level="blocker",
        seen=Text(
            f"{one.label.en} ({old.name}) and {other.label.en} ({new.name}) in one machine: no"
            " driver serves both.",
            f"同一台机器里有 {one.label.zh}（{old.name}）和 {other.label.zh}（{new.name}）："
            "没有能同时支持两者的驱动。",
        ),
        why=reason,
        remedy=Text(
            "Put them into two machines, or hand one of them to a virtual machine with its own"
            " driver.",
            "请分装到两台机器，或把其中一张直通给使用独立驱动的虚拟机。",
        ),
        source=f"{old.source}; {new.source}",
        share_lost=1.0,
    )


def _toolkits(
    toolkits: Sequence[CudaToolkit], facts: Facts, kinds: Sequence[CardKind]
) -> list[Finding]:
    found = []
    for kind in kinds:
        if kind.generation is None:
            continue
        of_card: list[Finding] = []
        for toolkit in toolkits:
            here = kind.facts(facts)
            if toolkit.version:
                here["toolkit"] = toolkit.version
            met = [rule for rule in _subject("toolkit") if rule.applies(here)]
            for rule in met:
                about = [kind.label] if "capability" in rule.when else []
                of_card.append(rule_finding(rule, here, [*about, same(toolkit.path)]))
            if not any("capability" in rule.when for rule in met):
                of_card.append(_unknown_toolkit(toolkit, kind.label))
        found += _milder_beside_a_good_one(of_card)
    return found


def _milder_beside_a_good_one(of_card: list[Finding]) -> list[Finding]:
    """A toolkit that cannot build for a card costs nothing while another one here can."""
    if not any(finding.level == "good" for finding in of_card):
        return of_card
    return [
        replace(finding, level="note", share_lost=None) if finding.level == "warning" else finding
        for finding in of_card
    ]


def _unknown_toolkit(toolkit: CudaToolkit, label: Text) -> Finding:
    told = toolkit.version or "?"
    return Finding(
        code="toolkit.unknown",
        level="note",
        seen=Text(
            f"{label.en}, CUDA toolkit {told} ({toolkit.path}): not known whether it builds for the"
            " card.",
            f"{label.zh}，CUDA 工具包 {told}（{toolkit.path}）：不知道它能否为该卡编译。",
        ),
        why=Text(
            "Its version could not be read, or no rule covers it on this card.",
            "无法读取其版本，或没有规则涵盖该版本与该卡的组合。",
        ),
        remedy=Text(
            "See what its nvcc says; compile a small kernel for the card before a large build.",
            "请查看其 nvcc 的输出；大规模编译前先为该卡编译一个小内核。",
        ),
        source=_TABLES,
        command="nvcc --version",
        evidence=(toolkit.path, told),
    )


def _windows(machine: Machine) -> list[Finding]:
    """Inside of Windows the driver is that of Windows, whatever a rule says of installing one."""
    kernel = machine.system.kernel or ""
    if "microsoft" not in kernel.lower() or not (machine.gpus or machine.gpu_troubles):
        return []
    return [
        Finding(
            code="system.wsl",
            level="note",
            seen=Text("This is Linux inside of Windows (WSL).", "这是 Windows 中的 Linux（WSL）。"),
            why=Text(
                "The GPU's driver is that of Windows; one installed in here hides its libraries.",
                "GPU 驱动由 Windows 提供；在 WSL 内安装驱动会遮盖其用户态库。",
            ),
            remedy=Text(
                "Wherever a driver is to be installed or changed, do it in Windows, then run the"
                " command below there.",
                "凡需安装或更换驱动，请在 Windows 中进行，然后在 Windows 中运行下面的命令。",
            ),
            source="NVIDIA, CUDA on WSL user guide: do not install any Linux display driver in WSL",
            command="wsl --shutdown",
            evidence=(f"kernel {kernel}",),
        )
    ]


def _unknown_driver(machine: Machine) -> list[Finding]:
    """A driver that runs but does not say which it is."""
    driver = machine.driver
    if driver is None or (driver.version and version(driver.version)):
        return []
    return [
        Finding(
            code="driver.unknown",
            level="note",
            seen=Text(
                f"The version of the NVIDIA driver is not known ({driver.version or '?'}).",
                f"不知道 NVIDIA 驱动的版本（{driver.version or '?'}）。",
            ),
            why=Text(
                "So it is not known whether it serves these cards and the engines.",
                "因此不知道它是否支持这些显卡和引擎。",
            ),
            remedy=Text("See what nvidia-smi says.", "请查看 nvidia-smi 的输出。"),
            source=_TABLES,
            command="nvidia-smi --query-gpu=driver_version --format=csv",
        )
    ]
