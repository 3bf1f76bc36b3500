"""How fast `workhorse convert` is, beside `cp` of the same files and the usual PyTorch script.

    python benchmarks/convert_speed.py RESULT.json [--folder FOLDER] [--size-mib 2048]
        [--torch VENV/bin/python] [--rounds 3]

The model is made in FOLDER: BF16, normal, 0.02 wide, in two files. Each side runs once a round, in
turn, from pages that are in memory. `cp, synced` also waits for the disk, as `convert` does;
`convert` besides reads everything back. `script` loads all, rounds with `.half()` and saves, as the
scripts that people pass around do; its start (importing PyTorch) is timed apart. Speeds are of
the bytes of the model. A run during which others used the cores is made again, for a while;
`disturbed` says how many cores they used in the run that counts.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from workhorse import __version__

MIB = 1024 * 1024
QUIET_S = 0.5
DISTURBED_MOST = 0.15  # cores that others use
TENSORS = 8  # a file
SCRIPT = """
import sys, time
began = time.monotonic()
from pathlib import Path
import torch
from safetensors.torch import load_file, save_file
work = time.monotonic()
files = sorted(Path(sys.argv[1]).glob("*.safetensors"))
state = {file.name: load_file(file) for file in files}
for name, tensors in state.items():
    for key in tensors:
        if tensors[key].dtype == torch.bfloat16:
            tensors[key] = tensors[key].half()
Path(sys.argv[2]).mkdir()
for name, tensors in state.items():
    save_file(tensors, Path(sys.argv[2]) / name)
print(work - began)
"""
Round = dict[str, float]


def make_model(folder: Path, size_mib: int) -> int:
    """Two files of random weights; their bytes."""
    folder.mkdir()
    dice = random.Random(0)
    piece = b"".join(struct.pack("<f", dice.gauss(0, 0.02))[2:] for _ in range(100_000))
    n_bytes = size_mib * MIB // 2 // TENSORS
    for number in (1, 2):
        places = [(i * n_bytes, (i + 1) * n_bytes) for i in range(TENSORS)]
        head = {
            f"model.layers.{number}.{i}.weight": {
                "dtype": "BF16", "shape": [n_bytes // 2], "data_offsets": place,
            }
            for i, place in enumerate(places)
        }  # fmt: skip
        raw = json.dumps(head).encode()
        raw += b" " * (-len(raw) % 8)
        with (folder / f"model-{number}.safetensors").open("wb") as file:
            file.write(struct.pack("<Q", len(raw)) + raw)
            left = n_bytes * TENSORS
            while left:
                left -= file.write(piece[:left])
    return sum(file.stat().st_size for file in folder.iterdir())


def busy_s() -> float:
    """CPU seconds that this machine has spent on processes."""
    user, nice, system = map(int, Path("/proc/stat").read_text().split()[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def timed(command: Sequence[str], folder: Path) -> Round:
    """Run it; seconds, CPU seconds, peak memory, and what others used of the CPUs meanwhile."""
    shutil.rmtree(folder, ignore_errors=True)
    os.sync()  # the round before must not still be on its way to the disk
    before = busy_s()
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    took = time.monotonic() - began
    if process.returncode:
        raise SystemExit(f"{command} failed: {process.returncode}")
    cpu = usage.ru_utime + usage.ru_stime
    found = {
        "took_s": took,
        "cpu_s": cpu,
        "peak_mib": usage.ru_maxrss / 1024,
        "others_cpu_s": max(0.0, busy_s() - before - cpu),
    }
    if command[0] != "sh":
        if command[1] == "-c":
            found["start_s"] = float(said)
        else:
            report = json.loads(said)
            found["start_s"] = took - report["duration_s"]
            found["read_back_s"] = sum(shard["read_back_s"] for shard in report["shards"])
    return found


def when_quiet(command: Sequence[str], folder: Path, patience_s: float) -> Round:
    """`timed`, again as long as others took the cores from it; the least disturbed run."""
    until = time.monotonic() + patience_s
    best: Round | None = None
    while best is None or (best["disturbed"] > DISTURBED_MOST and time.monotonic() < until):
        while time.monotonic() < until:
            before = busy_s()
            time.sleep(QUIET_S)
            if busy_s() - before < DISTURBED_MOST * QUIET_S:
                break
        found = timed(command, folder)
        found["disturbed"] = found["others_cpu_s"] / found["took_s"]
        if best is None or found["disturbed"] < best["disturbed"]:
            best = found
    return best


def main() -> None:
    """Measure and store."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("result", type=Path)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--size-mib", type=int, default=2048)
    parser.add_argument("--torch", help="a Python with torch and safetensors")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--patience-s", type=float, default=60, help="to wait for quiet, each run")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as place:
        model, out = Path(place) / "model", Path(place) / "out"
        n_bytes = make_model(model, args.size_mib)
        copy = f"cp -r {model} {out}"
        convert = [sys.executable, "-m", "workhorse", "convert", str(model), "--json"]
        sides = {
            "cp": ["sh", "-c", copy],
            "cp, synced": ["sh", "-c", f"{copy} && sync {out}/*"],
            "convert": [*convert, "--output", str(out)],
        }
        if args.torch:
            sides["script"] = [args.torch, "-c", SCRIPT, str(model), str(out)]
        rounds: dict[str, list[Round]] = {name: [] for name in sides}
        for _ in range(args.rounds):
            for name, command in sides.items():
                rounds[name].append(when_quiet(command, out, args.patience_s))
                print(name, rounds[name][-1], flush=True)
    document = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "workhorse": __version__,
        "cpus": os.cpu_count(),
        "load_average": os.getloadavg(),
        "model_n_bytes": n_bytes,
        "rounds": rounds,
        "medians": {name: medians(found, n_bytes) for name, found in rounds.items()},
    }
    args.result.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(document["medians"], indent=1))


def medians(rounds: Sequence[Round], n_bytes: int) -> Round:
    """The median of each figure, and the speed by the median time, whole and after the start."""
    middle = {key: statistics.median(found[key] for found in rounds) for key in rounds[0]}
    middle["gb_per_s"] = n_bytes / middle["took_s"] / 1e9
    started = [found["took_s"] - found.get("start_s", 0.0) for found in rounds]
    middle["gb_per_s_after_start"] = n_bytes / statistics.median(started) / 1e9
    if "read_back_s" in middle:
        written = [t - found["read_back_s"] for t, found in zip(started, rounds, strict=True)]
        middle["gb_per_s_written_and_synced"] = n_bytes / statistics.median(written) / 1e9
    return {key: round(value, 3) for key, value in middle.items()}


if __name__ == "__main__":
    main()
