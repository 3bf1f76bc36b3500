"""Which engine build runs a model here, and why. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from workhorse.doctor.gpu_code import code_for
from workhorse.engines.supply.check import architecture_finding, cpu_finding, glibc_finding
from workhorse.engines.supply.manifest import Manifest
from workhorse.records import Machine, Reason, Rejected
from workhorse.text import Text

# How near a build's GPU code is to a card, best last.
_NEARNESS = ("none", "ptx", "same major", "exact")


@dataclass(frozen=True, slots=True)
class Candidate:
    """One installed build and what is known of it on this machine."""

    manifest: Manifest
    proven: bool  # it has generated a text
    card_wrong: bool = False  # a card computed with it otherwise than the CPU, or was not seen


@dataclass(frozen=True, slots=True)
class Choice:
    """The build to use (None: the embedded engine), why, and why not the others."""

    name: str | None
    reason: Reason
    rejected: tuple[Rejected, ...]


def choose_build(
    candidates: Sequence[Candidate], embedded_flags: Collection[str] | None, machine: Machine
) -> Choice:
    """The build with code for a card that is here, else with most of this CPU's instructions.

    The newest among equals. `embedded_flags` are the CPU flags that the embedded engine uses,
    None when there is no embedded engine: a build with fewer instruction sets and no code for a
    card is slower than it, and not taken while the embedded engine runs here.
    """
    embedded_runs = embedded_flags is not None and set(embedded_flags) <= set(machine.cpu.flags)
    fitting: list[Manifest] = []
    rejected: list[Rejected] = []
    for candidate in candidates:
        manifest = candidate.manifest
        why = unfit(candidate, machine)
        slower = embedded_runs and not set(embedded_flags or ()) <= set(manifest.needs_flags)
        if why is None and slower and gpu_nearness(manifest, machine) == 0:
            why = Text(
                "It uses fewer instruction sets of this CPU than the embedded engine.",
                "它使用的指令集少于内置引擎。",
            )
        if (
            why is None
            and embedded_runs
            and spins(manifest)
            and not gpu_nearness(manifest, machine)
        ):
            why = Text(
                "Its threads never give the core back while they wait: one busy program beside it "
                "makes it 20 times slower than the embedded engine. Remove it and build it anew.",
                "它的线程等待时从不让出核心：旁边有一个繁忙程序时，会比内置引擎慢 20 倍。"
                "请删除后重新构建。",
            )
        if why is None:
            fitting.append(manifest)
        else:
            rejected.append(Rejected(manifest.name, why))
    if not fitting:
        return Choice(None, embedded_reason(bool(candidates)), tuple(rejected))
    best = max(fitting, key=lambda m: (gpu_nearness(m, machine), len(m.needs_flags), m.built_at))
    older = Text(
        f"{best.name} has nearer code for this machine or is newer.",
        f"{best.name} 的代码更贴合本机或更新。",
    )
    rejected += [Rejected(one.name, older) for one in fitting if one is not best]
    return Choice(best.name, build_reason(best, machine), tuple(rejected))


def spins(manifest: Manifest) -> bool:
    """Whether its CPU threads wait for each other without an end to their spinning."""
    return not manifest.openmp and not manifest.bounded_wait


def unfit(candidate: Candidate, machine: Machine) -> Text | None:
    """Why a build cannot run here, from its record; None: it can."""
    manifest = candidate.manifest
    for judge in (architecture_finding, cpu_finding, glibc_finding):
        if found := judge(manifest, machine):
            return found[0].seen
    if not candidate.proven:
        return Text(
            f"It has not answered on this machine yet: workhorse engine verify {manifest.name}",
            f"尚未在本机验证：workhorse engine verify {manifest.name}",
        )
    if candidate.card_wrong and gpu_nearness(manifest, machine):
        return Text(
            "On the card that is here it did not compute as on the CPU: workhorse engine verify "
            f"{manifest.name}",
            f"它在本机显卡上的结果与 CPU 不一致：workhorse engine verify {manifest.name}",
        )
    return None


def gpu_nearness(manifest: Manifest, machine: Machine) -> int:
    """How near its code is to the best card that is here; 0: no card, or nothing for it."""
    codes = (
        code_for(gpu.compute_capability, manifest.sass, manifest.ptx)
        for gpu in machine.gpus
        if gpu.compute_capability is not None
    )
    return max((_NEARNESS.index(code.kind) for code in codes if code is not None), default=0)


def build_reason(manifest: Manifest, machine: Machine) -> Reason:
    """Why a build is taken before the embedded engine."""
    if gpu_nearness(manifest, machine):
        because = Text(
            "It has code for the card that is here; the embedded engine has none.",
            "它含有本机显卡的代码；内置引擎没有。",
        )
    elif manifest.cpu_variant == "native":
        because = Text(
            "It was built for a CPU with these instructions and has answered on this machine.",
            "它为具备这些指令的 CPU 构建，并已在本机验证。",
        )
    else:
        because = Text(
            f"It uses this CPU's instructions ({manifest.cpu_variant}) and has answered here.",
            f"它使用本机 CPU 的指令集（{manifest.cpu_variant}），并已在本机验证。",
        )
    return Reason("engine", manifest.name, because)


def embedded_reason(others: bool) -> Reason:
    """Why the embedded engine is taken."""
    because = (
        Text("No installed build is better here.", "没有更适合本机的已安装构建。")
        if others
        else Text(
            "It needs no installation; `workhorse engine build` makes one for this very CPU.",
            "无需安装；`workhorse engine build` 可为本机 CPU 构建专用版本。",
        )
    )
    return Reason("engine", "embedded", because)
