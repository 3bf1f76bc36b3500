"""Whether a build is whole and runs on a machine. Reads its files; the judgement is pure."""

from collections.abc import Sequence
from pathlib import Path

from workhorse.doctor.gpu_code import code_for
from workhorse.engines.supply.manifest import Manifest
from workhorse.knowledge.cpu_variants import choose_variant
from workhorse.knowledge.versions import version
from workhorse.models.part_file import local_errors, sha256_of
from workhorse.records import Finding, Machine, Verdict
from workhorse.text import Text


def damaged_files(folder: Path, manifest: Manifest) -> list[str]:
    """The files of a build that are missing or not those of its record."""
    damaged = []
    for file in manifest.files:
        path = folder / file.path
        with local_errors(path):
            whole = path.is_file() and not path.is_symlink() and path.stat().st_size == file.n_bytes
            if not whole or sha256_of(path) != file.sha256:
                damaged.append(file.path)
    return damaged


def judge_build(manifest: Manifest, damaged: Sequence[str], machine: Machine) -> Verdict:
    """What speaks against the build on this machine, and what GPU code it has. Pure."""
    found = [
        *files_finding(manifest, damaged),
        *architecture_finding(manifest, machine),
        *cpu_finding(manifest, machine),
        *glibc_finding(manifest, machine),
    ]
    return Verdict((*found, *gpu_findings(manifest, machine)))


def files_finding(manifest: Manifest, damaged: Sequence[str]) -> list[Finding]:
    """The hashes."""
    if not damaged:
        return []
    names = ", ".join(damaged[:3])
    return [
        Finding(
            code="engine.files-differ",
            level="blocker",
            seen=Text(
                f"{len(damaged)} of {len(manifest.files)} files of {manifest.name} are not those "
                f"of its record: {names}.",
                f"{manifest.name} 的 {len(manifest.files)} 个文件中有 {len(damaged)} 个与记录不符："
                f"{names}。",
            ),
            why=Text(
                "They were altered or damaged, so nothing is known of what they do.",
                "文件被改动或损坏，其行为不可知。",
            ),
            remedy=Text("Remove the build and install it again.", "请删除该构建并重新安装。"),
            source="SHA-256 in manifest.json",
            command=f"workhorse engine remove {manifest.name}",
        )
    ]


def architecture_finding(manifest: Manifest, machine: Machine) -> list[Finding]:
    """Another kind of processor."""
    if manifest.architecture == machine.cpu.architecture:
        return []
    return [
        Finding(
            code="engine.other-architecture",
            level="blocker",
            seen=Text(
                f"{manifest.name} is for {manifest.architecture}, this machine is "
                f"{machine.cpu.architecture}.",
                f"{manifest.name} 用于 {manifest.architecture}，"
                f"本机是 {machine.cpu.architecture}。",
            ),
            why=Text("The kernel cannot start it.", "内核无法启动它。"),
            remedy=Text("Make one here.", "请在本机构建。"),
            source="manifest.json: architecture",
            command="workhorse engine build",
        )
    ]


def cpu_finding(manifest: Manifest, machine: Machine) -> list[Finding]:
    """Instructions that the CPU does not have."""
    cpu = machine.cpu
    missing = sorted(set(manifest.needs_flags) - set(cpu.flags))
    if not missing or manifest.architecture != cpu.architecture:
        return []
    flags, name = ", ".join(missing), cpu.name or "CPU"
    fitting = choose_variant(cpu.flags, cpu.architecture)
    command = f"workhorse engine build --cpu {fitting.name}" if fitting else None
    return [
        Finding(
            code="engine.cpu-flags-missing",
            level="blocker",
            seen=Text(
                f"{manifest.name} ({manifest.cpu_variant}) uses {flags}, which {name} does not "
                "have.",
                f"{manifest.name}（{manifest.cpu_variant}）使用 {flags}，而 {name} 不支持。",
            ),
            why=Text(
                "It would die of an illegal instruction, so it is not started.",
                "运行会因非法指令崩溃，因此不启动。",
            ),
            remedy=Text(
                f"Make the build for this CPU: {fitting.name}." if fitting else "Make one here.",
                f"请构建适合该 CPU 的版本：{fitting.name}。" if fitting else "请在本机构建。",
            ),
            source="manifest.json: needs_flags; /proc/cpuinfo",
            command=command,
            share_lost=1.0,
        )
    ]


def glibc_finding(manifest: Manifest, machine: Machine) -> list[Finding]:
    """A C library that is too old."""
    here = version(machine.system.glibc or "")
    needed = version(manifest.glibc or "")
    if here is None or needed is None or not here.before(needed):
        return []
    return [
        Finding(
            code="engine.glibc-too-old",
            level="blocker",
            seen=Text(
                f"{manifest.name} needs glibc {manifest.glibc}, this system has "
                f"{machine.system.glibc}.",
                f"{manifest.name} 需要 glibc {manifest.glibc}，本系统为 {machine.system.glibc}。",
            ),
            why=Text("The loader refuses to start it.", "加载器会拒绝启动。"),
            remedy=Text(
                "Make one here: the packaged compiler's builds need glibc 2.17 only.",
                "请在本机构建：打包编译器生成的程序只需 glibc 2.17。",
            ),
            source="version needs of the programs (ELF)",
            command="workhorse engine build",
            share_lost=1.0,
        )
    ]


def gpu_findings(manifest: Manifest, machine: Machine) -> list[Finding]:
    """What GPU code it has, and whether each kind of card that is here is in it."""
    held = (*manifest.sass, *manifest.ptx)
    listed = Text(", ".join(held), "、".join(held)) if held else Text("none", "无")
    if held and not machine.gpus:
        return [no_card(manifest, listed)]
    found = []
    for name, capability in dict.fromkeys((g.name, g.compute_capability) for g in machine.gpus):
        code = None if capability is None else code_for(capability, manifest.sass, manifest.ptx)
        ok = code is not None and code.kind != "none"
        which = code.which if code is not None and code.which else "—"
        found.append(
            Finding(
                code="engine.gpu-code",
                level="good" if ok else "note",
                seen=Text(
                    f"GPU code of {manifest.name}: {listed.en}; {name} runs {which}."
                    if ok
                    else f"GPU code of {manifest.name}: {listed.en}; nothing in it for {name}.",
                    f"{manifest.name} 的 GPU 代码：{listed.zh}；{name} 使用 {which}。"
                    if ok
                    else f"{manifest.name} 的 GPU 代码：{listed.zh}；其中没有 {name} 可用的。",
                ),
                why=Text("It can use the card.", "可以使用该卡。")
                if ok
                else Text("Models would run on the CPU.", "模型将在 CPU 上运行。"),
                remedy=Text("Nothing to do.", "无需操作。")
                if ok
                else Text(
                    "Take a build that has code for this card.", "请使用含有该卡代码的构建。"
                ),
                source="read from the files",
                evidence=held,
            )
        )
    return found


def no_card(manifest: Manifest, listed: Text) -> Finding:
    """GPU code that nothing here can use."""
    return Finding(
        code="engine.gpu-code",
        level="note",
        seen=Text(
            f"GPU code of {manifest.name}: {listed.en}; there is no card here.",
            f"{manifest.name} 的 GPU 代码：{listed.zh}；本机没有显卡。",
        ),
        why=Text("Its CPU code is used.", "将使用其 CPU 代码。"),
        remedy=Text("Nothing to do.", "无需操作。"),
        source="read from the files",
        evidence=(*manifest.sass, *manifest.ptx),
    )


def answered(manifest: Manifest, text: str, took_s: float) -> Finding:
    """The good news: it generates."""
    shown = " ".join(text.split())[:60]
    return Finding(
        code="engine.answers",
        level="good",
        seen=Text(
            f"{manifest.name} runs here and answers: {shown!r}.",
            f"{manifest.name} 可在本机运行并能回答：{shown!r}。",
        ),
        why=Text(
            "A version number proves nothing; a generated text does.",
            "版本号证明不了什么，生成的文本可以。",
        ),
        remedy=Text("Nothing to do.", "无需操作。"),
        source=f"golden prompt, {took_s:.1f} s from start to answer",
    )
