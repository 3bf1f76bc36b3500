"""Images from a client to the engine, with a model that has eyes and with one that has none."""

import base64
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tiny_checkpoint import write_gguf
from tiny_projector import png, write_projector

from test_up import running_service


def asked(url: str, route: str, **body: Any) -> tuple[int, Any]:
    request = urllib.request.Request(f"{url}{route}", json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def about(image: bytes | str) -> list[dict[str, Any]]:
    url = image
    if isinstance(image, bytes):
        url = "data:image/png;base64," + base64.b64encode(image).decode()
    picture = {"type": "image_url", "image_url": {"url": url}}
    return [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, picture]}]


@pytest.mark.real
@pytest.mark.timeout(1800)
def test_a_model_sees_images_through_the_projector_beside_it(tmp_path: Path) -> None:
    model = write_gguf(tmp_path / "tiny.gguf")
    write_projector(tmp_path / "mmproj-tiny-f32.gguf")
    with running_service(tmp_path, model, ("--no-measure", "--skip-golden")) as service:

        def answer(messages: list[dict[str, Any]]) -> Any:
            more: dict[str, Any] = {"max_tokens": 12, "temperature": 0}
            return asked(service.url, "/v1/chat/completions", messages=messages, **more)

        status, red = answer(about(png(255, 0, 0)))
        assert status == 200, red
        _, blue = answer(about(png(0, 0, 255)))
        _, blind = answer([{"role": "user", "content": "What is it?"}])
        said = [one["choices"][0]["message"]["content"] for one in (red, blue, blind)]
        assert all(said)
        assert len(set(said)) == 3, "the answer depends on the colour"
        assert red["usage"]["prompt_tokens"] > blind["usage"]["prompt_tokens"]
        status, error = answer(about("http://127.0.0.1:1/x.png"))
        assert (status, error["error"]["speaker"]) == (400, "gateway")
        source = {"type": "base64", "media_type": "image/png"}
        source["data"] = base64.b64encode(png(255, 0, 0)).decode()
        content = [{"type": "text", "text": "What is it?"}, {"type": "image", "source": source}]
        status, message = asked(
            service.url,
            "/v1/messages",
            model="any",
            max_tokens=12,
            messages=[{"role": "user", "content": content}],
        )
        assert status == 200, message
        used = message["usage"]
        read = used["input_tokens"] + used["cache_read_input_tokens"]
        assert read == red["usage"]["prompt_tokens"]
        assert "buffers take" not in service.text()
    with running_service(
        tmp_path, model, ("--no-measure", "--skip-golden", "--mmproj", "none")
    ) as service:
        status, error = asked(
            service.url, "/v1/chat/completions", messages=about(png(255, 0, 0)), max_tokens=4
        )
        assert (status, error["error"]["type"]) == (400, "invalid_request_error")
        assert "--mmproj" in error["error"]["message"]
