"""Whether the CPU runs the engines: which instructions it has, and who takes its time."""

from collections.abc import Iterator

from workhorse.doctor.opinion import Opinion, finding, is_virtual, on_cpu_alone
from workhorse.records import Finding, Machine
from workhorse.text import Text
from workhorse.units import show_share

# llama.cpp's CPU variants below AVX2, the newest first, and what each needs
# (ggml/src/CMakeLists.txt, commit 0c1e57098, 2026-10-01).
_VARIANTS = (("ivybridge", {"avx", "f16c"}), ("sandybridge", {"avx"}), ("sse42", {"sse4_2"}))
# Engines whose builds find out what the CPU can do.
_ASKING_ENGINES = ("llama.cpp", "ollama")


def judge_processor(machine: Machine) -> Opinion:
    """Instruction sets, and other work on the CPUs."""
    cpu = machine.cpu
    if not cpu.flags:
        unknown = Text("The CPU's instruction sets are not readable.", "读不到 CPU 的指令集。")
        return Opinion(tuple(busy(machine)), None, (unknown,))
    return Opinion((*instructions(machine), *busy(machine)), good_processor(machine))


def instructions(machine: Machine) -> Iterator[Finding]:
    """An x86 CPU without AVX2, which nearly every ready-made engine needs."""
    cpu, flags = machine.cpu, set(machine.cpu.flags)
    if cpu.architecture not in ("x86_64", "i686") or "avx2" in flags:
        return
    hidden = is_virtual(machine) and "avx" not in flags
    has = next((name.upper() for name in ("avx", "sse4_2") if name in flags), "SSE2")
    name = cpu.name or "CPU"
    variant = next((name for name, needs in _VARIANTS if needs <= flags), "x64")
    own = any(engine.name in _ASKING_ENGINES for engine in machine.software.engines)
    yield finding(
        "cpu.avx2-hidden" if hidden else "cpu.no-avx2",
        Text(
            f"{name} has no AVX2; the newest it has is {has.replace('_', '.')}.",
            f"{name} 不支持 AVX2；最高为 {has.replace('_', '.')}。",
        ),
        evidence=(" ".join(f for f in ("sse4_2", "avx", "f16c", "fma", "avx2") if f in flags),),
        # With an engine here that asks the CPU first, models do run.
        level="warning" if own else None,
        share_lost=None if own else 1.0,
        variant=variant,
    )


def busy(machine: Machine) -> Iterator[Finding]:
    """Other processes that kept a good part of the CPUs at work while we looked."""
    used, allowed = machine.busy_cpus, len(machine.limits.cpus)
    # One CPU in eight, and at least a whole one: below it a scheduler finds room.
    if used is None or not allowed or used < max(1.0, allowed / 8):
        return
    share = min(1.0, used / allowed)
    yield finding(
        "system.busy",
        Text(
            f"Other processes keep {used:.1f} of {allowed} CPUs busy ({show_share(share)}).",
            f"其他进程占用 {allowed} 个 CPU 中的 {used:.1f} 个（{show_share(share)}）。",
        ),
        evidence=(f"busy CPUs {used:.2f}, allowed {allowed}",),
        # A fair scheduler gives us half of a core that another process wants, and every layer
        # waits for the slowest core.
        share_lost=on_cpu_alone(machine, 0.5),
        sure="likely",
    )


def good_processor(machine: Machine) -> Text:
    """The CPU in a line, for a reader whose CPU is well."""
    cpu, flags = machine.cpu, set(machine.cpu.flags)
    best = next(
        (
            name
            for flag, name in (
                ("amx_tile", "AMX"),
                ("avx512_vnni", "AVX-512 VNNI"),
                ("avx512f", "AVX-512"),
                ("avx2", "AVX2"),
                ("asimd", "NEON"),
            )
            if flag in flags
        ),
        "",
    )
    name, count = cpu.name or cpu.architecture, len(cpu.cores)
    told = [name, *([f"{count} cores"] if count else []), *([best] if best else [])]
    told_zh = [name, *([f"{count} 核"] if count else []), *([best] if best else [])]
    return Text(f"CPU: {', '.join(told)}.", f"CPU：{'，'.join(told_zh)}。")
