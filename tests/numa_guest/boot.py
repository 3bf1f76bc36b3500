"""Boots a virtual machine with two NUMA nodes and proves there what one node cannot show.

    python tests/numa_guest/boot.py [--out FILE]

Needs a Debian-like x86_64 host, root for the two packages it fetches when they are missing
(`qemu-system-x86`, and a kernel that is unpacked and not installed), 3 GiB of memory and a few
minutes: the CPUs are emulated, so neither KVM nor a second socket is needed. The guest's whole
file system is this Python, its libraries and this source tree, packed here; `guest.py` is its
first process. Prints what the guest saw as JSON; exit code 1 when it saw something wrong.
"""

import argparse
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parent.parent / "src"
BEGIN, END = "<<<workhorse numa guest", "workhorse numa guest>>>"
QEMU = "qemu-system-x86_64"
# Both sockets with memory; and a board whose second socket has CPUs and no module in its slots.
HOSTS = {"two nodes": (1024, 1024), "a node without memory": (1536, 0)}
CPUS_OF = ((0, 1), (2, 3))
DISTANCE = 21  # what the firmware of dual Xeon boards says of the other socket
BOOT_WITHIN_S = 900
DISK_BYTES = 2 * 1024**3  # larger than a node's memory; a sparse file
ENGINE_PAGES = 128 * 1024 // 4  # guest.ENGINE_BYTES in pages
LEFT_OUT = {
    "site-packages", "test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3",
    "pydoc_data", "distutils", "unittest", "venv",
}  # fmt: skip
NOT_NEEDED = {"pip", "xllamacpp"}


def command(kernel: Path, initramfs: Path, disk: Path, memory_mib: tuple[int, ...]) -> list[str]:
    """The virtual machine: two sockets of two cores, a memory node each; 0 MiB: slots empty."""
    nodes = []
    for node, (cpus, size_mib) in enumerate(zip(CPUS_OF, memory_mib, strict=True)):
        memory = f",memdev=m{node}" if size_mib else ""
        if size_mib:
            nodes += ["-object", f"memory-backend-ram,id=m{node},size={size_mib}M"]
        nodes += ["-numa", f"node,nodeid={node},cpus={cpus[0]}-{cpus[-1]}{memory}"]
    return [
        *(QEMU, "-accel", "tcg,thread=multi", "-cpu", "max", "-m", f"{sum(memory_mib)}M"),
        *("-smp", "4,sockets=2,cores=2,threads=1", *nodes),
        *("-numa", f"dist,src=0,dst=1,val={DISTANCE}"),
        *("-drive", f"file={disk},if=none,id=disk,format=raw,readonly=on"),
        *("-device", "nvme,drive=disk,serial=0"),
        *("-kernel", str(kernel), "-initrd", str(initramfs)),
        *("-append", "console=ttyS0 quiet rdinit=/init panic=-1"),
        *("-nographic", "-nodefaults", "-serial", "stdio", "-no-reboot"),
    ]


def fetch_missing() -> None:
    """qemu from the distribution's packages."""
    if shutil.which(QEMU) is None:
        apt = ["apt-get", "install", "-y", "--no-install-recommends", "qemu-system-x86"]
        subprocess.run(apt, check=True, stdout=sys.stderr)


def unpack_kernel(folder: Path) -> Path:
    """A kernel image: one that is there, else the distribution's, unpacked into `folder`."""
    there = sorted(Path("/boot").glob("vmlinuz-*"))
    if there:
        return there[-1]
    shown = subprocess.run(
        ["apt-cache", "depends", "linux-image-cloud-amd64"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    package = re.search(r"Depends: (linux-image-\S+)", shown)
    if package is None:
        raise SystemExit("no package linux-image-cloud-amd64 here (run apt-get update)")
    subprocess.run(["apt-get", "download", package[1]], cwd=folder, check=True, stdout=sys.stderr)
    (archive,) = folder.glob("linux-image-*.deb")
    subprocess.run(["dpkg-deb", "-x", archive, folder / "kernel"], check=True)
    (image,) = (folder / "kernel/boot").glob("vmlinuz-*")
    return image


def guest_files() -> dict[str, Path]:
    """Path in the guest and the file here: Python, the packages, their libraries, our source."""
    interpreter = Path(sys.executable).resolve()
    library = Path(os.__file__).resolve().parent
    files = {str(interpreter): interpreter}
    for path in walk(library, LEFT_OUT):
        files[str(path)] = path
    site = library / "site-packages"
    for distribution in needed("workhorse"):
        for file in distribution.files or ():
            if ".." not in file.parts and file.suffix != ".pth":
                files[str(site / file)] = Path(str(distribution.locate_file(file)))
    for path in walk(SOURCE / "workhorse", set()):
        files[str(site / path.relative_to(SOURCE))] = path
    files["/guest.py"] = HERE / "guest.py"
    files = {name: path for name, path in files.items() if path.is_file()}
    programs = [p for p in files.values() if p == interpreter or ".so" in p.suffixes]
    return files | {str(path): path for path in libraries(programs)}


def walk(folder: Path, left_out: set[str]) -> Iterator[Path]:
    """The files below a folder, without folders of these names."""
    for place, folders, names in os.walk(folder):
        folders[:] = [n for n in folders if n not in left_out and not n.startswith("config-")]
        yield from (Path(place, name) for name in names)


def needed(name: str, seen: set[str] | None = None) -> Iterator[metadata.Distribution]:
    """A package and all that it needs to show and start things, without the engine."""
    seen = NOT_NEEDED.copy() if seen is None else seen
    key = re.sub(r"[-_.]+", "-", name).lower()
    if key in seen:
        return
    seen.add(key)
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return  # for another version of Python
    yield distribution
    for requirement in distribution.requires or ():
        if "extra ==" not in requirement and (match := re.match(r"[\w.-]+", requirement)):
            yield from needed(match[0], seen)


def libraries(programs: Iterable[Path]) -> set[Path]:
    """The shared libraries and the loader that these files are linked to."""
    said = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False).stdout
    return {Path(path) for path in re.findall(r"(/\S+) \(0x", said)}


class Archive:
    """An initramfs: a cpio archive in the "newc" format, which kernels read unpacked."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._members = 0

    def add(
        self,
        name: str,
        mode: int,
        body: bytes = b"",
        *,
        device: tuple[int, int] = (0, 0),
        time_s: int = 0,
    ) -> None:
        """Append one member; a name of two files would be one file with two contents."""
        self._members += 1
        path = name.lstrip("/").encode() + b"\0"
        words = (self._members, mode, 0, 0, 1, time_s, len(body), 0, 0, *device, len(path), 0)
        head = b"070701" + b"".join(b"%08X" % word for word in words) + path
        self._out.write(head + bytes(-len(head) % 4) + body + bytes(-len(body) % 4))


def pack(files: dict[str, Path], out: BinaryIO) -> None:
    """Write the guest's whole file system."""
    archive = Archive(out)
    folders = {str(parent) for name in files for parent in Path(name).parents} - {"/"}
    for folder in sorted({*folders, "/dev", "/proc", "/sys", "/run", "/tmp", "/root"}):
        archive.add(folder, stat.S_IFDIR | 0o755)
    for name, device in (("console", (5, 1)), ("null", (1, 3)), ("urandom", (1, 9))):
        archive.add(f"/dev/{name}", stat.S_IFCHR | 0o666, device=device)
    first = f"#!{Path(sys.executable).resolve()} -I\nimport sys\nsys.path.insert(0, '/')\n"
    archive.add("/init", stat.S_IFREG | 0o755, f"{first}import guest\nguest.main()\n".encode())
    for name, path in files.items():
        mode = stat.S_IFREG | (0o755 if os.access(path, os.X_OK) else 0o644)
        # By its time Python knows whether the compiled file beside a module is of today.
        archive.add(name, mode, path.read_bytes(), time_s=int(path.stat().st_mtime))
    archive.add("TRAILER!!!", 0)


def boot(
    folder: Path, kernel: Path, initramfs: Path, memory_mib: tuple[int, ...]
) -> dict[str, Any]:
    """What the guest saw; SystemExit with the end of its console when it said nothing."""
    console, disk = folder / "console", folder / "disk"
    with disk.open("wb") as out:
        out.truncate(DISK_BYTES)
    with console.open("wb") as out:
        subprocess.run(
            command(kernel, initramfs, disk, memory_mib),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            timeout=BOOT_WITHIN_S,
            check=False,
        )
    said = console.read_text(encoding="utf-8", errors="replace")
    _, begun, rest = said.partition(BEGIN)
    document, ended, _ = rest.partition(END)
    if not (begun and ended):
        raise SystemExit(f"the guest told nothing:\n{said[-4000:]}")
    report: dict[str, Any] = json.loads(document)
    return report


def wrong(report: dict[str, Any], memory_mib: tuple[int, ...]) -> list[str]:
    """What the guest saw that is not as planned."""
    filled = [node for node, size_mib in enumerate(memory_mib) if size_mib]
    if "failed" in report:
        return [str(report["failed"])]
    found = []
    nodes = [(n["index"], tuple(n["cpus"]), n["distances"]) for n in report["nodes"]]
    if nodes != [(0, CPUS_OF[0], [10, DISTANCE]), (1, CPUS_OF[1], [DISTANCE, 10])]:
        found.append(f"the probe's nodes: {nodes}")
    local = {
        row["node"] for row in report["bandwidths"] if row["memory_nodes"] in (None, [row["node"]])
    }
    if not set(filled) <= local:
        found.append(f"bandwidths of the nodes: {report['bandwidths']}, {report['doubts']}")
    engines = dict(report["engines"])
    if full := report.get("node 1 full of file cache"):
        engines["beside file cache"] = full["bound"]
        # Else the node was not full, and that the binding held proves nothing.
        room_pages = max(full["free_mib"]) * 1024 // 4
        if room_pages >= ENGINE_PAGES or "node 0" not in full["preferred"].get("pages", {}):
            found.append(f"a full node 1: {full}")
    engines |= {
        f"in the cpuset, {name}": seen for name, seen in report["cpuset of node 0's memory"].items()
    }
    for name, seen in engines.items():
        if trouble := misplaced(seen, allowed=[0] if "cpuset" in name else filled):
            found.append(f"{name}: {trouble}: {seen}")
    return found


def misplaced(seen: dict[str, Any], allowed: list[int]) -> str | None:
    """Why an engine does not run where it was told to; None when it does."""
    if "failed" in seen:
        return "it did not start"
    told_cpus = seen["told"]["cpus"] or sum(CPUS_OF, ())
    if numbers(seen["cpus_allowed"]) != list(told_cpus):
        return "CPUs"
    told_nodes = seen["told"]["memory_nodes"]
    pages = {int(node.removeprefix("node ")): count for node, count in seen["pages"].items()}
    if not set(pages) <= set(allowed):
        return "nodes"
    if told_nodes is None:
        return None if seen["policy"] == "default" else "policy"
    kind, _, listed = seen["policy"].partition(":")
    if (kind, numbers(listed)) != ("bind" if len(told_nodes) == 1 else "interleave", told_nodes):
        return "policy"
    share = ENGINE_PAGES / len(told_nodes)
    if sorted(pages) != told_nodes:
        return "nodes"
    return None if all(abs(n - share) < 0.02 * share for n in pages.values()) else "shares"


def numbers(listed: str) -> list[int]:
    """The numbers of a kernel's list such as `0-1,3`."""
    parts = [part.partition("-") for part in listed.split(",") if part]
    return [n for first, _, last in parts for n in range(int(first), int(last or first) + 1)]


def show(reports: dict[str, Any]) -> str:
    """The reports as JSON, with each list and object that holds no other on one line."""
    document = json.dumps(reports, indent=1)
    for innermost in (r"\[[^][{}]*\]", r"\{[^{}]*\}"):
        document = re.sub(innermost, lambda match: " ".join(match[0].split()), document)
    return document


def main() -> int:
    """Boot, print, judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, help="a file for the JSON besides stdout")
    parser.add_argument("--pack", type=Path, help="only write the guest's file system there")
    options = parser.parse_args()
    if options.pack:
        with options.pack.open("wb") as out:
            pack(guest_files(), out)
        return 0
    fetch_missing()
    with tempfile.TemporaryDirectory(prefix="numa-guest-") as name:
        folder = Path(name)
        kernel, initramfs = unpack_kernel(folder), folder / "initramfs"
        with initramfs.open("wb") as out:
            pack(guest_files(), out)
        reports = {host: boot(folder, kernel, initramfs, memory) for host, memory in HOSTS.items()}
    document = show(reports)
    print(document)
    if options.out:
        options.out.write_text(document + "\n", encoding="utf-8")
    troubles = [
        f"{host}: {trouble}"
        for host, memory in HOSTS.items()
        for trouble in wrong(reports[host], memory)
    ]
    for trouble in troubles:
        print(trouble, file=sys.stderr)
    return 1 if troubles else 0


if __name__ == "__main__":
    sys.exit(main())
