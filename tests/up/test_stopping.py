"""How a service ends: running answers first, new requests refused; a second signal ends at once."""

import asyncio
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from service_inside import serving, until
from service_process import PATIENCE_S, StartService, running_service

from workhorse.errors import EXIT_FAILED, EXIT_GOOD, AppError
from workhorse.run.live_processes import MARKER_NAME, read_process
from workhorse.serve.usage import read_usage
from workhorse.text import same

pytestmark = pytest.mark.timeout(1800)  # a service starts in seconds, on a busy machine in more

LONG = {"prompt": "go on", "max_tokens": 40, "ignore_eos": True, "stream": True}


def texts(body: bytes) -> list[str]:
    """The pieces of a streamed completion."""
    lines = [line.removeprefix(b"data: ") for line in body.split(b"\n") if line]
    documents = [json.loads(line) for line in lines if line != b"[DONE]"]
    return [document["choices"][0]["text"] for document in documents if "choices" in document]


async def ask(http: aiohttp.ClientSession, body: dict[str, Any]) -> tuple[int, bytes, str]:
    async with http.post("/v1/completions", json=body) as answer:
        return answer.status, await answer.read(), answer.headers.get("Connection", "")


async def served(http: aiohttp.ClientSession, requests: int) -> None:
    """Returns once the service has so many requests in flight."""
    async with asyncio.timeout(PATIENCE_S):
        page = ""
        while f"workhorse_requests_in_flight {requests}.0" not in page.splitlines():
            async with http.get("/metrics") as answer:
                page = await answer.text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
async def test_a_running_answer_ends_while_new_ones_are_refused(
    start_service: StartService, tmp_path: Path, number: signal.Signals
) -> None:
    config = tmp_path / "horse.toml"
    config.write_text("[supervision]\ndrain_s = 3600\n")
    service = start_service("--gap-ms", "20", options=("--config", str(config)))
    engine = service.engine_pid()
    async with aiohttp.ClientSession(service.url) as http:
        os.kill(engine, signal.SIGSTOP)  # so the answer takes as long as the looks at the service
        try:
            running = asyncio.create_task(ask(http, LONG))
            await served(http, 1)
            service.process.send_signal(number)
            await asyncio.to_thread(service.wait_for, "1 running answer may end first")
            status, body, connection = await ask(http, {**LONG, "stream": False})
            assert (status, connection) == (503, "close")
            assert "stopping" in json.loads(body)["error"]["message"]
            async with http.post("/v1/completions", json=LONG) as refused:
                assert int(refused.headers["Retry-After"]) > 0
            health_status, health = await asyncio.to_thread(service.get, "/healthz")
            assert (health_status, health["state"]) == (503, "draining")
            told = await asyncio.to_thread(service.get, "/workhorse/status")
            assert told[1]["state"] == "draining"
        finally:
            os.kill(engine, signal.SIGCONT)
        _, whole, _ = await running
    assert whole.endswith(b"data: [DONE]\n\n")
    assert len([text for text in texts(whole) if text]) == 40
    assert await asyncio.to_thread(service.process.wait, PATIENCE_S) == 0
    assert list((service.home / "run").iterdir()) == []


async def test_answers_that_take_too_long_end_in_an_error_that_says_so(
    start_service: StartService, tmp_path: Path
) -> None:
    config = tmp_path / "horse.toml"
    config.write_text("[supervision]\ndrain_s = 0.2\n")
    service = start_service("--gap-ms", "1000", options=("--config", str(config)))
    async with (
        aiohttp.ClientSession(service.url) as http,
        http.post("/v1/completions", json={**LONG, "max_tokens": 600}) as running,
    ):
        await running.content.readany()
        service.process.send_signal(signal.SIGTERM)
        body = await running.content.read()
    assert b"[DONE]" not in body
    assert b'"error"' in body
    assert await asyncio.to_thread(service.process.wait, PATIENCE_S) == 0


async def test_a_second_signal_ends_at_once(start_service: StartService, tmp_path: Path) -> None:
    config = tmp_path / "horse.toml"
    config.write_text("[supervision]\ndrain_s = 3600\n")
    service = start_service("--gap-ms", "1000", options=("--config", str(config)))
    engine = service.engine_pid()
    async with (
        aiohttp.ClientSession(service.url) as http,
        http.post("/v1/completions", json={**LONG, "max_tokens": 600}) as running,
    ):
        await running.content.readany()
        service.process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(service.wait_for, "1 running answer may end first")
        await asyncio.sleep(1.2)  # within a second it is the same wish
        service.process.send_signal(signal.SIGTERM)
        code = await asyncio.to_thread(service.process.wait, PATIENCE_S)
    # In order, or not at all where this machine needs seconds for that; the drain is an hour.
    assert code in (EXIT_GOOD, EXIT_FAILED)
    await until(lambda: read_process(engine) is None)
    if code == EXIT_GOOD:
        assert list((service.home / "run").iterdir()) == []


def test_the_engine_of_a_killed_service_is_ended_by_the_next(
    start_service: StartService, tmp_path: Path, small_model: Path
) -> None:
    """What the engine started in a session of its own does not die with it."""
    killed = start_service()
    marker = killed.written()["marker"]
    left = subprocess.Popen(
        ["sleep", "600"], env={**os.environ, MARKER_NAME: marker}, start_new_session=True
    )
    stranger = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        other = start_service()
        killed.process.kill()
        killed.process.wait()
        assert left.poll() is None
        with running_service(tmp_path, small_model) as third:
            assert f"process {left.pid})" in third.text()
            assert left.wait(PATIENCE_S) != 0
            assert stranger.poll() is None
            # The other service of this user was not disturbed.
            assert other.get("/healthz") == (200, {"status": "ok", "state": "ready"})
            assert third.get("/healthz")[0] == 200
            assert third.port != other.port
    finally:
        for process in (left, stranger):
            process.kill()
            process.wait()


async def test_an_engine_that_does_not_end_leaves_nothing_else_undone(
    tmp_path: Path, small_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(AppError, match="a driver holds it"):
        async with serving(tmp_path, small_model) as service:
            stop = service.engines[0].stop

            async def held() -> None:
                await stop()
                raise AppError(same("a driver holds it"), same("Restart the machine."))

            monkeypatch.setattr(service.engines[0], "stop", held)
            async with aiohttp.ClientSession(service.url) as http:
                assert (await ask(http, LONG))[0] == 200
    (row,) = read_usage(service.where.service)
    assert row.totals.requests == 1, "what was used last is written down"
    async with aiohttp.ClientSession(service.url) as http:
        with pytest.raises(aiohttp.ClientConnectorError):
            await http.get("/healthz")
