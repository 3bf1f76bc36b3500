"""The port stays open while the engine comes and goes."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from stand_ins import (
    PATIENCE_S,
    Exchange,
    StandInBackend,
    chunk,
    gateway,
    scripted,
    until,
)

from supervised import Supervised, fake_launch
from workhorse.records import Launch
from workhorse.run.supervisor import Supervisor


async def answers(to: Exchange) -> None:
    await to.begin_stream()
    await to.event(chunk("a", finish="stop"))
    await to.end_stream()


async def test_a_request_waits_for_the_restart() -> None:
    backend = StandInBackend(None, "restarting")
    async with (
        scripted(answers) as (_, engine_url),
        gateway(backend) as url,
        aiohttp.ClientSession(url) as http,
    ):
        asking = asyncio.create_task(post(http))
        await asyncio.wait_for(backend.asked.wait(), PATIENCE_S)
        assert not asking.done()
        backend.comes_back(engine_url)
        assert await asking == 200


async def test_but_not_for_ever() -> None:
    backend = StandInBackend(None, "restarting")
    async with (
        gateway(backend, restart_wait_s=0.05) as url,
        aiohttp.ClientSession(url) as http,
        http.post("/v1/chat/completions", json={}) as answer,
    ):
        assert answer.status == 503
        assert int(answer.headers["Retry-After"]) > 0
        assert (await answer.json())["error"]["message"] == "It fell over. Wait."


async def test_an_engine_whose_death_is_not_known_yet() -> None:
    """Its port refuses: nothing was lost, so the request is sent again, to the next engine."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        dead = f"http://127.0.0.1:{closed.getsockname()[1]}"
    backend = StandInBackend(dead)
    async with (
        scripted(answers) as (_, engine_url),
        gateway(backend) as url,
        aiohttp.ClientSession(url) as http,
    ):
        asking = asyncio.create_task(post(http))
        await asyncio.wait_for(backend.asked.wait(), PATIENCE_S)
        backend.comes_back(engine_url)
        assert await asking == 200


async def test_another_program_that_has_the_port_of_a_dead_engine() -> None:
    """It refuses a key that is not its own: no client is told that its key is wrong."""
    heard: list[str] = []

    async def refuses(to: Exchange) -> None:
        heard.append(to.head)
        await to.whole({"error": {"message": "Invalid API Key"}}, status=401)

    backend = StandInBackend(None, key="first")
    async with (
        scripted(refuses) as (_, stranger),
        scripted(answers) as (_, engine_url),
        gateway(backend) as url,
        aiohttp.ClientSession(url) as http,
    ):
        backend.comes_back(stranger)
        asking = asyncio.create_task(post(http))
        await until(lambda: bool(heard))
        assert "Authorization: Bearer first\r\n" in heard[0]
        backend.key = "second"
        backend.comes_back(engine_url)
        assert await asking == 200


async def test_an_engine_that_stays_dead() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        dead = f"http://127.0.0.1:{closed.getsockname()[1]}"
    async with (
        gateway(StandInBackend(dead), restart_wait_s=0.3) as url,
        aiohttp.ClientSession(url) as http,
        http.post("/v1/chat/completions", json={"stream": True}) as answer,
    ):
        assert answer.status == 502
        assert (await answer.json())["error"]["speaker"] == "gateway"


async def post(http: aiohttp.ClientSession) -> int:
    async with http.post("/v1/chat/completions", json={}) as answer:
        await answer.read()
        return answer.status


def dying(port: int) -> Launch:
    return fake_launch(port, "--die-after-tokens", "5", "--gap-ms", "1")


@pytest.mark.parametrize("stream", [True, False])
async def test_killed_while_it_answers_then_served_after_the_restart(
    tmp_path: Path, stream: bool
) -> None:
    """A real process that is killed, its real owner, and the official client."""
    supervisor = Supervisor(dying, tmp_path / "engine.log", ready_timeout_s=PATIENCE_S)
    await supervisor.start()
    try:
        async with (
            gateway(Supervised(supervisor), restart_wait_s=PATIENCE_S) as url,
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
        ):
            with pytest.raises(openai.APIError, match="died while it answered"):
                await ask(client, stream, tokens=20)
            assert await ask(client, stream, tokens=3) == "length"
    finally:
        await supervisor.stop()


async def ask(client: openai.AsyncOpenAI, stream: bool, tokens: int) -> str | None:
    """One chat; how it ended."""
    asked: Any = {
        "model": "horse",
        "messages": [{"role": "user", "content": "Count."}],
        "max_tokens": tokens,
    }
    if not stream:
        whole = await client.chat.completions.create(**asked)
        return str(whole.choices[0].finish_reason)
    finish: str | None = None
    async for part in await client.chat.completions.create(stream=True, **asked):
        finish = part.choices[0].finish_reason if part.choices else finish
    return finish
