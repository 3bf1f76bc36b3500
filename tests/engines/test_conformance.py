"""What every engine has to do behind its adapter: one test for all of them.

The fake engine and the embedded llama.cpp always take part; an installed build and vLLM where
their variables say where they are (`rigs.py`). LMDeploy needs a card: what of it is pure is in
`test_lmdeploy.py`.
"""

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from rigs import RIGS, Rig

from workhorse.engines.report import Load, read_metrics
from workhorse.errors import AppError
from workhorse.run.ask import ask_engine
from workhorse.run.live_processes import carrying
from workhorse.run.process import EngineProcess, PortTaken, free_port
from workhorse.up.engine import marked

PATIENCE_S = 120.0
# An answer that nobody could wait for: whoever stops before its end was stopped.
ENDLESS_TOKENS = 1500
MARKER = f"conformance-{os.getpid()}"
# Loop and engine live for all tests of one rig: vLLM takes the better part of a minute to start.
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(1800)]


class Running:
    """An engine that is ready, and a client of it."""

    def __init__(self, rig: Rig, process: EngineProcess, http: aiohttp.ClientSession) -> None:
        self.rig, self.process, self.http = rig, process, http

    async def post(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        async with self.http.post(self.process.base_url + path, json=body) as answer:
            return answer.status, await answer.json(content_type=None)

    async def load(self) -> Load:
        names = self.rig.adapter.metrics
        assert names is not None
        async with self.http.get(self.process.base_url + names.path) as answer:
            assert answer.status == 200
            return read_metrics(await answer.text(), names)

    async def busy(self) -> int:
        """How many requests it computes now."""
        if self.rig.adapter.metrics is not None:
            return (await self.load()).running or 0
        async with self.http.get(f"{self.process.base_url}/slots") as answer:
            return sum(slot["is_processing"] for slot in await answer.json())

    async def until(self, holds: Callable[[int], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not holds(await self.busy()):  # noqa: ASYNC110
                await asyncio.sleep(0.02)  # another process knows, and has no event for it

    def asked(self, **more: Any) -> dict[str, Any]:
        """A chat request as this engine wants to be asked."""
        body = {
            "model": self.rig.plan.model_name,
            "messages": [{"role": "user", "content": "Name three colours."}],
            "max_tokens": 24,
            "temperature": 0,
            "ignore_eos": True,
            **more,
        }
        if body.get("stream") and self.rig.adapter.asking == "progress":
            body["return_progress"] = True
        return body


@asynccontextmanager
async def started(rig: Rig, folder: Path, port: int | None = None) -> AsyncIterator[EngineProcess]:
    launch = marked(rig.adapter.launch(rig.plan, port or free_port("127.0.0.1")), MARKER)
    process = EngineProcess(launch, folder / "engine.log", explain=rig.adapter.explain)
    await process.start()
    try:
        yield process
    finally:
        await process.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=sorted(RIGS))
async def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Rig:
    return RIGS[request.param](tmp_path_factory.mktemp("rig"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    async with (
        started(rig, tmp_path_factory.mktemp("engine")) as process,
        aiohttp.ClientSession(headers=process.address.headers) as http,
    ):
        await process.wait_ready(rig.ready_s)
        yield Running(rig, process, http)


def events(text: str) -> list[dict[str, Any]]:
    found = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data:")]
    assert found[-1] == "[DONE]"
    return [json.loads(event) for event in found[:-1]]


async def test_it_is_ready_and_says_which_model_it_serves(engine: Running) -> None:
    async with engine.http.get(f"{engine.process.base_url}/v1/models") as answer:
        listed = await answer.json()
    assert listed["data"][0]["id"] == engine.rig.plan.model_name


# What computes, by the engines.
COMPUTING = {
    "llama.cpp": (
        *("/completion", "/completions", "/v1/completions", "/infill", "/tokenize", "/detokenize"),
        *("/chat/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses"),
        *(
            "/embedding",
            "/embeddings",
            "/v1/embeddings",
            "/rerank",
            "/v1/rerank",
            "/apply-template",
        ),
        *("/slots/0?action=save", "/slots/0?action=restore", "/slots/0?action=erase", "/props"),
    ),
    "fake": (
        "/completion",
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/embeddings",
        "/tokenize",
    ),
    "vllm": (
        *("/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses"),
        *("/invocations", "/pooling", "/score", "/rerank", "/classify", "/tokenize"),
    ),
}


def others_can_read(pid: int | None, key: str) -> bool:
    """Whether another user of this machine sees the key of a process."""
    process = Path(f"/proc/{pid}")
    open_to_all = (process / "environ").stat().st_mode & 0o077 != 0
    return open_to_all or key in (process / "cmdline").read_text()


async def test_without_the_key_of_this_start_its_port_computes_nothing(engine: Running) -> None:
    key, base = engine.process.address.key, engine.process.base_url
    if "--api-key" not in engine.rig.plan.engine.knows and engine.rig.name != "fake":
        pytest.skip("this build knows no keys")
    assert key is not None
    assert not others_can_read(engine.process.pid, key)
    assert key not in "\n".join(engine.process.log_tail(10_000))
    body = engine.asked(prompt="a", input="a", content="a", query="a", documents=["a"])
    wrong = ({}, {"Authorization": f"Bearer {'0' * len(key)}"}, {"Authorization": "Bearer "})
    async with aiohttp.ClientSession() as http:
        for path in COMPUTING[engine.rig.plan.engine.engine]:
            for headers in wrong:
                async with http.post(base + path, json=body, headers=headers) as answer:
                    assert answer.status == 401, path
        for path in ("/slots", "/props", "/metrics"):
            async with http.get(base + path) as answer:
                assert answer.status == 401, path
    assert (await engine.post(engine.rig.chat, engine.asked(max_tokens=1)))[0] == 200


async def test_what_it_did_is_what_was_planned(engine: Running) -> None:
    lines = engine.process.log_tail(2000)
    if engine.rig.plan.engine.engine == "fake":
        pytest.skip("it loads nothing, so it has nothing to tell")
    seen = engine.rig.adapter.observe(lines)
    assert seen.device == "cpu"
    assert (seen.slots, seen.context_tokens) == (2, 2048)
    assert (seen.kv_tokens or 0) >= 2 * 2048
    assert engine.rig.adapter.judge(engine.rig.plan, lines) == ()


async def test_its_first_answer_is_sound(engine: Running) -> None:
    if engine.rig.plan.engine.engine == "fake":
        pytest.skip("the golden prompt is for engines with a model")
    question = engine.rig.adapter.first_question(engine.rig.plan)
    answer = await ask_engine(engine.process, question.path, question.body)
    assert engine.rig.adapter.judge_answer(engine.rig.plan, answer) == ()


async def test_a_chat_has_an_answer_and_its_figures(engine: Running) -> None:
    status, answer = await engine.post(engine.rig.chat, engine.asked())
    assert status == 200
    assert answer["choices"][0]["message"]["content"]
    usage = answer["usage"]
    assert usage["completion_tokens"] == 24
    assert usage["prompt_tokens"] > 3
    assert usage["total_tokens"] == usage["prompt_tokens"] + 24


async def test_a_stream_says_the_same_piece_by_piece(engine: Running) -> None:
    _, whole = await engine.post(engine.rig.chat, engine.asked())
    body = engine.asked(stream=True, stream_options={"include_usage": True})
    async with engine.http.post(engine.process.base_url + engine.rig.chat, json=body) as answer:
        assert answer.content_type == "text/event-stream"
        found = events(await answer.text())
    pieces = [
        choice["delta"].get("content") or "" for event in found for choice in event["choices"]
    ]
    assert "".join(pieces) == whole["choices"][0]["message"]["content"]
    assert sum(bool(piece) for piece in pieces) > 1
    assert [e["usage"]["completion_tokens"] for e in found if e.get("usage")] == [24]


async def test_its_metrics_count_what_it_does(engine: Running) -> None:
    if engine.rig.adapter.metrics is None:
        pytest.skip("it has none")
    before = await engine.load()
    await engine.post(engine.rig.chat, engine.asked(max_tokens=7))
    await engine.until(lambda busy: busy == 0)
    after = await engine.load()
    assert after.generated_tokens is not None
    assert after.generated_tokens >= (before.generated_tokens or 0) + 7
    assert (after.prompt_tokens or 0) > (before.prompt_tokens or 0)
    assert (after.running, after.waiting) == (0, 0)


async def test_all_of_it_is_known_by_the_marker_of_its_service(engine: Running) -> None:
    group = members(engine.process.pid or 0)
    known = {one.pid for one in carrying(MARKER)}
    assert {pid for pid in group if is_alive(pid)} <= known


def routes(engine: Running) -> list[tuple[str, bool]]:
    """What a client may ask and leave: a whole answer only where the engine then stops."""
    whole = [True] if engine.rig.adapter.asking == "progress" else [True, False]
    return [(path, stream) for path in (engine.rig.chat, "/v1/completions") for stream in whole]


async def test_a_client_that_leaves_frees_its_slot(engine: Running) -> None:
    for path, stream in routes(engine):
        await engine.until(lambda busy: busy == 0)
        body = engine.asked(stream=stream, max_tokens=ENDLESS_TOKENS)
        if path == "/v1/completions":
            del body["messages"]
            body["prompt"] = "Once upon a time"
        asking = await asking_now(engine, path, body)
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking
        left_s = time.monotonic()
        await engine.until(lambda busy: busy == 0)
        took_s = time.monotonic() - left_s
        load = await engine.load() if engine.rig.adapter.metrics else None
        print(f"{engine.rig.name} {path} stream={stream}: free after {took_s:.2f} s, {load}")


async def asking_now(engine: Running, path: str, body: dict[str, Any]) -> "asyncio.Task[None]":
    """A request that the engine computes; one that was over before anybody saw it is asked anew."""
    while True:
        asking = asyncio.create_task(ask_and_wait(engine, path, body))
        await engine.until(lambda busy, asking=asking: busy == 1 or asking.done())  # type: ignore[misc]
        if not asking.done():
            return asking
        await asking


async def ask_and_wait(engine: Running, path: str, body: dict[str, Any]) -> None:
    async with engine.http.post(engine.process.base_url + path, json=body) as answer:
        await answer.read()


async def test_a_port_that_is_taken_is_told(rig: Rig, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        async with started(rig, tmp_path, taken.getsockname()[1]) as process:
            with pytest.raises(PortTaken):
                await ends(process, rig)


async def test_a_model_that_is_not_there_is_told(rig: Rig, tmp_path: Path) -> None:
    if rig.plan.engine.engine == "fake":
        command = (*rig.plan.engine.command, "--die-at-start")
        rig = replace(rig, plan=replace(rig.plan, engine=replace(rig.plan.engine, command=command)))
    else:
        rig = replace(rig, plan=replace(rig.plan, model_path=str(tmp_path / "none")))
    async with started(rig, tmp_path) as process:
        with pytest.raises(AppError) as raised:
            await ends(process, rig)
    assert "not where" in raised.value.what.en or "model" in raised.value.what.en


async def ends(process: EngineProcess, rig: Rig) -> None:
    """Waits for the readiness that does not come."""
    # The port is another's: whoever answers there must not be taken for the engine.
    async with asyncio.timeout(rig.ready_s):
        await process.exited.wait()
    raise process.failure()


async def test_it_stops_within_its_grace_and_takes_all_of_it_along(
    rig: Rig, tmp_path: Path
) -> None:
    async with started(rig, tmp_path) as process:
        await process.wait_ready(rig.ready_s)
        group = members(process.pid or 0)
        began_s = time.monotonic()
        await process.stop()
        took_s = time.monotonic() - began_s
    print(f"{rig.name}: {len(group)} processes ended within {took_s:.1f} s")
    await all_gone(group)


async def test_killed_from_outside_it_leaves_nothing_and_says_how_it_ended(
    rig: Rig, tmp_path: Path
) -> None:
    async with started(rig, tmp_path) as process:
        await process.wait_ready(rig.ready_s)
        group = members(process.pid or 0)
        os.kill(process.pid or 0, signal.SIGKILL)
        await asyncio.wait_for(process.exited.wait(), PATIENCE_S)
        await all_gone(group)
    assert "SIGKILL" in process.why_ended().en


async def test_a_death_inside_it_is_told_with_its_cause(rig: Rig, tmp_path: Path) -> None:
    async with started(rig, tmp_path) as process:
        await process.wait_ready(rig.ready_s)
        inner = [pid for pid in members(process.pid or 0) if pid != process.pid]
        # The worker where there is one, else the engine itself: as a fault of its code would.
        os.kill(max(inner, default=process.pid or 0), signal.SIGSEGV)
        async with asyncio.timeout(PATIENCE_S):
            await process.exited.wait()
    why = process.why_ended().en
    print(f"{rig.name}: {why}")
    assert why.rstrip(".") not in ("", "exit code 0")


def members(group: int) -> list[int]:
    """The live processes of a process group."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                state = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(state[2]) == group and state[0] != "Z":
                    found.append(int(entry.name))
    return sorted(found)


async def all_gone(group: Collection[int]) -> None:
    """Returns once none of them lives: gigabytes take the kernel a moment after a SIGKILL."""
    async with asyncio.timeout(PATIENCE_S):
        while any(is_alive(pid) for pid in group):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
