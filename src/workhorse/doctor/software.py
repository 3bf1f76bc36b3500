"""What drivers, toolkits and engines can do with the cards of a machine."""

from collections.abc import Sequence
from dataclasses import replace

from workhorse.doctor.card_kinds import CardKind, card_kinds
from workhorse.doctor.card_notes import card_notes
from workhorse.doctor.engine_code import engine_findings
from workhorse.doctor.fp16 import fp16_findings
from workhorse.doctor.rule_words import rule_finding
from workhorse.knowledge.compat import Facts, Rule, rules
from workhorse.knowledge.gpus import Generation
from workhorse.records import CudaToolkit, Finding, Level, Machine, Model
from workhorse.text import Text, same

_TOOLKIT_UNKNOWN = "workhorse knowledge/compat/toolkit.toml, 2026-11"


def judge_software(machine: Machine, model: Model | None = None) -> tuple[Finding, ...]:
    """Findings about drivers, CUDA toolkits and engines against the cards, the C library, the CPU.

    With a `model`, also what its weights and its range of numbers mean on these cards. Not sorted.
    """
    facts = machine_facts(machine)
    kinds = card_kinds(machine)
    found = [
        *(rule_finding(rule, facts, []) for rule in _subject("system") if rule.applies(facts)),
        *_drivers(facts, kinds),
        *_one_driver_for_all(kinds),
        *_toolkits(machine.software.toolkits, facts, kinds),
        *engine_findings(machine.software.engines, facts, kinds, model),
        *fp16_findings(machine.software.engines, kinds, model),
    ]
    for kind in kinds:
        found += card_notes(kind, facts)
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
        for rule in _subject("driver"):
            if rule.applies(here):
                about = [kind.label] if "capability" in rule.when else []
                level: Level | None = "blocker" if rule.effect == "fails" else None
                found.append(rule_finding(rule, here, about, level=level))
    return found


def _subject(subject: str) -> list[Rule]:
    return [rule for rule in rules() if rule.id.startswith(f"{subject}.")]


def _one_driver_for_all(kinds: Sequence[CardKind]) -> list[Finding]:
    """Two cards that no driver, or no kernel module, serves together."""
    known = [(kind, kind.generation) for kind in kinds if kind.generation]
    found = []
    for position, (older, old) in enumerate(known):
        for newer, new in known[position + 1 :]:
            if old and new and (reason := _conflict(old, new)):
                found.append(_two_drivers(older, newer, old, new, reason))
    return found


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
    found = [_unknown_toolkit(toolkit) for toolkit in toolkits if toolkit.version is None]
    for kind in kinds:
        of_card: list[Finding] = []
        for toolkit in toolkits:
            if toolkit.version is None:
                continue
            here = {**kind.facts(facts), "toolkit": toolkit.version}
            for rule in _subject("toolkit"):
                if rule.applies(here):
                    about = [kind.label] if "capability" in rule.when else []
                    of_card.append(rule_finding(rule, here, [*about, same(toolkit.path)]))
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


def _unknown_toolkit(toolkit: CudaToolkit) -> Finding:
    return Finding(
        code="toolkit.unknown",
        level="note",
        seen=Text(
            f"The version of the CUDA toolkit in {toolkit.path} is not known.",
            f"无法得知 {toolkit.path} 中 CUDA 工具包的版本。",
        ),
        why=Text(
            "So it is not known which cards it can build for.",
            "因此不知道它能为哪些显卡编译。",
        ),
        remedy=Text("See what its nvcc says.", "请查看其 nvcc 的输出。"),
        source=_TOOLKIT_UNKNOWN,
        command=f"{toolkit.path}/bin/nvcc --version",
    )
