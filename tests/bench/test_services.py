"""Every kind of service is asked its own way."""

import ssl
from pathlib import Path

import aiohttp
import pytest
import trustme
from aiohttp import web
from plain_service import PlainService, serving

from workhorse.bench.identify import who_serves
from workhorse.bench.load import load_session, measure
from workhorse.bench.scenario import Scenario
from workhorse.bench.service import CHAT_ROUTE, TEXT_ROUTE, Service, find_service
from workhorse.errors import AppError
from workhorse.records import Run, ServedBy

SIZES = Scenario("test", prompt_tokens=200, output_tokens=5, streams=2, repeats=1)


async def runs_of(url: str, scenario: Scenario = SIZES, **more: object) -> tuple[Run, ...]:
    return await measure(url, scenario, on_progress=lambda _: None, seed=1, **more)  # type: ignore[arg-type]


async def found(url: str, **more: object) -> tuple[Service, ServedBy]:
    async with load_session() as client:
        service = await find_service(client, url, **more)  # type: ignore[arg-type]
        return service, await who_serves(client, service)


@pytest.mark.parametrize("strict", [False, True])
async def test_a_service_that_only_chats(strict: bool) -> None:
    service = PlainService(chat_only=True, strict=strict, template_tokens=30)
    async with serving(service) as url:
        runs = await runs_of(url)
        asked, _ = await found(url)
    assert {(run.error, run.output_tokens) for run in runs} == {(None, 5)}
    assert asked.dialect.route == CHAT_ROUTE
    assert asked.dialect.extras is not strict
    for run in runs:
        assert run.prompt_tokens == pytest.approx(200, abs=10)  # the template's tokens counted in
        assert len(run.arrivals_s) == 5
    for body in service.streamed:
        assert ("ignore_eos" in body) is not strict


async def test_a_strict_service_is_not_asked_what_it_refuses() -> None:
    service = PlainService(strict=True)
    async with serving(service) as url:
        runs = await runs_of(url)
        asked, _ = await found(url)
    assert {run.error for run in runs} == {None}
    assert (asked.dialect.route, asked.dialect.extras) == (TEXT_ROUTE, False)


async def test_vllm_takes_tokens_of_its_own_tokenizer() -> None:
    service = PlainService(tokenizer="vllm", owner="vllm")
    async with serving(service) as url:
        runs = await runs_of(url)
        asked, served_by = await found(url)
    assert asked.tokenizer == "vllm"
    assert {run.prompt_tokens for run in runs} == {200}
    assert all(body["prompt"][0] == 1 for body in service.streamed)  # what it puts before a text
    assert (served_by.engine, served_by.build, served_by.model) == ("vllm", "0.32.0", "plain")


async def test_lmdeploy_gets_texts_of_exactly_the_length() -> None:
    service = PlainService(tokenizer="lmdeploy", owner="lmdeploy")
    shared = Scenario("test", 200, 5, 2, 2, shared_tokens=150, cache=True)
    async with serving(service) as url:
        runs = await runs_of(url, shared)
        _, served_by = await found(url)
    assert served_by.engine == "lmdeploy"
    assert {run.prompt_tokens for run in runs} == {200}
    assert all(isinstance(body["prompt"], str) for body in service.streamed)
    assert len({body["prompt"][:200] for body in service.streamed}) == 1
    assert len({body["prompt"] for body in service.streamed}) == 5


async def test_a_service_that_tells_nothing_of_itself() -> None:
    async with serving(PlainService()) as url:
        _, served_by = await found(url)
    assert served_by == ServedBy(model="plain")


async def test_one_of_several_models() -> None:
    models = {"data": [{"id": "first"}, {"id": "second"}]}
    service = PlainService(models=web.json_response(models))
    async with serving(service) as url:
        asked, _ = await found(url, model="second")
        assert asked.model == "second"
    async with serving(PlainService(models=web.json_response(models))) as url:
        with pytest.raises(AppError, match="no model 'third'") as refused:
            await found(url, model="third")
    assert "first, second" in refused.value.next_step.en


async def test_a_service_that_completes_nothing() -> None:
    app = web.Application()
    app.router.add_get("/v1/models", PlainService().list_models)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        with pytest.raises(AppError, match="HTTP 404"):
            await runs_of(f"http://127.0.0.1:{runner.addresses[0][1]}")
    finally:
        await runner.cleanup()


async def test_tls_with_an_authority_of_its_own_and_a_key(tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    async with serving(PlainService(key="secret"), context) as url:
        assert url.startswith("https://")
        runs = await runs_of(url, api_key="secret", tls=trusting)
        with pytest.raises(AppError, match="not trusted") as refused:
            await runs_of(url, api_key="secret")
    assert {run.error for run in runs} == {None}
    assert "--ca-file" in refused.value.next_step.en


@pytest.mark.parametrize("engines", [1, 2])
async def test_a_gateway_tells_its_version_plan_and_engines(engines: int) -> None:
    setting = {"label": {"en": "threads", "zh": "线程"}, "value": "14", "because": {}}
    plan = {"model_name": "m", "engine": "llama.cpp b1", "slots": 3, "context_tokens": 4096}
    state = {
        "version": "9.9",
        "about": {"machine": [], "plans": [None, *[{**plan, "settings": [setting]}] * engines]},
        "reading": {"engines": [{"model_name": "m", "pid": 4321}]},
    }

    async def answer(_: web.Request) -> web.Response:
        return web.json_response(state)

    app = web.Application()
    app.router.add_get("/workhorse/state", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with aiohttp.ClientSession() as client:
            served_by = await who_serves(client, Service(url, "m", {}))
    finally:
        await runner.cleanup()
    slots, several = 3 * engines, ((("engines", "2"),) if engines == 2 else ())
    assert (served_by.gateway, served_by.slots, served_by.context_tokens) == ("9.9", slots, 4096)
    assert (served_by.settings, served_by.pids) == ((*several, ("threads", "14")), (4321,))
    assert served_by.build == "llama.cpp b1"
