"""The engine's own port is no way around the gateway: it asks for a key that nobody is shown."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from service_inside import Listener, serving, until
from service_process import OLD

from workhorse.codec import to_json
from workhorse.machine.probe import probe
from workhorse.text import Text
from workhorse.up.service import Service

pytestmark = pytest.mark.timeout(1800)

ROUTES = ("/workhorse/status", "/workhorse/state", "/workhorse/history", "/openapi.json", "/")
ROUTES += ("/metrics", "/healthz", "/props", "/slots", "/v1/models")
CHAT = {"messages": [{"role": "user", "content": "Count."}], "max_tokens": 3}


@pytest.fixture(autouse=True)
def a_probe_that_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    machine = probe(measure_s=0)
    monkeypatch.setattr("workhorse.up.decide.probe", lambda *_, **__: machine)
    return


def key_of(service: Service) -> str:
    supervisor = service.engines[0].supervisor
    assert supervisor is not None
    assert supervisor.process is not None
    assert supervisor.process.address.key is not None
    return supervisor.process.address.key


async def chat(url: str, **headers: str) -> int:
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{url}/v1/chat/completions", json=CHAT, headers=headers) as answer,
    ):
        await answer.read()
        return answer.status


async def engine_url(service: Service) -> str:
    return (await service.engines[0].address(60.0)).url


async def reload(service: Service) -> None:
    def nothing(_: Text) -> None:
        """Nobody listens."""

    await service.control.reload(nothing, restart=True)


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=pytest.mark.real)])
async def test_every_start_has_a_key_and_the_gateway_alone_knows_it(
    tmp_path: Path, request: pytest.FixtureRequest, real: bool
) -> None:
    model = request.getfixturevalue("real_model" if real else "small_model")
    async with serving(tmp_path, model, real=real) as service:
        keys = [key_of(service)]
        assert await chat(service.url) == 200
        assert await chat(await engine_url(service)) == 401
        os.kill(service.engines[0].pid or 0, signal.SIGKILL)
        await until(lambda: service.engines[0].restarts == 1)
        assert await chat(service.url) == 200
        keys.append(key_of(service))
        await reload(service)
        assert await chat(service.url) == 200
        keys.append(key_of(service))
        for old in keys[:2]:
            assert await chat(await engine_url(service), Authorization=f"Bearer {old}") == 401
        assert len(set(keys)) == 3
        shown = await everything_shown(service)
        assert all(key not in shown for key in keys)
        assert service.url in shown
    left = await asyncio.to_thread(all_files, tmp_path)
    assert left
    assert all(key.encode() not in left for key in keys)


def all_files(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


async def everything_shown(service: Service) -> str:
    """What the service tells, writes and can be seen from outside."""
    told = service.tell
    assert isinstance(told, Listener)
    shown = [*told.said, repr(service.engines[0].supervisor), to_json(service.control.status())]
    shown += [repr(service.engines[0].loaded), repr(await service.engines[0].address(0))]
    shown += [command_line(pid) for pid in service.pids().values()]
    async with aiohttp.ClientSession(service.url) as http:
        for path in ROUTES:
            async with http.get(path) as answer:
                shown += [await answer.text(), json.dumps(dict(answer.headers))]
    return "\n".join([*shown, service.url])


async def test_a_build_that_knows_no_keys_serves_as_before_and_that_is_told(
    tmp_path: Path, small_model: Path
) -> None:
    async with serving(tmp_path, small_model, known=OLD) as service:
        assert await chat(service.url) == 200
        assert await chat(await engine_url(service)) == 200
        assert isinstance(service.tell, Listener)
        assert any("takes no key" in said for said in service.tell.said)
