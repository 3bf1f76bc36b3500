"""The dashboard of a whole service: what it says while an engine runs, dies and comes back."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
from service_inside import serving, until

from workhorse.bench.stats import Spread, Summary
from workhorse.up.service import Service


async def get(service: Service, path: str) -> Any:
    async with aiohttp.ClientSession(service.url) as http, http.get(path) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json()


async def ask(service: Service) -> None:
    body = {"model": "any", "prompt": "go on", "max_tokens": 12, "ignore_eos": True}
    async with (
        aiohttp.ClientSession(service.url) as http,
        http.post("/v1/completions", json=body) as answer,
    ):
        assert answer.status == 200


def measured_at(tokens_per_s: float) -> Summary:
    spread = Spread(tokens_per_s, tokens_per_s, tokens_per_s, 3)
    return Summary(1, 3, 0, None, spread, None, spread, spread)


async def test_what_runs_how_it_did_and_who_asked(tmp_path: Path, small_model: Path) -> None:
    async with serving(tmp_path, small_model, "--gap-ms", "3") as service:
        await ask(service)
        await service.guarding.watch.look()
        state = await get(service, "/workhorse/state")
        (engine,) = state["engines"]
        assert (engine["state"], engine["now"]["pid"]) == ("ready", service.engines[0].pid)
        assert engine["now"]["decode_tokens_per_s"] > 0
        assert state["reading"]["memory_total_bytes"] > 0
        (plan,) = state["about"]["plans"]
        assert plan["settings"]
        assert plan["decode_tokens_per_s"] is not None
        assert state["about"]["machine"][0]["value"]["en"]
        since = state["at_unix_s"] - 60
        path = (
            f"/workhorse/history?figure=decode_tokens_per_s&figure=memory_used_bytes&since={since}"
        )
        past = await get(service, path)
        assert len(past["series"]) == 2
        assert all(one["points"] for one in past["series"])
        page = service.gateway.url
        assert page is not None
        async with aiohttp.ClientSession() as http, http.get(f"{page}/metrics") as answer:
            metrics = await answer.text()
        assert "workhorse_memory_total_bytes " in metrics
        assert "workhorse_stream_tokens_per_second{" in metrics


async def test_why_an_engine_was_started_again_is_kept(tmp_path: Path, small_model: Path) -> None:
    async with serving(tmp_path, small_model) as service:
        engine = service.engines[0]
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
        await until(lambda: engine.restarts == 1 and engine.state == "ready")
        await until(lambda: service.board.history.events()[0].state == "ready")
        ready, restarting, first = service.board.history.events()
        assert [ready.state, restarting.state, first.state] == ["ready", "restarting", "ready"]
        assert restarting.reason is not None
        assert "SIGKILL" in restarting.reason.en or "9" in restarting.reason.en
        assert restarting.reason.zh != restarting.reason.en
    # What was noted last is on the disk as well once the service has ended.
    assert len(service.board.history.events()) >= 3


async def test_a_measurement_is_of_its_plan(tmp_path: Path, small_model: Path) -> None:
    async with serving(tmp_path, small_model) as service:
        engine = service.engines[0]
        service.board.measured(engine, measured_at(20.0))
        (known,) = service.board.known()
        assert known.measured is not None
        assert known.measured.decode_tokens_per_s == 20.0
        assert engine.decision is not None
        engine.decision = replace(engine.decision, plan=replace(engine.plan, threads=99))
        (known,) = service.board.known()
        assert known.measured is None


async def test_the_use_of_a_service_without_keys(tmp_path: Path, small_model: Path) -> None:
    async with serving(tmp_path, small_model) as service:
        await ask(service)
        await until(lambda: service.board.usage().keys)
        (key,) = service.board.usage().keys
        assert (key.name, key.requests, key.generated_tokens) == ("", 1, 12)
