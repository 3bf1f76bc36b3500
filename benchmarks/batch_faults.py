"""10,000 items on an engine with faults: is every item accounted for, does memory stay flat?

    python benchmarks/batch_faults.py OUT.json [--items 10000] [--timeout-s 3]

The fake engine answers 5 % of all requests with an error, 2 % never, 1 % with one token over and
over. A request may take --timeout-s here (the command allows minutes), or the waiting alone would
take hours. Each item ends just once, done or with its reason; the memory of the process that runs
the job is looked at all the time.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any

from batch_rig import machine_words
from workhorse.batch.concurrency import Concurrency, Room
from workhorse.batch.item import NewItem
from workhorse.batch.job import Job, JobRecord
from workhorse.batch.ledger import Ledger
from workhorse.batch.output import write_output
from workhorse.batch.pace import PaceKeeper
from workhorse.batch.progress import Progress
from workhorse.batch.retry import Patience
from workhorse.batch.runner import run_job
from workhorse.batch.tasks import make_task
from workhorse.batch.template_files import find_template, settle_options
from workhorse.bench.load import load_session
from workhorse.bench.service import find_service
from workhorse.config import HOST
from workhorse.run.process import free_port
from workhorse.text import Text

STREAMS = 64
GROWTH_MAX = 0.10
WARM_SHARE = 0.2  # of the items: what a process fills once fills then


class Watch:
    """Notes the memory of this process as the job goes on."""

    def __init__(self) -> None:
        self.rss_bytes: list[tuple[int, int]] = []  # items ended, resident bytes
        self.notes = 0

    def seen(self, progress: Progress) -> None:
        """About once a second."""
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        self.rss_bytes.append((progress.counts.ended, pages * os.sysconf("SC_PAGE_SIZE")))

    def note(self, words: Text) -> None:  # noqa: ARG002
        """What is told a person."""
        self.notes += 1


@contextmanager
def faulty_engine(items: int) -> Iterator[str]:
    """The fake engine with its faults."""
    port = free_port(HOST)
    command = [sys.executable, "-m", "workhorse.engines.fake", "--port", str(port)]
    command += ["--slots", str(STREAMS), "--answer-tokens", "24", "--gap-ms", "2"]
    command += ["--error-rate", "0.05", "--hang-rate", "0.02", "--garbage-rate", "0.01"]
    with subprocess.Popen([*command, "--seed", str(items)]) as engine:
        try:
            deadline_s = time.monotonic() + 120
            while time.monotonic() < deadline_s:
                with suppress(OSError), urllib.request.urlopen(f"http://{HOST}:{port}/health"):
                    break
                time.sleep(0.05)
            yield f"http://{HOST}:{port}"
        finally:
            engine.kill()


async def run(url: str, ledger: Ledger, items: int, timeout_s: float, watch: Watch) -> JobRecord:
    """The job, as the command runs it but for the time of a request."""
    found = find_template("summary-short", Path("none"))
    job = Job(
        template="summary-short",
        definition=found.definition,
        options=settle_options(found.template, {}, Path()),
        input="made here",
        output=None,
        url=url,
        attempts=5,
    )
    async with load_session() as client:
        service = await find_service(client, url)
    record = ledger.add(
        job,
        (
            NewItem(id=f"{n:05}", source=f"{n:05}", content=f"The item {n} says little. " * 6)
            for n in range(items)
        ),
        time.time(),
    )
    return await run_job(
        ledger,
        record.id,
        task=make_task(job),
        service=service,
        pace=PaceKeeper(Concurrency(Room(asked=STREAMS))),
        tell=watch,
        context_tokens=4096,
        patience=FixedPatience(timeout_s),
    )


class FixedPatience(Patience):
    """A request may take this long, whatever it asks."""

    def __init__(self, limit_s: float) -> None:
        super().__init__()
        self._limit_s = limit_s

    def limit_s(self, prompt_bytes: int, output_tokens: int, slow: int = 0) -> float:  # noqa: ARG002
        """Always the same."""
        return self._limit_s


def judge(ledger: Ledger, record: JobRecord, watch: Watch, output: Path) -> dict[str, Any]:
    """The figures, and what did not hold."""
    items = record.counts.all
    write_output(output, "jsonl", ledger.items(record.id), record)
    ids = [json.loads(line)["id"] for line in output.read_text(encoding="utf-8").splitlines()]
    causes = Counter(
        one.reason.cause for one in ledger.items(record.id, states=("failed",)) if one.reason
    )
    warm = [rss for ended, rss in watch.rss_bytes if ended >= items * WARM_SHARE]
    fifth = max(1, len(warm) // 5)
    first, last = median(warm[:fifth]), median(warm[-fifth:])
    wrong = []
    if record.state != "done" or record.counts.ended != items:
        wrong.append(f"the ledger says {record.counts}")
    if ids != [f"{number:05}" for number in range(items)]:
        wrong.append(f"{len(ids)} lines, {len(set(ids))} different")
    if sum(causes.values()) != record.counts.failed:
        wrong.append(f"{record.counts.failed} failed, reasons of {sum(causes.values())}")
    if last > first * (1 + GROWTH_MAX):
        wrong.append(f"memory grew by {last / first - 1:.1%}")
    return {
        "done": record.counts.done,
        "failed": record.counts.failed,
        "causes": dict(causes),
        "answers": ledger.usage(record.id).requests,
        "RSS MiB, first and last fifth": [round(value / 2**20, 1) for value in (first, last)],
        "RSS MiB, most": round(max(rss for _, rss in watch.rss_bytes) / 2**20, 1),
        "not held": wrong,
    }


def main() -> int:
    """Run it, print the figures; 1 when something did not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path)
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--timeout-s", type=float, default=3.0)
    args = parser.parse_args()
    watch, began_s = Watch(), time.monotonic()
    with (
        tempfile.TemporaryDirectory() as scratch,
        closing(Ledger(Path(scratch) / "batch.sqlite")) as ledger,
        faulty_engine(args.items) as url,
    ):
        record = asyncio.run(run(url, ledger, args.items, args.timeout_s, watch))
        found = judge(ledger, record, watch, Path(scratch) / "results.jsonl")
    found["seconds"] = time.monotonic() - began_s
    for name, value in found.items():
        print(f"{name:32} {value}")
    document = found | {"rss_bytes": watch.rss_bytes, "machine": machine_words()}
    args.out.write_text(json.dumps(document) + "\n")
    return 1 if found["not held"] else 0


if __name__ == "__main__":
    sys.exit(main())
