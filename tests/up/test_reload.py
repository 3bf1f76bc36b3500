"""A reload under load: another engine, plan or model, and no request that is refused for it."""

import asyncio
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from service_inside import Listener, Load, serving, until
from service_process import PATIENCE_S, StartService, fake_server

from workhorse.config import Places
from workhorse.errors import AppError
from workhorse.machine.probe import probe
from workhorse.records import Machine
from workhorse.run.live_processes import carrying
from workhorse.text import Text
from workhorse.up.decide import Ask
from workhorse.up.reload import Change, with_cache_of
from workhorse.up.service import Service

pytestmark = pytest.mark.timeout(1800)  # a service starts in seconds, on a busy machine in more


@pytest.fixture(scope="session")
def this_machine() -> Machine:
    return probe(measure_s=0)


@pytest.fixture(autouse=True)
def a_probe_that_measures_nothing(
    monkeypatch: pytest.MonkeyPatch, this_machine: Machine
) -> Iterator[None]:
    monkeypatch.setattr("workhorse.up.decide.probe", lambda *_, **__: this_machine)
    return


@pytest.fixture
def no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that holds one engine at a time."""
    monkeypatch.setattr("workhorse.up.reload.fits_beside", lambda *_: False)


def nothing(_: Text) -> None:
    """Whoever asked does not listen."""


async def reload(service: Service, *, restart: bool = False) -> tuple[Change, ...]:
    return await service.control.reload(nothing, restart=restart)


def told(service: Service) -> str:
    assert isinstance(service.tell, Listener)
    return "\n".join(service.tell.said)


async def one_engine_left(service: Service) -> None:
    """Only the engine that serves is there; the kernel needs its turn."""
    marker, served = service.written.marker, set(service.pids().values())
    await until(lambda: {one.pid for one in carrying(marker)} == served)


async def test_what_has_not_changed_goes_on(tmp_path: Path, small_model: Path) -> None:
    async with serving(tmp_path, small_model) as service:
        before = service.pids()
        assert await reload(service) == (Change("small", "kept"),)
        assert service.pids() == before
        plan = service.engines[0].plan
    # The fake engine has no prompt cache, whose size is other with each look at free memory.
    for was, now, counts in ((900, 1000, 900), (900, 800, 900), (0, 900, 900), (900, 300, 300)):
        old, new = (replace(plan, prompt_cache_bytes=size) for size in (was, now))
        assert with_cache_of(old, new).prompt_cache_bytes == counts


async def test_what_holds_from_the_next_start_on_is_told(tmp_path: Path, small_model: Path) -> None:
    config = f'[[model]]\nmodel = "{small_model}"\n'
    async with serving(tmp_path, None, config=config) as service:
        assert service.ask.config is not None
        service.ask.config.write_text(config + "[queue]\nlength = 1\n[limits]\nbody_mib = 1\n")
        await reload(service)
        assert "what [limits], [queue] now says holds from the next start on" in told(service)


async def test_the_new_engine_takes_over_from_beside(tmp_path: Path, small_model: Path) -> None:
    async with serving(tmp_path, small_model, "--gap-ms", "5") as service:
        before = service.pids()
        async with Load(service, clients=8) as load:
            for _ in range(3):
                assert await reload(service, restart=True) == (Change("small", "replaced"),)
                await load.more(8)
        assert load.troubles == []
        assert len(load.texts) == 1
        assert service.pids() != before
        assert "beside the old one" in told(service)
        await one_engine_left(service)


@pytest.mark.usefixtures("no_room")
async def test_requests_wait_where_memory_holds_one_engine(
    tmp_path: Path, small_model: Path
) -> None:
    async with serving(tmp_path, small_model, "--gap-ms", "5", "--load-s", "1") as service:
        async with Load(service, clients=8) as load:
            reloading = asyncio.create_task(reload(service, restart=True))
            states = set()
            while not reloading.done():
                states.add(service.engines[0].state)
                await asyncio.sleep(0.01)
            assert reloading.result() == (Change("small", "restarted"),)
            await load.more(8)
        assert load.troubles == []
        assert len(load.texts) == 1
        assert states >= {"reloading"}
        assert service.engines[0].restarts == 1
        assert "new requests wait" in told(service)
        await one_engine_left(service)


@pytest.mark.real
@pytest.mark.parametrize("room", [True, False], ids=["beside", "in place"])
async def test_the_real_engine_under_load(
    tmp_path: Path, real_model: Path, monkeypatch: pytest.MonkeyPatch, room: bool
) -> None:
    monkeypatch.setattr("workhorse.up.reload.fits_beside", lambda *_: room)
    async with serving(tmp_path, real_model, real=True) as service:
        before = service.pids()
        async with Load(service, clients=3) as load:
            (change,) = await reload(service, restart=True)
            await load.more(3)
        assert load.troubles == []
        assert change.how == ("replaced" if room else "restarted")
        assert service.pids().keys() == before.keys()
        assert service.pids() != before
        await one_engine_left(service)


async def test_other_slots_from_the_settings(tmp_path: Path, small_model: Path) -> None:
    config = f'[[model]]\nmodel = "{small_model}"\nslots = 2\n'
    async with serving(tmp_path, None, config=config) as service:
        assert service.ask.config is not None
        heard: list[int] = []
        service.on_settings.append(lambda new: heard.append(new.model[0].slots or 0))
        service.ask.config.write_text(config.replace("slots = 2", "slots = 3"))
        assert await reload(service) == (Change("small", "replaced"),)
        (served,) = service.roster.served
        assert served.capacity is not None
        assert served.capacity.slots == 3
        assert heard == [3]


async def test_models_come_and_go(tmp_path: Path, small_model: Path) -> None:
    second = tmp_path / "second.gguf"
    shutil.copy(small_model, second)
    one, two = (f'[[model]]\nmodel = "{path}"\n' for path in (small_model, second))
    async with serving(tmp_path, None, config=one) as service:
        assert service.ask.config is not None
        service.ask.config.write_text(one + two)
        async with Load(service, clients=2, model="small") as load:
            assert await reload(service) == (Change("small", "kept"), Change("second", "added"))
            assert set(service.roster.models()) == {"small", "second"}
            assert {engine.log_name for engine in service.engines} == {
                f"engine-{service.port}.log",
                f"engine-{service.port}-1.log",
            }
            service.ask.config.write_text(one)
            assert await reload(service) == (Change("small", "kept"), Change("second", "removed"))
            await load.more(2)
        assert load.troubles == []
        await one_engine_left(service)


@pytest.mark.parametrize("room", [True, False], ids=["beside", "in its memory"])
async def test_one_model_for_another(
    tmp_path: Path, small_model: Path, monkeypatch: pytest.MonkeyPatch, room: bool
) -> None:
    monkeypatch.setattr("workhorse.up.reload.fits_beside", lambda *_: room)
    second = tmp_path / "second.gguf"
    shutil.copy(small_model, second)
    one, two = (f'[[model]]\nmodel = "{path}"\n' for path in (small_model, second))
    async with serving(tmp_path, None, config=one) as service:
        assert service.ask.config is not None
        service.ask.config.write_text(two)
        broken = fake_server(tmp_path / "bin2", "--die-at-start")
        service.ask = replace(service.ask, engine=broken)
        with pytest.raises(AppError, match="engine ended"):
            await reload(service)
        assert service.roster.models() == ("small",)
        assert service.control.status().state == "ready"
        service.ask = replace(service.ask, engine=fake_server(tmp_path / "bin3"))
        changes = await reload(service)
        assert {(change.model_name, change.how) for change in changes} >= {("second", "added")}
        assert service.roster.models() == ("second",)
        await one_engine_left(service)


@pytest.mark.usefixtures("no_room")
async def test_requests_wait_for_the_models_that_take_anothers_memory(
    tmp_path: Path, small_model: Path
) -> None:
    paths = [small_model, *(tmp_path / f"{name}.gguf" for name in ("second", "third"))]
    for path in paths[1:]:
        shutil.copy(small_model, path)
    one, *others = (f'[[model]]\nmodel = "{path}"\n' for path in paths)
    async with serving(tmp_path, None, "--load-s", "1", "--gap-ms", "5", config=one) as service:
        assert service.ask.config is not None
        service.ask.config.write_text(others[0])
        async with Load(service, clients=2) as load:  # by any name: one model is served
            await reload(service)
            await load.more(2)
        assert load.troubles == []
        service.ask.config.write_text(one + others[1])
        changes = await reload(service)
        assert {(change.model_name, change.how) for change in changes} == {
            ("small", "added"),
            ("third", "added"),
        }
        assert service.roster.models() == ("small", "third")
        await one_engine_left(service)


async def test_settings_that_cannot_be_read_change_nothing(
    tmp_path: Path, small_model: Path
) -> None:
    config = f'[[model]]\nmodel = "{small_model}"\n'
    async with serving(tmp_path, None, config=config) as service:
        assert service.ask.config is not None
        before = service.pids()
        for wrong, words in (
            ("[[model", "cannot be used"),
            ("[serve]\nprot = 1\n", "prot"),
            (config + "slots = 0\n", "slots"),
            (config + "context = 100000000\n", "smallest settings"),
            (f'[[model]]\nmodel = "{tmp_path}/none.gguf"\n', "none.gguf"),
        ):
            service.ask.config.write_text(wrong)
            with pytest.raises(AppError, match=words):
                await reload(service)
        assert service.pids() == before
        assert service.control.status().state == "ready"


@pytest.mark.parametrize("room", [True, False], ids=["beside", "in place"])
async def test_an_engine_that_does_not_start_leaves_the_old_one(
    tmp_path: Path, small_model: Path, monkeypatch: pytest.MonkeyPatch, room: bool
) -> None:
    monkeypatch.setattr("workhorse.up.reload.fits_beside", lambda *_: room)
    async with serving(tmp_path, small_model, "--gap-ms", "5") as service:
        fresh = fake_server(tmp_path / "bin2", "--gap-ms", "5")
        broken = fake_server(tmp_path / "bin2", "--die-at-start", name="broken")
        service.ask = replace(service.ask, engine=broken)
        async with Load(service, clients=4) as load:
            with pytest.raises(AppError, match="engine ended"):
                await reload(service)
            await load.more(8)
            assert service.control.status().state == "ready"
            service.ask = replace(service.ask, engine=fresh)
            (change,) = await reload(service)
            assert change.how == ("replaced" if room else "restarted")
            await load.more(4)
        assert load.troubles == []
        await one_engine_left(service)


async def test_a_service_that_gave_up_is_brought_back(
    tmp_path: Path, small_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workhorse.serve.routes.REASON_S", PATIENCE_S)
    async with serving(tmp_path, small_model) as service:
        fake_server(tmp_path / "bin", "--die-at-start")
        supervisor = service.engines[0].supervisor
        assert supervisor is not None
        supervisor._next_delay = lambda *_: None
        service.engines[0].kill()
        await until(lambda: service.control.status().state == "failed")
        (engine,) = service.control.status().engines
        assert engine.reason is not None
        assert "SIGKILL" in engine.reason.en
        async with aiohttp.ClientSession(service.url) as http, http.get("/healthz") as answer:
            health = await answer.json()
        assert (answer.status, health["state"]) == (503, "given_up")
        assert "SIGKILL" in health["reason"]
        fake_server(tmp_path / "bin")
        assert await reload(service) == (Change("small", "restarted"),)
        assert service.control.status().state == "ready"


async def test_one_reload_at_a_time_and_none_before_it_is_ready(
    tmp_path: Path, small_model: Path
) -> None:
    async with serving(tmp_path, small_model) as service:
        first = asyncio.create_task(reload(service, restart=True))
        await asyncio.sleep(0)
        assert service.control.status().state == "reloading"
        with pytest.raises(AppError, match="under way"):
            await reload(service)
        await first
    early = Service(Ask(model=small_model, port=0), Places(tmp_path), Listener())
    with pytest.raises(AppError, match="still starting"):
        await reload(early)


async def test_only_its_own_user_may_reload_it(tmp_path: Path, small_model: Path) -> None:
    async with (
        serving(tmp_path, small_model) as service,
        aiohttp.ClientSession(service.url) as http,
    ):
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer ü"}):
            async with http.post("/workhorse/reload", headers=headers) as answer:
                assert answer.status == 403
                assert (await answer.json())["error"]["speaker"] == "gateway"
        right = {"Authorization": f"Bearer {service.written.token}"}
        async with http.post("/workhorse/reload", headers=right) as answer:
            lines = [json.loads(line) for line in (await answer.text()).splitlines()]
        assert lines[-1] == {"changes": [{"model_name": "small", "how": "kept"}]}
        assert "stage" in lines[0]


async def test_who_asked_may_leave_and_the_reload_goes_on(
    tmp_path: Path, small_model: Path
) -> None:
    async with serving(tmp_path, small_model, "--load-s", "1") as service:
        before = service.pids()
        right = {"Authorization": f"Bearer {service.written.token}"}
        async with aiohttp.ClientSession(service.url) as http:
            path = "/workhorse/reload?restart=1"
            async with http.post(path, headers=right) as answer:
                await answer.content.readline()
        await until(lambda: not service.control.reloading)
        assert service.pids() != before
        assert "reload done" in told(service)


def test_the_commands(start_service: StartService) -> None:
    service = start_service()
    status = service.answering("status", "--json")
    document: dict[str, Any] = json.loads(status.stdout)
    assert document["state"] == "ready"
    assert document["engines"][0]["pid"] == service.engine_pid()
    done = service.command("reload", "--json", "--restart")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [{"model_name": "small", "how": "replaced"}]
    other = start_service()
    several = service.command("reload")
    assert several.returncode == 1
    assert str(other.port) in several.stderr
    shown = service.answering("status")
    assert str(other.port) in shown.stdout
    assert str(service.port) in shown.stdout
    assert service.command("reload", "--port", str(other.port)).stdout.startswith("small: goes on")
    for verb in ("reload", "status"):
        missing = service.command(verb, "--port", "1")
        assert missing.returncode == 1
        assert "No service runs on port 1" in missing.stderr
