"""A service that is killed without a word: its batches go on in the next one, nothing twice."""

import json
import signal
import time
from collections.abc import Callable

import openai
import pytest
from api_scenes import CHAT, OVER, chats
from openai.types import Batch
from service_process import PATIENCE_S, Running, StartService

pytestmark = pytest.mark.timeout(1800)

REQUESTS = 40


def client_of(service: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=5)


def watched(client: openai.OpenAI, batch_id: str, enough: Callable[[Batch], bool]) -> Batch:
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        if enough(found := client.batches.retrieve(batch_id)):
            return found
        time.sleep(0.02)
    raise AssertionError(client.batches.retrieve(batch_id))


def test_a_batch_survives_its_service(start_service: StartService) -> None:
    first = start_service("--gap-ms", "10")
    with client_of(first) as client:
        sent = client.files.create(file=("a", chats(REQUESTS, max_tokens=8)), purpose="batch")
        batch = client.batches.create(input_file_id=sent.id, endpoint=CHAT, completion_window="24h")
        watched(
            client, batch.id, lambda one: bool(one.request_counts and one.request_counts.completed)
        )
        (first.home / "files" / "content" / "file-half").write_text("of an upload")
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
    second = start_service()
    with client_of(second) as client:
        done = watched(client, batch.id, lambda one: one.status in OVER)
        assert done.status == "completed" and done.error_file_id is None
        lines = client.files.content(done.output_file_id or "").text.splitlines()
        ids = [json.loads(line)["custom_id"] for line in lines]
        assert ids == [f"r{n}" for n in range(REQUESTS)]
    kept = {path.name for path in (second.home / "files" / "content").iterdir()}
    assert kept == {sent.id, done.output_file_id}
