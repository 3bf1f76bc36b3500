"""The engine is killed fifty times under sixteen clients: no hang, and not one wrong word."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

CLIENTS, DEATHS = 16, 50
PATIENCE_S = 300.0  # for one answer, a restart in between included
TOKENS = 40
GATEWAY = Path(__file__).with_name("gateway_process.py")
# Of RSS, from the fifth death to the last: a leak of one answer's text a death would be more.
GROWTH_MAX_BYTES = 4 * 2**20
WARM_UP_DEATHS = 10


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[tuple[str, int]]:
    """The gateway's address and its process."""
    command = [sys.executable, str(GATEWAY), str(tmp_path / "engine.log"), "--gap-ms", "10"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip(), process.pid
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()


def request_of(client: int, *, stream: bool) -> dict[str, Any]:
    return {
        "prompt": f"client {client} goes on",
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "stream": stream,
    }


@dataclass
class Tally:
    """What the clients got."""

    ends: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


async def ask(http: aiohttp.ClientSession, client: int, *, stream: bool) -> tuple[str, str]:
    """How one answer ended (`whole`, `error` or what is wrong), and its text until then."""
    async with http.post("/v1/completions", json=request_of(client, stream=stream)) as answer:
        body = await answer.text()
    if answer.status != 200:
        return ("error" if "error" in json.loads(body) else f"HTTP {answer.status}"), ""
    if not stream:
        return "whole", json.loads(body)["choices"][0]["text"]
    text, end = "", "cut without a word"
    for event in body.removesuffix("\n\n").split("\n\n"):
        data = event.removeprefix("data: ")
        if data == "[DONE]":
            end = "whole"
        elif event.startswith("data: "):
            document = json.loads(data)
            if "error" in document:
                return "error", text
            text += document["choices"][0]["text"] if document["choices"] else ""
    return end, text


async def be_a_client(
    http: aiohttp.ClientSession, number: int, expected: str, tally: Tally, over: asyncio.Event
) -> None:
    turn = 0
    while not over.is_set():
        turn += 1
        try:
            async with asyncio.timeout(PATIENCE_S):
                end, text = await ask(http, number, stream=bool((number + turn) % 3))
        except TimeoutError:
            tally.wrong.append("hung")
        except aiohttp.ClientError as error:
            tally.wrong.append(f"no explicit end: {error!r}")
        else:
            tally.ends[end] += 1
            right = text == expected if end == "whole" else expected.startswith(text)
            if end not in ("whole", "error") or not right:
                tally.wrong.append(f"{end}: {text!r}")


async def knock(url: str, tally: Tally, over: asyncio.Event) -> None:
    """The port has to be open at every moment: each knock is a new connection."""
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(url, connector=connector) as http:
        while not over.is_set():
            try:
                async with asyncio.timeout(PATIENCE_S), http.get("/healthz") as answer:
                    tally.ends[f"health {answer.status}"] += 1
            except (aiohttp.ClientError, TimeoutError) as error:
                tally.wrong.append(f"the port: {error!r}")
            await asyncio.sleep(0.02)


def engine_of(gateway_pid: int) -> int | None:
    children = Path(f"/proc/{gateway_pid}/task/{gateway_pid}/children").read_text().split()
    return int(children[0]) if len(children) == 1 else None


async def kill_when_it_answers(
    http: aiohttp.ClientSession, gateway_pid: int, tally: Tally, killed: set[int]
) -> None:
    """Wait for an engine that has not been killed yet to answer somebody, then kill it."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            async with http.get("/healthz") as answer:
                ready = answer.status == 200
            engine = engine_of(gateway_pid)
            if ready and engine is not None and engine not in killed:
                break
            await asyncio.sleep(0.01)
        answers = tally.ends["whole"]
        # At another moment each time: in the first token, in the middle, just before the end.
        patience = 1 + len(killed) % 4
        while tally.ends["whole"] < answers + patience:  # noqa: ASYNC110
            await asyncio.sleep(0.003 * (1 + len(killed) % 7))
    killed.add(engine)
    with suppress(ProcessLookupError):
        os.kill(engine, signal.SIGKILL)


def rss_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) * 1024


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@pytest.mark.timeout(2400)
async def test_fifty_deaths_under_sixteen_clients(gateway: tuple[str, int]) -> None:
    url, pid = gateway
    tally, over, killed = Tally(), asyncio.Event(), set[int]()
    async with aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=0)) as http:
        undisturbed = [await ask(http, client, stream=True) for client in range(CLIENTS)]
        assert {end for end, _ in undisturbed} == {"whole"}
        files_before = open_files(pid)
        async with asyncio.TaskGroup() as tasks:
            for number, (_, text) in enumerate(undisturbed):
                tasks.create_task(be_a_client(http, number, text, tally, over))
            tasks.create_task(knock(url, tally, over))
            rss_before = 0
            for death in range(DEATHS):
                await kill_when_it_answers(http, pid, tally, killed)
                if death == WARM_UP_DEATHS:
                    rss_before = rss_bytes(pid)
            rss_after = rss_bytes(pid)
            over.set()
        # Everything is as before: the next answer, the files, the memory.
        assert await ask(http, 0, stream=True) == undisturbed[0]
        assert open_files(pid) <= files_before + CLIENTS  # the clients' kept connections
    assert tally.wrong == []
    assert len(killed) == DEATHS
    assert tally.ends["error"] >= DEATHS  # each death cut somebody
    assert rss_after - rss_before < GROWTH_MAX_BYTES
    print(f"{tally.ends}; RSS {rss_before} to {rss_after}")
