"""What a declared template saves: time to first token with and without it, around a restart.

    python benchmarks/templates.py [--rounds 5] [--tokens 1000]

Two services on the embedded model, four slots each; one has the template declared. Each round
kills both engines (SIGKILL), in turns first one, then the other, and asks each: once after the
restart, once more, and by four clients at once after another kill. Then: what a prefill ahead of
its turn would give a prompt that waits because every slot answers somebody.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import aiohttp

from client_leaves import engine_below
from servers import Server, free_port, running, says_200, shown, tree
from workhorse.codec import to_line
from workhorse.machine.probe import probe
from workhorse.run.address import Address

MEASURED = Path(__file__).parent.parent / "docs" / "measured"
SLOTS = 4
TOKENS_A_RULE = 21
PATIENCE_S = 900.0
Figures = dict[tuple[str, str], list[float]]


def main() -> None:
    """Start both services, take turns, print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=1000, help="of the template, about")
    args = parser.parse_args()
    system = "You are a clerk of a library. " + " ".join(
        f"Rule {number}: a book of shelf {number} may be lent for {number + 3} days."
        for number in range(args.tokens // TOKENS_A_RULE)
    )
    with tempfile.TemporaryDirectory() as folder, ExitStack() as services:
        sides = {
            name: services.enter_context(service(Path(folder), name, system))
            for name in ("with", "without")
        }
        wait_prepared(sides["with"])
        figures: Figures = defaultdict(list)
        for number in range(args.rounds):
            names = ["with", "without"] if number % 2 == 0 else ["without", "with"]
            for name in names:
                one_round(sides[name], name, system, figures)
            latest = [
                f"{when}, {what} {values[-1]:.2f}" for (when, what), values in figures.items()
            ]
            print(f"round {number + 1} of {args.rounds}: " + "; ".join(latest), flush=True)
        show(figures)
        engine = engine_below(sides["without"].pid)
        notes = asyncio.run(waiting_prompt(engine, system))
        store(figures, notes, [shown(side.command) for side in sides.values()])


def service(folder: Path, name: str, system: str) -> AbstractContextManager[Server]:
    """`workhorse up` with four slots; the template is declared where the name says so."""
    settings = f"[[model]]\nslots = {SLOTS}\ncontext = 4096\n"
    if name == "with":
        (folder / "system.txt").write_text(system)
        settings += '[[template]]\nname = "clerk"\nsystem_file = "system.txt"\n'
    file = folder / f"{name}.toml"
    file.write_text(settings)
    port = free_port()
    command = [sys.executable, "-m", "workhorse", "up", "--config", str(file), "--no-measure"]
    return running([*command, "--port", str(port)], port, "/healthz", stop=signal.SIGINT)


def wait_prepared(server: Server) -> None:
    """Until the template is in the slots and on disk."""
    asyncio.run(until_prepared(server))


async def until_prepared(server: Server) -> None:
    """Ask the service's own state until it says so."""
    async with aiohttp.ClientSession() as client, asyncio.timeout(PATIENCE_S):
        while True:
            async with client.get(f"{server.url}/workhorse/state") as answer:
                (told,) = (await answer.json())["templates"]
            if told["state"] == "ready" and told["on_disk"]:
                print(f"prepared: {told['tokens']} tokens, {told['prefill_s']:.1f} s of prefill")
                return
            await asyncio.sleep(0.2)


def one_round(server: Server, name: str, system: str, figures: Figures) -> None:
    """One side: after a kill alone, again, and after another kill four at once."""
    restart(server)
    for when in ("first after a restart", "the next one"):
        (asked,) = asyncio.run(ask(server, system, 1))
        note(figures, name, when, [asked])
    restart(server)
    asked_at_once = asyncio.run(ask(server, system, SLOTS))
    note(figures, name, "four at once after a restart", asked_at_once)


def note(figures: Figures, name: str, when: str, asked: Sequence[tuple[float, int, int]]) -> None:
    """Keep the mean TTFT and the tokens that were computed."""
    figures[when, f"{name}: TTFT s"].append(sum(ttft_s for ttft_s, _, _ in asked) / len(asked))
    figures[when, f"{name}: tokens computed"].append(sum(n for _, n, _ in asked) / len(asked))


def restart(server: Server) -> None:
    """Kill the engine and wait until another one is ready."""
    before = engine_pid(server)
    os.kill(before, signal.SIGKILL)
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        if engine_pid(server) not in (0, before) and says_200(f"{server.url}/healthz"):
            return
        time.sleep(0.05)
    raise RuntimeError("the engine did not come back")


def engine_pid(server: Server) -> int:
    """The process of the engine; 0 while there is none."""
    for child in tree(server.pid)[1:]:
        try:
            words = Path(f"/proc/{child}/cmdline").read_bytes()
        except OSError:
            continue
        if b"--alias" in words:
            return child
    return 0


async def ask(server: Server, system: str, clients: int) -> list[tuple[float, int, int]]:
    """Seconds to the first token, tokens computed and reused, of clients that come at once."""
    async with aiohttp.ClientSession() as client:
        return await asyncio.gather(*(chat(client, server, system, n) for n in range(clients)))


async def chat(
    client: aiohttp.ClientSession, server: Server, system: str, number: int
) -> tuple[float, int, int]:
    """One streamed chat of eight tokens."""
    messages = [
        {"role": "system", "content": system},
        {"role": "user", "content": f"Question {number} of {time.monotonic()}: name a colour."},
    ]
    body = {"messages": messages, "max_tokens": 8, "stream": True}
    began_s, first_s = time.monotonic(), None
    async with client.post(f"{server.url}/v1/chat/completions", json=body) as answer:
        async for line in answer.content:
            event = line.removeprefix(b"data: ").strip()
            if not event.startswith(b"{"):
                continue
            found = json.loads(event)
            delta = (found.get("choices") or [{}])[0].get("delta", {})
            if first_s is None and delta.get("content"):
                first_s = time.monotonic() - began_s
            if timings := found.get("timings"):
                computed, reused = timings["prompt_n"], timings["cache_n"]
    if first_s is None:
        raise RuntimeError("no token came")
    return first_s, computed, reused


def show(figures: Figures) -> None:
    """Medians with least and most."""
    print("\n| when | figure | median | least | most |\n|---|---|---|---|---|")
    for (when, figure), values in figures.items():
        told = " | ".join(f"{value:.2f}" for value in (median(values), min(values), max(values)))
        print(f"| {when} | {figure} | {told} |")


async def waiting_prompt(engine: Address, system: str, tokens: int = 100) -> dict[str, float]:
    """Every slot answers somebody: when would a prefill ahead of its turn begin?

    The engine is asked directly, by as many answers as it has slots and then for a prefill
    without an answer (`n_predict: 0`), which is all that could be sent ahead.
    """
    url = engine.url
    async with aiohttp.ClientSession(headers=engine.headers) as client:
        began_s = time.monotonic()
        answers = [
            asyncio.create_task(complete(client, url, f"{n} Tell a story.", tokens + 20 * n))
            for n in range(SLOTS)
        ]
        while await busy(client, url) < SLOTS:  # noqa: ASYNC110 - another process knows
            await asyncio.sleep(0.02)
        ahead = asyncio.create_task(complete(client, url, f"ahead {system}", 0))
        free_s = await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
        first_free_s = min(task.result()[1] for task in free_s[0]) - began_s
        begun_s = (await ahead)[0] - began_s
        await asyncio.gather(*answers)
    print(
        f"\nwith {SLOTS} busy slots: the first was free after {first_free_s:.2f} s, "
        f"a prefill sent ahead began after {begun_s:.2f} s"
    )
    return {"first slot free after s": first_free_s, "prefill ahead began after s": begun_s}


def store(figures: Figures, notes: dict[str, float], commands: list[str]) -> None:
    """Every raw figure, the machine and the commands, as one JSON document."""
    when = datetime.now(UTC)
    raw = {f"{case}, {figure}": values for (case, figure), values in figures.items()}
    result = {"when": when.isoformat(timespec="seconds"), "commands": commands, "raw": raw}
    path = MEASURED / f"{when:%Y-%m-%d}_templates.json"
    path.write_text(to_line({**result, "notes": notes, "machine": probe()}) + "\n")
    print(f"stored: {path}")


async def busy(client: aiohttp.ClientSession, url: str) -> int:
    """How many slots are at work."""
    async with client.get(f"{url}/slots") as answer:
        return sum(slot["is_processing"] for slot in await answer.json())


async def complete(
    client: aiohttp.ClientSession, url: str, prompt: str, tokens: int
) -> tuple[float, float]:
    """When the first event and the last one came."""
    body = {
        "prompt": prompt,
        "n_predict": tokens,
        "ignore_eos": True,
        "stream": True,
        "return_progress": True,
    }
    first_s = None
    async with client.post(f"{url}/completion", json=body) as answer:
        async for _ in answer.content:
            first_s = first_s or time.monotonic()
    return first_s or time.monotonic(), time.monotonic()


if __name__ == "__main__":
    main()
