"""Why a GPU cannot be used, and what to do about it: one finding a cause. Pure."""

from collections.abc import Iterable, Sequence

from workhorse.doctor.gpu_causes import CAUSES
from workhorse.knowledge.gpus import Generation, cards_with_id, generation_of
from workhorse.records import Finding, GpuTrouble, Level, Machine
from workhorse.text import Text

_EVIDENCE_MAX = 16
_PLURAL = {"is": "are", "has": "have", "answers": "answer"}


def judge_gpu_access(machine: Machine) -> tuple[Finding, ...]:
    """What keeps GPUs from being used: one finding for each cause, with the cards it holds."""
    by_code: dict[str, list[GpuTrouble]] = {}
    for trouble in machine.gpu_troubles:
        by_code.setdefault(trouble.code, []).append(trouble)
    return tuple(_finding(machine, code, troubles) for code, troubles in by_code.items())


def _finding(machine: Machine, code: str, troubles: Sequence[GpuTrouble]) -> Finding:
    words = CAUSES[code]
    remedy = words.remedy
    if code == "no_driver" and machine.driver is not None:
        version = machine.driver.version or ""
        remedy = Text(
            f"NVIDIA's driver {version} is installed but has not taken the card: read what the"
            " kernel's log says of it (`sudo dmesg | grep -i nvrm`).",
            f"已安装 NVIDIA 驱动 {version}，但它没有接管这张卡：请查看内核日志的说明"
            "（`sudo dmesg | grep -i nvrm`）。",
        )
    if code in ("no_driver", "other_driver", "not_shown", "driver_not_told"):
        remedy = joined(remedy, fitting_driver(t.pci_id for t in troubles))
    level: Level = "blocker" if words.blocks and not machine.gpus else "warning"
    if code == "driver_not_told" or (code == "not_shown" and machine.system.container):
        level = "note"
    return Finding(
        code=f"gpu.{code.replace('_', '-')}",
        level=level,
        seen=_seen(words.seen, troubles),
        why=words.why,
        remedy=remedy,
        source=words.source,
        command=words.command,
        evidence=_evidence(machine, troubles),
        share_lost=1.0 if level == "blocker" else None,
        sure="likely" if code in ("container", "unknown", "errors") else "certain",
    )


def _seen(what: Text, troubles: Sequence[GpuTrouble]) -> Text:
    """`NVIDIA card 0000:18:00.0 (10de:1db6) has fallen off the bus: GPU is lost.`"""
    cards = [t for t in troubles if t.pci_address is not None]
    said = "; ".join(dict.fromkeys(t.said.rstrip(".") for t in troubles if t.said))
    en, zh = what.en, what.zh
    if cards:
        listed = [f"{t.pci_address} ({t.pci_id or '?'})" for t in cards[:8]]
        more = f" +{len(cards) - 8}" if len(cards) > 8 else ""
        plural = "s" if len(cards) > 1 else ""
        names = ", ".join(listed) + more
        if _of_a_card(what):
            en = _of_several(en) if plural else en
            en, zh = f"NVIDIA card{plural} {names} {en}", f"NVIDIA 显卡 {names} {zh}"
        else:
            en, zh = f"{en} (NVIDIA card{plural} {names})", f"{zh}（NVIDIA 显卡 {names}）"
    elif _of_a_card(what):
        en, zh = f"An NVIDIA card {en}", f"有一张 NVIDIA 显卡{zh}"
    end = (f": {said}", f"：{said}") if said else ("", "")
    return Text(en + end[0] + ".", zh + end[1] + "。")


def _of_several(words: str) -> str:
    """`have fallen off the bus` of `has fallen off the bus`."""
    verb, _, rest = words.partition(" ")
    return f"{_PLURAL.get(verb, verb)} {rest}"


def _of_a_card(what: Text) -> bool:
    """Whether the words go on after the name of a card."""
    return what.en[0].islower()


def _evidence(machine: Machine, troubles: Sequence[GpuTrouble]) -> tuple[str, ...]:
    lines = [" ".join(part for part in (t.pci_address, t.pci_id, t.said) if part) for t in troubles]
    driver = machine.driver
    if driver is not None and driver.version is not None:
        kind = {True: ", open kernel module", False: ", proprietary kernel module", None: ""}
        lines.append(f"driver {driver.version}{kind[driver.open_module]}")
    if machine.system.container:
        lines.append(f"container: {machine.system.container}")
    return tuple(line for line in dict.fromkeys(lines) if line)[:_EVIDENCE_MAX]


def fitting_driver(pci_ids: Iterable[str | None]) -> Text:
    """Which driver the cards need, where the table of cards knows it."""
    needs: list[Text] = []
    for generation in dict.fromkeys(filter(None, map(_generation, pci_ids))):
        if generation.driver_last is not None:
            needs.append(
                Text(
                    f"The last driver branch for {generation.name} is {generation.driver_last}.",
                    f"支持 {generation.name} 的最后一个驱动分支是 {generation.driver_last}。",
                )
            )
        if generation.kernel_module == "proprietary":
            needs.append(
                Text(
                    f"{generation.name} needs the proprietary kernel module, not the open one.",
                    f"{generation.name} 需要专有内核模块，不支持开源内核模块。",
                )
            )
    return Text(" ".join(need.en for need in needs), "".join(need.zh for need in needs))


def _generation(pci_id: str | None) -> Generation | None:
    capabilities = {card.capability for card in cards_with_id(pci_id or "")}
    return generation_of(capabilities.pop()) if len(capabilities) == 1 else None


def joined(one: Text, other: Text) -> Text:
    """Two texts, one after the other."""
    return Text(f"{one.en} {other.en}".strip(), one.zh + other.zh)
