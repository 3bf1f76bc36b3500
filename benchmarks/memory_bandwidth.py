"""Is the probe's memory bandwidth that of the field's own tools, in one run, in turns?

    python benchmarks/memory_bandwidth.py [--rounds 7] [--size-mib 256]

Against `likwid-bench` (Debian's package likwid): its load kernel reads as we do; its STREAM triad
with non-temporal stores is the figure that people quote. And against `mbw`, which copies (what it
counts once is read and written). All with as many threads as the process has CPUs, with small
pages and, by glibc's tunable, with huge ones.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from turns import now
from workhorse import __version__
from workhorse.bench.stats import spread
from workhorse.machine.probe import probe

STORED = Path(__file__).parent.parent / "docs" / "measured" / "memory_bandwidth.json"
HUGE = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


@dataclass(frozen=True, slots=True)
class Result:
    """Every reading in bytes a second, in the order of time."""

    when: str
    workhorse: str
    cpu: str | None
    threads: int
    size_mib: int
    readings: dict[str, list[float]]


def main() -> None:
    """Parse, read in turns, print, store."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--size-mib", type=int, default=256)
    parser.add_argument("--out", type=Path, default=STORED)
    args = parser.parse_args()
    threads = len(os.sched_getaffinity(0))
    kernel = "load_avx512" if "avx512f" in flags() else "load_avx"
    triad = "stream_mem_avx512" if "avx512f" in flags() else "stream_mem_avx"
    readings: dict[str, list[float]] = {}

    def note(name: str, value: float | None) -> None:
        if value is not None:
            readings.setdefault(name, []).append(value)

    for _ in range(args.rounds):
        machine = probe(measure_s=1.0)
        for bandwidth in machine.memory.bandwidths:
            note(f"workhorse, {bandwidth.pages}", bandwidth.bytes_per_s)
        for pages, environment in (("small", {}), ("huge", HUGE)):
            size = f"N:{args.size_mib}MB:{threads}"
            note(f"likwid {kernel}, {pages}", likwid(kernel, size, environment))
            note(f"likwid {triad}, {pages}", likwid(triad, size, environment))
        note("mbw memcpy x 2", copied(args.size_mib // 2, threads))
    for name, values in readings.items():
        shown = spread([value / 1e9 for value in values])
        if shown:
            print(f"{name}: {shown.median:.1f} GB/s ({shown.low:.1f}–{shown.high:.1f})")
    for pages in ("small", "huge"):
        ours, theirs = (
            readings.get(f"workhorse, {pages}"),
            readings.get(f"likwid {kernel}, {pages}"),
        )
        if ours and theirs:
            print(f"{pages} pages: {median(ours) / median(theirs):.3f} of likwid's load kernel")
    result = Result(now(), __version__, machine.cpu.name, threads, args.size_mib, readings)
    args.out.write_text(json.dumps(asdict(result), indent=1) + "\n", encoding="utf-8")
    print(f"stored: {args.out}")


def flags() -> tuple[str, ...]:
    """The instruction sets of this machine."""
    return probe(measure_s=0).cpu.flags


def likwid(kernel: str, size: str, environment: dict[str, str]) -> float | None:
    """One reading of likwid-bench, in bytes a second; None where it is not installed."""
    if shutil.which("likwid-bench") is None:
        return None
    command = ("likwid-bench", "-t", kernel, "-w", size, "-s", "1")
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )
    found = re.search(r"MByte/s:\s*([\d.]+)", done.stdout)
    return float(found[1]) * 1e6 if found else None


def copied(size_mib: int, threads: int) -> float | None:
    """mbw's memcpy over several threads, read and written, in bytes a second."""
    if shutil.which("mbw") is None:
        return None
    command = ("mbw", "-q", "-n", "5", "-t0", str(size_mib))
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(threads)]
    total = 0.0
    for process in running:
        text, _ = process.communicate(timeout=120)
        found = re.search(r"AVG.*Copy: ([\d.]+) MiB/s", text)
        total += float(found[1]) * 1024**2 * 2 if found else 0.0
    return total or None


if __name__ == "__main__":
    main()
