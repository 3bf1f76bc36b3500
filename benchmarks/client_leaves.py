"""How soon the engine's slot is free after a client has left: every route, streamed and not.

    python benchmarks/client_leaves.py [--repeats 4]

Starts `workhorse up` on the embedded model and asks the engine itself, at its own port, whether a
slot is at work. A client leaves in the middle of a long prompt, or of an answer of 1500 tokens.
"""

import argparse
import asyncio
import re
import sys
import time
from contextlib import suppress
from pathlib import Path
from signal import SIGINT
from statistics import median
from typing import Any

import aiohttp

from servers import free_port, running, tree
from workhorse.engines.llamacpp import KEY_VARIABLE
from workhorse.run.address import Address

ROUTES = ("/v1/chat/completions", "/v1/completions")
PROMPT_WORDS = 4200  # some 6000 tokens of this text, 15 to 20 s of prefill on two cores
LEAVES_AFTER_S = 2.3
LOOK_EVERY_S = 0.02
TOO_LONG_S = 60.0
README = Path(__file__).parent.parent / "README.md"


def main() -> None:
    """Start the service, leave it in all ways, print the times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=4)
    args = parser.parse_args()
    port = free_port()
    command = [sys.executable, "-m", "workhorse", "up", "--port", str(port), "--no-measure"]
    with running(command, port, "/healthz", stop=SIGINT) as service:
        engine = engine_below(service.pid)
        for route in ROUTES:
            for stream in (True, False):
                for phase in ("prefill", "decode"):
                    times = [
                        asyncio.run(leave(service.url, engine, route, stream, phase, number))
                        for number in range(args.repeats)
                    ]
                    shown = ", ".join(f"{seconds:.2f}" for seconds in sorted(times))
                    way = "streamed" if stream else "whole"
                    print(f"{route} {way}, in {phase}: median {median(times):.2f} s ({shown})")


def engine_below(pid: int) -> Address:
    """The engine that `workhorse up` (process `pid`) has started, and the key of its port."""
    for child in tree(pid)[1:]:
        words = Path(f"/proc/{child}/cmdline").read_bytes().decode().replace("\0", " ")
        if found := re.search(r"--port (\d+)", words):
            # Whoever runs the service may read it; nobody else can.
            variables = Path(f"/proc/{child}/environ").read_bytes().decode().split("\0")
            keys = (one.partition("=")[2] for one in variables if one.startswith(KEY_VARIABLE))
            return Address(f"http://127.0.0.1:{found[1]}", next(keys, None))
    raise RuntimeError("no engine below workhorse")


async def leave(
    gateway: str, engine: Address, route: str, stream: bool, phase: str, number: int
) -> float:
    """Seconds from closing the client's socket until no slot of the engine is at work."""
    text = "Tell a long story." if phase == "decode" else long_prompt(number)
    body: dict[str, Any] = {"stream": stream, "max_tokens": 1500, "ignore_eos": True}
    body |= (
        {"messages": [{"role": "user", "content": text}]} if "chat" in route else {"prompt": text}
    )
    async with aiohttp.ClientSession() as client:
        asking = asyncio.create_task(ask(client, gateway + route, body))
        await asyncio.sleep(LEAVES_AFTER_S)
        if not await at_work(client, engine):
            raise RuntimeError("the engine had finished before the client left")
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking
    left_s = time.perf_counter()
    async with aiohttp.ClientSession() as client:
        while await at_work(client, engine):
            if time.perf_counter() - left_s > TOO_LONG_S:
                raise RuntimeError(f"the slot was still at work after {TOO_LONG_S:.0f} s")
            await asyncio.sleep(LOOK_EVERY_S)
    return time.perf_counter() - left_s


async def ask(client: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> None:
    """Read an answer until cancelled."""
    async with client.post(url, json=body) as answer:
        async for _ in answer.content.iter_any():
            pass


async def at_work(client: aiohttp.ClientSession, engine: Address) -> bool:
    """Whether a slot of the engine is processing."""
    async with client.get(f"{engine.url}/slots", headers=engine.headers) as answer:
        return any(slot["is_processing"] for slot in await answer.json())


def long_prompt(number: int) -> str:
    """English words that no prefix cache knows."""
    words = [w for w in README.read_text().split() if w.isascii() and w.isalpha()]
    start = number % len(words)
    ring = words[start:] + words[:start]
    return " ".join((ring * (PROMPT_WORDS // len(ring) + 1))[:PROMPT_WORDS])


if __name__ == "__main__":
    main()
