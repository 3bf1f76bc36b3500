"""How long a diagnosis of a large log takes and how much memory it needs.

    python benchmarks/diagnose_log.py [--megabytes 200] [--repeats 3]

Writes a log of healthy engine logs with one failure in the middle (request after request, each
with its own figures), reads it in a process of its own, and prints time, peak memory and cause.
"""

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from statistics import median
from typing import Any

TESTS = Path(__file__).parent.parent / "tests" / "diagnose"
CASE = TESTS / "cases" / "h4-014.toml"
CHUNK_BYTES = 1024**2
FIGURE = re.compile(rb"\b\d{1,6}\.\d\d\b")


def main() -> None:
    """Write the log, read it several times, print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.read:
        print(json.dumps(read(args.read)))
        return
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "large.log")
        write(log, args.megabytes * 10**6)
        size = log.stat().st_size / 1e6
        runs = [ask(log) for _ in range(args.repeats)]
    for run in runs:
        print(
            f"{size:.0f} MB: {run['seconds']:.2f} s ({run['cpu_seconds']:.2f} s of CPU), peak"
            f" {run['peak_mb']:.0f} MB, {run['lines']} lines: {', '.join(run['codes'])}"
        )
    print(f"median {median(run['seconds'] for run in runs):.2f} s")


def ask(log: Path) -> dict[str, Any]:
    """One reading in a fresh process, so that its peak of memory is its own."""
    command = [sys.executable, __file__, "--read", str(log)]
    found: dict[str, Any] = json.loads(
        subprocess.run(command, check=True, capture_output=True).stdout
    )
    return found


def read(log: Path) -> dict[str, Any]:
    """The diagnosis and what it cost, with the start of the interpreter left out."""
    import resource

    from workhorse.diagnose.judge import diagnose, scan

    begun, begun_cpu = time.perf_counter(), time.process_time()
    with log.open("rb") as file:
        scanner = scan(iter(lambda: file.read(CHUNK_BYTES), b""))
    verdict = diagnose(scanner)
    return {
        "seconds": time.perf_counter() - begun,
        "cpu_seconds": time.process_time() - begun_cpu,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "lines": scanner.lines,
        "codes": [f"{f.code} ({f.level})" for f in verdict.findings],
    }


def write(log: Path, n_bytes: int) -> None:
    """Healthy logs in random order until the size is reached, the failure in the middle."""
    dice = random.Random(1)
    healthy = [path.read_bytes() for path in sorted((TESTS / "healthy").glob("*.log"))]
    case = tomllib.loads(CASE.read_text())["log"].encode()
    variants = [renumbered(text, dice) for text in healthy for _ in range(20)]
    written, told = 0, False
    with log.open("wb") as file:
        while written < n_bytes:
            if not told and written >= n_bytes // 2:
                written += file.write(case)
                told = True
            written += file.write(dice.choice(variants))


def renumbered(text: bytes, dice: random.Random) -> bytes:
    """The same lines with other times and speeds: no two requests of a real log are alike."""
    factor = dice.uniform(0.9, 1.1)
    return FIGURE.sub(lambda found: b"%.2f" % (float(found[0]) * factor), text)


if __name__ == "__main__":
    main()
