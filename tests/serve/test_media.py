"""Images in requests: counted, and never fetched from elsewhere for a client."""

import json
from typing import Any

import aiohttp
import pytest
from stand_ins import Exchange, StandInBackend, chunk, gateway, scripted

from workhorse.serve.backend import Capacity
from workhorse.serve.media import Media, media_in

DATA = "data:image/png;base64,QUJD"


def body(*parts: Any, **more: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": list(parts)}], **more}).encode()


def image(url: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": url}


@pytest.mark.parametrize(
    "part",
    [
        image({"url": DATA}),
        image(DATA),
        {"type": "input_image", "image_url": DATA},
        {"type": "image", "source": {"type": "base64", "data": "QUJD"}},
        {"type": "tool_result", "content": [{"type": "image", "source": {"data": "QUJD"}}]},
    ],
)
def test_an_image_that_the_request_carries_is_counted(part: Any) -> None:
    text = {"type": "text", "text": "See https://example.org/ and image_url"}
    assert media_in(body(text, part)) == Media(images=1)


@pytest.mark.parametrize(
    "part",
    [
        image({"url": "http://10.0.0.1/x.png"}),
        image("HTTPS://10.0.0.1/x.png"),
        image({"url": " http://10.0.0.1/x.png"}),
        image({"url": "file:///etc/passwd"}),
        image({"url": "ftp://10.0.0.1/x.png"}),
        {"type": "input_image", "image_url": "http://10.0.0.1/x.png"},
        {"image_url": "http://10.0.0.1/x.png"},
        {"type": "input_audio", "input_audio": {"data": "http://10.0.0.1/x.wav"}},
        {"type": "input_video", "input_video": {"url": "http://10.0.0.1/x.mp4"}},
        {"type": "video_url", "video_url": {"url": "http://10.0.0.1/x.mp4"}},
        {"type": "image", "source": {"type": "url", "url": "http://10.0.0.1/x.png"}},
    ],
)
def test_an_address_is_found_wherever_it_is(part: Any) -> None:
    for whole in (body(part), json.dumps({"input": [{"content": [part]}]}).encode()):
        found = media_in(whole)
        assert found is not None
        assert found.far is not None
    # Letters may be written another way.
    hidden = body(part).replace(b"_", b"\\u005f").replace(b"source", b"\\u0073ource")
    found = media_in(hidden)
    assert found is not None
    assert found.far is not None


def test_what_is_no_medium_is_left_alone() -> None:
    schema = {"properties": {"image_url": {"type": "string", "url": "http://x"}}}
    found = {"type": "search_result", "source": "https://example.org", "content": []}
    assert media_in(body({"type": "text", "text": "http://x"}, tools=[schema])) == Media()
    assert media_in(body(found)) == Media()
    sound = {"type": "input_audio", "input_audio": {"data": "QUJD", "format": "wav"}}
    assert media_in(body(sound)) == Media()
    assert media_in(b"not JSON") == media_in(b'["image_url"]') == Media()


@pytest.mark.parametrize("before", [b"\xef\xbb\xbf", b"\x00"])
def test_what_only_an_engine_might_read_is_not_passed_on(before: bytes) -> None:
    assert media_in(before + body(image(DATA))) is None
    deep = b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b',"messages":[{"image_url":"http://x"}]}'
    assert media_in(deep) is None
    many = b'{"x":[' + b"[]," * 1_000_001 + b'0],"image_url":"http://x"}'
    assert media_in(many) is None


async def engine(to: Exchange) -> None:
    await to.begin_stream()
    await to.event(chunk("a"))
    await to.event(chunk(None, finish="stop"))
    await to.end_stream()


async def asked(url: str, route: str, sent: bytes) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as client, client.post(url + route, data=sent) as answer:
        return answer.status, json.loads(await answer.read())


@pytest.mark.parametrize(("images", "expected"), [(True, 200), (None, 200), (False, 400)])
async def test_images_go_to_who_can_see_them(images: bool | None, expected: int) -> None:
    async with scripted(engine) as (told, url):
        capacity = Capacity(1, 4096, images=images)
        async with gateway(StandInBackend(url), capacity=capacity) as gate:
            status, said = await asked(gate, "/v1/chat/completions", body(image({"url": DATA})))
            assert status == expected
            if expected == 200:
                assert DATA in told.exchanges[0].body.decode()
                return
            assert said["error"]["type"] == "invalid_request_error"
            assert "--mmproj" in said["error"]["message"]
            assert not told.exchanges
            status, _ = await asked(gate, "/v1/chat/completions", body("text"))
            assert status == 200


@pytest.mark.parametrize(
    "route",
    [
        "/v1/chat/completions",
        "/v1/messages",
        "/v1/responses",
        "/v1/embeddings",
        "/apply-template",
        "/v1/messages/count_tokens",
    ],
)
async def test_no_route_has_an_engine_fetch_for_a_client(route: str) -> None:
    async with scripted(engine) as (told, url):
        capacity = Capacity(1, 4096, images=True)
        async with gateway(StandInBackend(url), capacity=capacity) as gate:
            for sent in (body(image({"url": "http://10.0.0.1/"})), b"\0" + body(image(DATA))):
                status, said = await asked(gate, route, sent)
                assert (status, said["error"]["speaker"]) == (400, "gateway")
    assert not told.exchanges
