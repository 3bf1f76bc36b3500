"""What the doctor thinks of one subject, and how its findings are put into words."""

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from workhorse.knowledge.findings import wordings
from workhorse.records import Finding, Gpu, Level, Machine
from workhorse.text import Text

_RPM = re.compile(
    r"red hat|rhel|centos|rocky|alma|fedora|oracle linux|scientific linux|amazon linux|openeuler"
    r"|euleros|anolis|opencloudos|tencentos|alibaba|alios|kylin linux advanced server|bclinux",
    re.IGNORECASE,
)
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Opinion:
    """One subject: what was found, what to say when it is well, what could not be looked at.

    `good` is None when nothing of the subject was known; it is told only when no finding is
    worse than a note.
    """

    findings: tuple[Finding, ...] = ()
    good: Text | None = None
    unchecked: tuple[Text, ...] = ()


def finding(
    code: str,
    seen: Text,
    *,
    evidence: Iterable[str] = (),
    level: Level | None = None,
    share_lost: float | None = None,
    sure: Literal["certain", "likely", "possible"] | None = None,
    cards: Sequence[Gpu] = (),
    rpm: bool = False,
    **values: object,
) -> Finding:
    """The finding `code` in the words of knowledge/findings.toml.

    `values` fill the places in its words, `level` and `sure` replace the table's; `cards` are those
    that its command is for; `rpm` chooses that of RPM-based systems.
    """
    row = wordings()[code]
    template = (row.command_rpm if rpm else None) or row.command
    command = template.format(**values, index="{index}") if template else None
    return Finding(
        code=code,
        level=level or row.level,
        seen=seen,
        why=Text(row.why_en.format(**values), row.why_zh.format(**values)),
        remedy=Text(row.step_en.format(**values), row.step_zh.format(**values)),
        source=row.source,
        command=_for_each(command, cards) if command and cards else command,
        evidence=tuple(evidence),
        share_lost=share_lost,
        sure=sure or row.sure,
    )


def _for_each(command: str, cards: Sequence[Gpu]) -> str:
    """The command for each of the cards, `{index}` in it being a card's number."""
    if "{index}" not in command or len(cards) == 1:
        return command.replace("{index}", str(cards[0].index))
    numbers = " ".join(str(gpu.index) for gpu in cards)
    return f"for i in {numbers}; do {command.replace('{index}', '$i')}; done"


def alike(gpus: Iterable[Gpu], key: Callable[[Gpu], K | None]) -> list[tuple[K, list[Gpu]]]:
    """Cards of which `key` says the same, together: eight equal cards are one finding.

    Cards of which it says None are left out.
    """
    groups: dict[K, list[Gpu]] = {}
    for gpu in gpus:
        told = key(gpu)
        if told is not None:
            groups.setdefault(told, []).append(gpu)
    return list(groups.items())


def named(gpus: Sequence[Gpu]) -> Text:
    """Cards as a sentence calls them: `GPU 0, 1 (Tesla V100-PCIE-16GB)`."""
    indexes = [str(gpu.index) for gpu in gpus]
    names = ", ".join(dict.fromkeys(gpu.name for gpu in gpus))
    return Text(f"GPU {', '.join(indexes)} ({names})", f"GPU {'、'.join(indexes)}（{names}）")


def is_virtual(machine: Machine) -> bool:
    """True in a virtual machine: board, slots and memory modules shown there are made up."""
    if machine.system.hypervisor is not None:
        return machine.system.hypervisor != ""
    return "hypervisor" in machine.cpu.flags


def is_rpm_based(machine: Machine) -> bool:
    """True where the distribution's packages are RPMs, by the name it gives itself."""
    return _RPM.search(machine.system.distribution or "") is not None


def on_cpu_alone(machine: Machine, share: float) -> float | None:
    """`share` where models run on the CPU; None where a card may do the work.

    With a card the loss is that of the layers left to the CPU, and the model decides on them.
    """
    return None if machine.gpus or machine.gpu_troubles else round(share, 3)
