"""A whole service under a steady load for an hour: does memory grow, do files leak, does it slow?

    python benchmarks/soak.py [--seconds 3600] [--load 0.8] [--save FILE]

`workhorse up` with everything that runs beside it, on the fake engine, whose times and texts are
known beforehand. Requests come at random moments, so many that the slots are busy for the share
that --load says; every third one is not streamed, every tenth client leaves in the middle. Exit
code 1 when something grew, leaked, slowed down or was answered wrong.
"""

import argparse
import asyncio
import json
import os
import random
import re
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp

from workhorse import __version__
from workhorse.config import places
from workhorse.models.embedded import embedded_model

SLOTS, TOKENS = 8, 40
TTFT_S, GAP_S = 0.05, 0.02
ANSWER_S = TTFT_S + GAP_S * (TOKENS - 1)
START_S = 120.0
PATIENCE_S = 120.0  # for one answer
WARM_UP_SHARE = 0.15  # of the time: what a process fills once (caches, connections) fills then
GROWTH_MAX = 0.05
FILES_MORE_MAX = 2  # at rest, of tens of thousands of requests: a leak keeps more
REST_S = 3.0  # no connection has ended for so long: nobody is there any more
SLOWER_MAX = 1.15  # of the first fifth's median
SEED = 6


@dataclass(slots=True)
class Soak:
    """What was seen."""

    began_s: float = field(default_factory=time.monotonic)
    rss_bytes: list[tuple[float, int]] = field(default_factory=list)
    files: list[tuple[float, int]] = field(default_factory=list)  # those of connections too
    files_at_rest: list[int] = field(default_factory=list)  # before the load and after it
    first_token_s: list[tuple[float, float]] = field(default_factory=list)
    whole_s: list[tuple[float, float]] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    left: int = 0

    def now_s(self) -> float:
        """Seconds since the load began."""
        return time.monotonic() - self.began_s


@contextmanager
def service(home: Path) -> Iterator[tuple[str, int]]:
    """`workhorse up` on the fake engine: its URL and its process."""
    said = home / "said.txt"
    command = [sys.executable, "-m", "workhorse", "up", str(embedded_model(places().data))]
    command += ["--engine", str(fake_server(home)), "--slots", str(SLOTS), "--port", "0"]
    with said.open("wb") as out:
        process = subprocess.Popen(
            [*command, "--context", "2048", "--skip-golden", "--no-measure"],
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, "WORKHORSE_HOME": str(home), "WORKHORSE_LANG": "en"},
        )
    try:
        deadline_s = time.monotonic() + START_S
        while not (found := re.search(r"(http://\S+)/v1 ", said.read_text())):
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise SystemExit(f"the service did not start:\n{said.read_text()}")
            time.sleep(0.1)
        yield found[1], process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=60)
        finally:
            process.kill()


def fake_server(folder: Path) -> Path:
    """The fake engine as a program that is called like llama-server."""
    program = folder / "llama-server"
    options = f"--ttft-ms {TTFT_S * 1000} --gap-ms {GAP_S * 1000} --slots {SLOTS}"
    program.write_text(
        "#!/bin/sh\n"
        'case "$1" in\n'
        '--help) printf "%s\\n" "--ctx-size N" "--parallel N" "--model F" "--port N" '
        '"--api-key K";;\n'
        "--version) echo version: 1;;\n"
        f"*) exec {sys.executable} -m workhorse.engines.fake --ignore-unknown {options} "
        '"$@";;\n'
        "esac\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


async def one_request(http: aiohttp.ClientSession, number: int, soak: Soak) -> None:
    """One client: what it asks follows from its number, and so does the right answer."""
    stream, leaves = number % 3 != 0, number % 10 == 7
    prompt = f"request {number % 50}"
    body = {"prompt": prompt, "max_tokens": TOKENS, "ignore_eos": True, "stream": stream}
    began_s = time.monotonic()
    try:
        async with asyncio.timeout(PATIENCE_S), http.post("/v1/completions", json=body) as answer:
            if answer.status != 200:
                soak.troubles.append(f"HTTP {answer.status}: {(await answer.text())[:200]}")
                return
            first = await answer.content.readany()
            if stream:
                soak.first_token_s.append((soak.now_s(), time.monotonic() - began_s))
            if leaves:
                soak.left += 1
                return
            document = first + await answer.content.read()
            soak.whole_s.append((soak.now_s(), time.monotonic() - began_s))
    except (aiohttp.ClientError, TimeoutError) as error:
        soak.troubles.append(repr(error))
        return
    check(document, prompt, stream, soak)


TEXTS: dict[str, str] = {}  # the first answer to a prompt: each further one has to equal it


def check(document: bytes, prompt: str, stream: bool, soak: Soak) -> None:
    """Note an answer that is not the one that this prompt always gets."""
    if stream:
        if not document.endswith(b"data: [DONE]\n\n"):
            soak.troubles.append(f"cut: {document[-100:]!r}")
            return
        events = [line[6:] for line in document.split(b"\n") if line.startswith(b"data: {")]
        choices = [choice for event in events for choice in json.loads(event)["choices"]]
    else:
        choices = json.loads(document)["choices"]
    text = "".join(choice["text"] for choice in choices)
    if TEXTS.setdefault(prompt, text) != text:
        soak.troubles.append(f"another answer to {prompt!r}: {text[:80]!r}")


async def run(url: str, pid: int, seconds: float, load: float) -> Soak:
    """The load, a look at the process each second, and one at rest before and after it."""
    chance, soak, process = random.Random(SEED), Soak(), Path(f"/proc/{pid}")
    rate = load * SLOTS / ANSWER_S
    async with aiohttp.ClientSession(url) as http:  # what is opened once is open then
        await asyncio.gather(*(one_request(http, number, Soak()) for number in range(2 * SLOTS)))
    soak.files_at_rest.append(await files_at_rest(process))
    soak.began_s = time.monotonic()
    running: set[asyncio.Task[None]] = set()
    watching = asyncio.create_task(watch(process, soak))
    async with aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=0)) as http:
        number, due_s = 0, time.monotonic()
        while soak.now_s() < seconds:
            due_s += chance.expovariate(rate)
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            task = asyncio.create_task(one_request(http, number, soak))
            running.add(task)
            task.add_done_callback(running.discard)
            number += 1
        await asyncio.gather(*running)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    soak.files_at_rest.append(await files_at_rest(process))
    return soak


async def watch(process: Path, soak: Soak) -> None:
    """Memory and open files of the gateway's process, once a second."""
    while True:
        look(process, soak)
        await asyncio.sleep(1.0)


async def files_at_rest(process: Path) -> int:
    """The fewest files that a process has open once no client is there.

    Under load each client has one and its engine's connection another, so that their number tells
    how busy the machine is; what has leaked is still open at rest.
    """
    fewest = count_files(process)
    fell_s = time.monotonic()
    while time.monotonic() - fell_s < REST_S:
        await asyncio.sleep(0.05)
        if (count := count_files(process)) < fewest:
            fewest, fell_s = count, time.monotonic()
    return fewest


def count_files(process: Path) -> int:
    """The files that a process has open now."""
    return len(list((process / "fd").iterdir()))


def look(process: Path, soak: Soak) -> None:
    """One look at a process in /proc."""
    lines = (process / "status").read_text().splitlines()
    kib = next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
    soak.rss_bytes.append((soak.now_s(), kib * 1024))
    soak.files.append((soak.now_s(), count_files(process)))


def fifths(points: Sequence[tuple[float, float]], seconds: float) -> tuple[float, float]:
    """The medians of the first and of the last fifth of the time after the warm-up."""
    start_s = seconds * WARM_UP_SHARE
    fifth_s = (seconds - start_s) / 5
    first = [value for at_s, value in points if start_s <= at_s < start_s + fifth_s]
    last = [value for at_s, value in points if at_s >= seconds - fifth_s]
    return median(first), median(last)


def judge(soak: Soak, seconds: float, *, latency: bool) -> tuple[dict[str, Any], list[str]]:
    """The figures, and what is wrong with them."""
    rss, files = fifths(soak.rss_bytes, seconds), fifths(soak.files, seconds)
    ttft, whole = fifths(soak.first_token_s, seconds), fifths(soak.whole_s, seconds)
    growth = rss[1] / rss[0] - 1
    figures = {
        "answers": len(soak.whole_s),
        "clients that left": soak.left,
        "RSS, MiB": [round(value / 2**20, 2) for value in rss],
        "RSS growth, %": round(growth * 100, 2),
        "open files": list(files),
        "open files at rest": soak.files_at_rest,
        "TTFT, ms": [round(value * 1000, 1) for value in ttft],
        "whole answer, ms": [round(value * 1000, 1) for value in whole],
        "troubles": len(soak.troubles),
    }
    wrong = [f"answered wrong: {soak.troubles[:3]}"] if soak.troubles else []
    if growth > GROWTH_MAX:
        wrong.append(f"memory grew by {growth:.1%}")
    before, after = soak.files_at_rest
    if after > before + FILES_MORE_MAX:
        wrong.append(f"files at rest grew from {before} to {after}: they leak")
    for name, (first_s, last_s) in (("the first token", ttft), ("a whole answer", whole)):
        if latency and last_s > first_s * SLOWER_MAX:
            wrong.append(f"{name} came later: {first_s * 1000:.0f}, then {last_s * 1000:.0f} ms")
    return figures, wrong


def main() -> int:
    """Run it, print the first fifth against the last; 1 when it did not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--load", type=float, default=0.8, help="share of the slots' time")
    parser.add_argument("--any-latency", action="store_true", help="other work runs beside it")
    parser.add_argument("--save", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as home, service(Path(home)) as (url, pid):
        soak = asyncio.run(run(url, pid, args.seconds, args.load))
    figures, wrong = judge(soak, args.seconds, latency=not args.any_latency)
    for name, value in figures.items():
        print(f"{name:20} {value}")
    for words in wrong:
        print(f"not held: {words}")
    if args.save:
        document = {
            "seconds": args.seconds,
            "load": args.load,
            "version": __version__,
            "figures": figures,
            "not held": wrong,
            "samples": asdict(soak),
        }
        args.save.write_text(json.dumps(document) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
