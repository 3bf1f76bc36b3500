"""A batch job killed at random moments: is any result lost, or there twice?

    python benchmarks/batch_kills.py OUT.json [--kills 20] [--documents 600]

`workhorse up` on the fake engine, and a job of small documents. At a random moment of each run the
command is killed (two times of three) or the engine is, with SIGKILL; after each the job is gone
on with. At the end every document has just one result, in the order of the input, and what was
asked more than once is no more than was under way at the kills.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from batch_rig import environment, fake_server, machine_words, service, workhorse
from workhorse.batch.job import JobRecord
from workhorse.batch.ledger import Ledger
from workhorse.config import Places, places
from workhorse.models.embedded import embedded_model

SEED = 10
SLOTS, TOKENS = 4, 8
PATIENCE_S = 120.0


def latest(home: Path) -> JobRecord | None:
    """The job as its ledger has it now."""
    with closing(Ledger(Places(home).batch)) as ledger:
        jobs = ledger.jobs()
    return jobs[0] if jobs else None


def begun(home: Path, words: list[str]) -> "subprocess.Popen[bytes]":
    """The command in a process of its own; what it says goes into a file."""
    command = [sys.executable, "-m", "workhorse", "batch", *words]
    with (home / "said.txt").open("ab") as out:
        return subprocess.Popen(command, env=environment(home), stdout=out, stderr=out)


def engine_of(home: Path) -> int | None:
    """The process of the engine, as the service tells it."""
    found: dict[str, Any] = workhorse(home, "status", "--json", code=(0, 3))
    pid = found["engines"][0]["pid"]
    return None if pid is None else int(pid)


def run(home: Path, folder: Path, url: str, kills: int, chance: random.Random) -> dict[str, Any]:
    """Kill and go on until it was killed so often; then let it end."""
    output = home / "results.jsonl"
    words = [str(folder), "--template", "summary-short", "--url", url, "--output", str(output)]
    done_then: list[int] = []
    victims: list[str] = []
    process = begun(home, words)
    while len(victims) < kills:
        before = record.counts.ended if (record := latest(home)) else 0
        aim = before + chance.randint(1, 2 * SLOTS)  # not while it starts, each time
        deadline_s = time.monotonic() + PATIENCE_S
        while (record := latest(home)) is None or record.counts.ended < aim:
            if process.poll() is not None or time.monotonic() > deadline_s:
                break
            time.sleep(0.01)
        time.sleep(chance.random() * 0.2)
        if process.poll() is not None:
            said = (home / "said.txt").read_text()[-3000:]
            ended = f"it ended with {process.returncode} after {len(victims)} kills"
            raise SystemExit(f"{said}\n{ended}")
        victim = "engine" if len(victims) % 3 == 2 else "command"
        pid = engine_of(home) if victim == "engine" else process.pid
        if pid is None:
            continue  # it is being started again
        os.kill(pid, signal.SIGKILL)
        victims.append(victim)
        done_then.append(record.counts.ended if record else 0)
        if victim == "command":
            process.wait()
            # Killed before the job was kept there is nothing to lose.
            process = begun(home, words if latest(home) is None else ["resume"])
    code = process.wait(timeout=600)
    return {"code": code, "victims": victims, "done then": done_then, "output": str(output)}


def judge(home: Path, output: Path, names: list[str]) -> list[str]:
    """What did not hold."""
    lines = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    ids = [line["id"] for line in lines]
    wrong = []
    if ids != names:
        lost, more = len(set(names) - set(ids)), len(ids) - len(set(ids))
        wrong.append(f"{lost} lost, {more} twice, in order: {ids == sorted(ids)}")
    if bad := [line for line in lines if not line.get("text")]:
        wrong.append(f"{len(bad)} without a result: {bad[0]}")
    record = latest(home)
    if record is None or record.state != "done" or record.counts.done != len(names):
        wrong.append(f"the ledger says {record}")
    return wrong


def main() -> int:
    """Run it, print the figures; 1 when something was lost or there twice."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--documents", type=int, default=600)
    args = parser.parse_args()
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        home, folder = Path(scratch) / "home", Path(scratch) / "documents"
        home.mkdir()
        folder.mkdir()
        names = [f"{number:04}.txt" for number in range(args.documents)]
        for name in names:
            (folder / name).write_text(f"The document {name} says little. " * 8)
        options = f"--gap-ms 50 --answer-tokens {TOKENS} --slots {SLOTS}"
        engine = fake_server(home, options)
        model = embedded_model(places().data)
        with service(
            home, model, "--engine", str(engine), "--slots", str(SLOTS), "--skip-golden",
            "--context", "2048",
        ) as (url, _):  # fmt: skip
            found = run(home, folder, url, args.kills, random.Random(SEED))
        wrong = judge(home, Path(found["output"]), names)
        with closing(Ledger(Places(home).batch)) as ledger:
            requests = ledger.usage(ledger.jobs()[0].id).requests
    found |= {"answers kept": requests, "not held": wrong, "seconds": time.monotonic() - began_s}
    del found["output"]
    for name, value in found.items():
        print(f"{name:20} {value}")
    args.out.write_text(json.dumps(found | {"machine": machine_words()}) + "\n")
    return 1 if wrong or found["code"] else 0


if __name__ == "__main__":
    sys.exit(main())
