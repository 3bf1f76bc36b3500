"""What the gateway answers itself, and how it takes what is not HTTP."""

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from stand_ins import PATIENCE_S, Exchange, Json, StandInBackend, chunk, gateway, scripted

from workhorse.errors import AppError
from workhorse.run.address import Address
from workhorse.serve.door import Limits
from workhorse.text import same

MODELS: dict[str, Any] = {
    "models": [{"name": "/a/b.gguf", "model": "/a/b.gguf", "type": "model"}],
    "object": "list",
    "data": [{"id": "/a/b.gguf", "object": "model", "owned_by": "llamacpp", "meta": {"n_ctx": 9}}],
}
TIMINGS = {"cache_n": 2, "prompt_n": 3, "predicted_n": 7, "predicted_per_second": 50.0}


async def engine(to: Exchange) -> None:
    match to.head.split()[1]:
        case _ if to.head.startswith("HEAD"):
            await to.send(b"HTTP/1.1 200 X\r\nContent-Length: 9\r\n\r\n")
            to.die()
        case "/v1/models":
            await to.whole(MODELS)
        case "/v1/embeddings":
            await to.whole({"error": {"code": 501, "type": "not_supported_error"}}, status=501)
        case "/v1/chat/completions":
            await to.begin_stream()
            await to.event(chunk("a"))
            await to.event(chunk(None, finish="stop", timings=TIMINGS))
            await to.end_stream()
        case path:
            await to.whole({"path": path, "body": to.body.decode()})


@pytest.fixture
async def backend() -> AsyncIterator[StandInBackend]:
    async with scripted(engine) as (_, url):
        yield StandInBackend(url)


@pytest.fixture
async def url(backend: StandInBackend) -> AsyncIterator[str]:
    async with gateway(backend, limits=Limits(body_bytes=100_000)) as front:
        yield front


@pytest.fixture
async def http(url: str) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(url) as session:
        yield session


async def error_of(answer: aiohttp.ClientResponse) -> Json:
    error: Json = (await answer.json())["error"]
    assert {"message", "type", "param", "code", "speaker"} <= error.keys()
    assert error["code"] == answer.status
    return error


async def test_models_are_listed_under_the_given_name(http: aiohttp.ClientSession) -> None:
    async with http.get("/v1/models") as answer:
        listed = await answer.json()
    assert listed["data"] == [MODELS["data"][0] | {"id": "horse"}]
    assert listed["models"] == [MODELS["models"][0] | {"name": "horse", "model": "horse"}]


async def test_one_model_by_its_name(http: aiohttp.ClientSession) -> None:
    async with http.get("/v1/models/horse") as answer:
        assert (await answer.json())["id"] == "horse"
    async with http.get("/v1/models/other/one") as answer:
        assert answer.status == 404
        assert "Served here: horse." in (await error_of(answer))["message"]


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/tokenize"), ("POST", "/detokenize"), ("GET", "/props?model=x")],
)
async def test_plain_routes_pass(http: aiohttp.ClientSession, method: str, path: str) -> None:
    body = b'{"content":1}' if method == "POST" else b""
    async with http.request(method, path, data=body) as answer:
        assert await answer.json() == {"path": path, "body": body.decode()}


@pytest.mark.parametrize("path", ["/v1/models", "/props", "/healthz", "/metrics"])
async def test_a_look_at_the_head_alone(http: aiohttp.ClientSession, path: str) -> None:
    async with http.head(path) as answer:
        assert (answer.status, await answer.read()) == (200, b"")


async def test_a_model_without_embeddings(http: aiohttp.ClientSession) -> None:
    async with http.post("/v1/embeddings", json={"input": "a"}) as answer:
        assert answer.status == 501
        assert (await answer.json())["error"]["type"] == "not_supported_error"


async def test_an_unknown_route_is_told_the_known_ones(http: aiohttp.ClientSession) -> None:
    async with http.get("/v2/chat") as answer:
        assert answer.status == 404
        error = await error_of(answer)
    assert error["speaker"] == "gateway"
    assert "GET /v2/chat" in error["message"]
    assert "POST /v1/chat/completions" in error["message"]


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/v1/chat/completions"), ("POST", "/props"), ("OPTIONS", "/props")]
)
async def test_a_wrong_method(http: aiohttp.ClientSession, method: str, path: str) -> None:
    async with http.request(method, path) as answer:
        assert answer.status == 405
        assert answer.headers["Allow"]
        await error_of(answer)


async def test_no_other_origin_may_read(http: aiohttp.ClientSession) -> None:
    async with http.get("/v1/models", headers={"Origin": "http://elsewhere"}) as answer:
        assert not [name for name in answer.headers if name.startswith("Access-Control")]


async def test_a_body_above_the_limit(http: aiohttp.ClientSession) -> None:
    async with http.post("/v1/chat/completions", data=b"x" * 100_001) as answer:
        assert answer.status == 413
        assert "100000" in (await error_of(answer))["message"]


async def test_health(http: aiohttp.ClientSession, backend: StandInBackend) -> None:
    async with http.get("/healthz") as answer:
        assert (answer.status, await answer.json()) == (200, {"status": "ok", "state": "ready"})


async def test_when_every_engine_was_taken_out_of_service_it_is_no_mistake_of_the_client() -> None:
    async with gateway() as url, aiohttp.ClientSession(url) as http:
        async with http.post("/v1/chat/completions", json={"model": "horse"}) as answer:
            assert answer.status == 503
            assert "out of service" in (await error_of(answer))["message"]
            assert answer.headers["Retry-After"]
        async with http.get("/healthz") as answer:
            assert (answer.status, (await answer.json())["state"]) == (503, "out of service")


async def test_health_while_requests_wait_for_a_reload() -> None:
    class Reloading(StandInBackend):
        async def address(self, wait_s: float) -> Address:
            await asyncio.Event().wait()
            return Address("")

    async with (
        gateway(Reloading(None, "reloading")) as url,
        aiohttp.ClientSession(url) as http,
        http.get("/healthz", timeout=aiohttp.ClientTimeout(PATIENCE_S)) as answer,
    ):
        assert answer.status == 503
        assert await answer.json() == {"status": "unavailable", "state": "reloading"}


async def test_health_without_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workhorse.serve.routes.REASON_S", PATIENCE_S)
    async with (
        gateway(StandInBackend(None, "given_up")) as url,
        aiohttp.ClientSession(url) as http,
        http.get("/healthz") as answer,
    ):
        assert answer.status == 503
        assert await answer.json() == {
            "status": "unavailable",
            "state": "given_up",
            "reason": "It fell over. Wait.",
            "speaker": "engine",
        }


async def test_metrics(http: aiohttp.ClientSession, backend: StandInBackend) -> None:
    for body in ({"stream": True}, {"stream": False}):
        async with http.post("/v1/chat/completions", json=body) as answer:
            await answer.read()
    async with http.get("/nowhere"):
        pass
    backend.state, backend.restarts = "restarting", 4
    async with http.get("/metrics") as answer:
        page = await answer.text()
    for line in (
        'workhorse_requests_total{route="/v1/chat/completions",status="200"} 2.0',
        'workhorse_requests_total{route="other",status="404"} 1.0',
        "workhorse_prompt_tokens_total 10.0",
        "workhorse_prompt_tokens_cached_total 4.0",
        "workhorse_generation_tokens_total 14.0",
        "workhorse_time_to_first_token_seconds_count 2.0",
        "workhorse_decode_tokens_per_second_sum 100.0",
        "workhorse_requests_in_flight 0.0",
        "workhorse_clients_left_total 0.0",
        'workhorse_engine_state{model="horse",state="restarting"} 1.0',
        'workhorse_engine_restarts_total{model="horse"} 4.0',
    ):
        assert line in page.splitlines()


async def test_a_fault_of_ours_is_logged_and_named(
    http: aiohttp.ClientSession, backend: StandInBackend, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(wait_s: float) -> Address:
        raise ValueError("a bug")

    backend.address = fails  # type: ignore[method-assign]
    async with http.post("/tokenize", json={}) as answer:
        assert answer.status == 500
        assert (await error_of(answer))["speaker"] == "gateway"
    assert "a bug" in caplog.text


async def say(url: str, words: bytes) -> bytes:
    """What the gateway says to bytes of any kind, until it closes the connection."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(words)
    answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
    writer.close()
    return answer


@pytest.mark.parametrize(
    "words",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"HELLO\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n\r\n",  # no host
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: many\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
async def test_broken_http_is_refused_without_noise(
    url: str, http: aiohttp.ClientSession, words: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert b" 400 " in (await say(url, words)).split(b"\r\n")[0]
    assert caplog.records == []
    async with http.get("/healthz") as answer:
        assert answer.status == 200


async def test_a_compressed_body_that_is_none(http: aiohttp.ClientSession) -> None:
    headers = {"Content-Encoding": "gzip"}
    async with http.post("/tokenize", data=b"not gzip", headers=headers) as answer:
        assert answer.status == 400


async def test_pipelined_requests_are_answered_in_order(url: str) -> None:
    one = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    two = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"
    last = b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    answer = await say(url, one + two + last)
    assert re.findall(rb"HTTP/1.1 (\d+)", answer) == [b"200", b"200", b"404"]
    assert answer.index(b'"state"') < answer.index(b'"path"')


async def test_the_engines_owner_may_speak_for_the_engine(
    http: aiohttp.ClientSession, backend: StandInBackend
) -> None:
    async def refuses(wait_s: float) -> Address:
        raise AppError(same("Out of memory."), same("Take a smaller model."), speaker="engine")

    backend.address = refuses  # type: ignore[method-assign]
    async with http.post("/v1/chat/completions", json={}) as answer:
        assert answer.status == 503
        assert int(answer.headers["Retry-After"]) > 0
        error = await error_of(answer)
    assert (error["speaker"], error["message"]) == (
        "engine",
        "Out of memory. Take a smaller model.",
    )
    assert json.loads(json.dumps(error)) == error


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:8080"}, 200),
        ({"Host": "[::1]:8080"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Origin": "http://127.0.0.1:8080"}, 200),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
    ],
)
async def test_another_sites_page_is_refused(
    http: aiohttp.ClientSession, headers: dict[str, str], status: int
) -> None:
    async with http.get("/v1/models", headers=headers) as answer:
        assert answer.status == status
        if status == 403:
            assert "only its own programs" in (await error_of(answer))["message"]
