"""The proxy in front of an engine that follows a script: ordinary and odd answers."""

import asyncio
import io
import json
from collections.abc import AsyncIterator

import aiohttp
import pytest
from stand_ins import (
    PATIENCE_S,
    Exchange,
    Json,
    Script,
    ScriptedEngine,
    StandInBackend,
    chunk,
    gateway,
    progress,
    scripted,
)

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
TIMINGS = {"cache_n": 2, "prompt_n": 3, "predicted_n": 2, "predicted_per_second": 50.0}
HELLO = [chunk("Hello "), chunk("世界 👋"), chunk(None, finish="stop", timings=TIMINGS)]


class Service:
    """A client of a gateway in front of a scripted engine."""

    def __init__(self, url: str, http: aiohttp.ClientSession, engine: ScriptedEngine) -> None:
        self.url = url
        self.http = http
        self.engine = engine

    def follows(self, script: Script) -> None:
        self.engine.script = script

    async def post(self, path: str, body: object) -> tuple[int, bytes, aiohttp.ClientResponse]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.http.post(path, data=io.BytesIO(data)) as answer:
            return answer.status, await answer.read(), answer


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    async with (
        scripted(says_hello) as (engine, url),
        gateway(StandInBackend(url)) as front,
        aiohttp.ClientSession(front) as http,
    ):
        yield Service(front, http, engine)


async def says_hello(to: Exchange) -> None:
    await to.begin_stream()
    await to.event(progress(0))
    await to.event(progress(1024))
    for event in HELLO:
        await to.event(event)
    if to.json.get("stream_options", {}).get("include_usage"):
        await to.event(chunk(None) | {"choices": [], "usage": {"prompt_tokens": 5}})
    await to.end_stream()


def error_of(body: bytes) -> Json:
    error: Json = json.loads(body)["error"]
    return error


async def test_a_stream_is_passed_on_byte_for_byte(service: Service) -> None:
    status, body, answer = await service.post(CHAT, {"stream": True})
    assert status == 200
    assert answer.content_type == "text/event-stream"
    events = [b"data: " + json.dumps(event).encode() + b"\n\n" for event in HELLO]
    assert body == b"".join(events) + b"data: [DONE]\n\n"
    (asked,) = service.engine.exchanges
    assert asked.json == {"stream": True, "return_progress": True}


async def test_whoever_asks_for_progress_gets_it(service: Service) -> None:
    _, body, _ = await service.post(CHAT, {"stream": True, "return_progress": True})
    assert body.count(b'"prompt_progress"') == 2


async def test_without_a_stream_the_answer_is_one_document(service: Service) -> None:
    status, body, answer = await service.post(CHAT, {"messages": []})
    assert status == 200
    assert answer.content_type == "application/json"
    found = json.loads(body)
    assert found["object"] == "chat.completion"
    assert found["choices"][0]["message"] == {"role": "assistant", "content": "Hello 世界 👋"}
    assert found["usage"] == {"prompt_tokens": 5}
    assert found["timings"] == TIMINGS
    (asked,) = service.engine.exchanges
    assert asked.json["stream"] is True


async def test_nothing_of_the_client_but_its_body_reaches_the_engine(service: Service) -> None:
    headers = {"X-Conversation-Id": "1", "Authorization": "Bearer x", "Cookie": "a=b"}
    async with service.http.post(CHAT, data=b"{}", headers=headers) as answer:
        assert "Access-Control-Allow-Origin" not in answer.headers
    (asked,) = service.engine.exchanges
    head = asked.head.lower()
    for name in ("x-conversation-id", "authorization", "cookie"):
        assert name not in head
    assert "content-type: application/json" in head


def by_engine(document: Json) -> Json:
    return {"error": document["error"] | {"speaker": "engine"}}


async def test_refusals_pass_unchanged_and_say_whose_they_are(service: Service) -> None:
    refusal = {"error": {"code": 400, "type": "exceed_context_size_error", "n_ctx": 9}}

    async def refuses(to: Exchange) -> None:
        await to.whole(refusal, status=400)

    service.follows(refuses)
    for body in ({"stream": True}, {}, b"{broken"):
        status, got, _ = await service.post(CHAT, body)
        assert (status, json.loads(got)) == (400, by_engine(refusal))
    assert service.engine.exchanges[-1].body == b"{broken"


async def test_a_plain_answer_to_a_stream_request_is_passed_on(service: Service) -> None:
    plain = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 1}}

    async def knows_no_streams(to: Exchange) -> None:
        await to.whole(plain)

    service.follows(knows_no_streams)
    for body in ({"stream": True}, {}):
        status, got, _ = await service.post(CHAT, body)
        assert (status, json.loads(got)) == (200, plain)


@pytest.mark.parametrize(("code", "status"), [(503, 503), (400, 400), ("x", 500), (200, 500)])
async def test_an_error_inside_the_stream(service: Service, code: object, status: int) -> None:
    error = {"error": {"code": code, "message": "context shift is disabled", "type": "t"}}

    async def fails(to: Exchange) -> None:
        await to.begin_stream()
        await to.event(HELLO[0])
        await to.event(error)
        await to.send(b"0\r\n\r\n")

    service.follows(fails)
    got_status, body, _ = await service.post(CHAT, {})
    assert (got_status, json.loads(body)) == (status, by_engine(error))
    _, body, _ = await service.post(CHAT, {"stream": True})
    assert body.endswith(b"data: " + json.dumps(error).encode() + b"\n\n")
    assert b"speaker" not in body


async def dies(to: Exchange) -> None:
    await to.begin_stream()
    await to.event(HELLO[0])
    await to.chunk(b'data: {"choi')
    to.die()


async def ends_early(to: Exchange) -> None:
    await to.begin_stream()
    await to.event(HELLO[0])
    await to.send(b"0\r\n\r\n")


@pytest.mark.parametrize("script", [dies, ends_early])
async def test_an_engine_that_dies_while_it_answers(service: Service, script: Script) -> None:
    service.follows(script)
    status, body, answer = await service.post(CHAT, {})
    assert status == 502
    assert error_of(body)["speaker"] == "gateway"
    assert int(answer.headers["Retry-After"]) > 0

    status, body, _ = await service.post(CHAT, {"stream": True})
    assert status == 200
    first, error, rest = body.split(b"\n\n")
    assert json.loads(first.removeprefix(b"data: ")) == HELLO[0]
    assert error_of(error.removeprefix(b"data: "))["speaker"] == "gateway"
    assert rest == b""


async def dies_at_once(to: Exchange) -> None:
    to.die()


@pytest.mark.parametrize(
    ("path", "body", "times"),
    [
        (CHAT, {}, 2),  # it was queued: sent once more, and not for ever
        (CHAT, {"stream": True}, 2),
        (CHAT, {"logprobs": True}, 1),  # it may be what has killed the engine
        ("/v1/embeddings", {}, 1),
        ("/tokenize", {}, 1),
    ],
)
async def test_an_engine_that_dies_before_it_answers(
    service: Service, path: str, body: Json, times: int
) -> None:
    service.follows(dies_at_once)
    status, answer, _ = await service.post(path, body)
    assert (status, error_of(answer)["speaker"]) == (502, "gateway")
    assert len(service.engine.exchanges) == times


async def test_a_queued_request_is_served_by_the_next_engine(service: Service) -> None:
    async def dies_once(to: Exchange) -> None:
        service.follows(says_hello)
        to.die()

    service.follows(dies_once)
    status, body, _ = await service.post(CHAT, {})
    assert (status, json.loads(body)["object"]) == (200, "chat.completion")


async def test_a_plain_answer_that_breaks_off(service: Service) -> None:
    async def breaks_off(to: Exchange) -> None:
        await to.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        to.die()

    service.follows(breaks_off)
    status, body, _ = await service.post("/tokenize", {})
    assert (status, error_of(body)["speaker"]) == (502, "gateway")


async def test_characters_and_events_cut_anywhere(service: Service) -> None:
    whole = b"".join(
        b"data: " + json.dumps(e, ensure_ascii=False).encode() + b"\r\n\r\n" for e in HELLO
    )
    whole = b": hello\r\n\r\n" + whole + b"data: [DONE]\r\n\r\n"

    async def dribbles(to: Exchange) -> None:
        await to.begin_stream()
        for at in range(0, len(whole), 7):
            await to.chunk(whole[at : at + 7])
            await asyncio.sleep(0)
        await to.send(b"0\r\n\r\n")

    service.follows(dribbles)
    _, body, _ = await service.post(CHAT, {"stream": True})
    assert body == whole
    _, body, _ = await service.post(CHAT, {})
    assert json.loads(body)["choices"][0]["message"]["content"] == "Hello 世界 👋"


async def test_a_text_that_says_that_it_is_done(service: Service) -> None:
    first = {"choices": [{"index": 0, "delta": {"content": "[DONE]"}}]}

    async def quotes(to: Exchange) -> None:
        await to.begin_stream()
        await to.event(first)
        await asyncio.sleep(0.05)  # or both come in one block
        await to.event(HELLO[-1])
        await to.end_stream()

    service.follows(quotes)
    _, body, _ = await service.post(CHAT, {"stream": True})
    assert body.count(b"[DONE]") == 2
    assert body.endswith(b"data: [DONE]\n\n")


async def test_one_event_of_five_megabytes(service: Service) -> None:
    long = "长" * 1_700_000

    async def speaks_at_length(to: Exchange) -> None:
        await to.begin_stream()
        await to.event(chunk(long))
        await to.event(HELLO[-1])
        await to.end_stream()

    service.follows(speaks_at_length)
    _, body, _ = await service.post(CHAT, {})
    assert json.loads(body)["choices"][0]["message"]["content"] == long
    _, streamed, _ = await service.post(CHAT, {"stream": True})
    assert json.loads(streamed.split(b"\n\n")[0][6:]) == chunk(long)


async def test_ten_megabytes_of_request(service: Service) -> None:
    prompt = "x" * 10_000_000
    status, _, _ = await service.post(TEXT, {"prompt": prompt, "stream": True})
    assert status == 200
    assert service.engine.exchanges[0].json["prompt"] == prompt


async def test_progress_that_is_kept_back_becomes_pings(service: Service) -> None:
    pinged = asyncio.Event()

    async def thinks_long(to: Exchange) -> None:
        await to.begin_stream()
        done = 0
        while done < 5 or not pinged.is_set():
            await asyncio.sleep(0.03)
            await to.event(progress(done))
            done += 1
        await to.event(HELLO[-1])
        await to.end_stream()

    service.follows(thinks_long)
    asked = {"stream": True, "sse_ping_interval": 0.02}
    async with asyncio.timeout(PATIENCE_S), service.http.post(CHAT, json=asked) as answer:
        assert await answer.content.readexactly(3) == b":\n\n"
        pinged.set()
        body = await answer.read()
    assert b"prompt_progress" not in body
    assert body.endswith(b"data: [DONE]\n\n")
    _, body, _ = await service.post(CHAT, {"stream": True, "sse_ping_interval": -1})
    assert body.startswith(b"data: ")


async def test_a_client_of_http_1_0(service: Service) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(service.url.rpartition(":")[2]))
    body = b'{"stream": true}'
    writer.write(
        b"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    )
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.0 200")
    assert answer.endswith(b"data: [DONE]\n\n")
