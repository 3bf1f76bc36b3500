"""A batch of OpenAI's official client on the real engine with the real model."""

from pathlib import Path
from typing import Any

import pytest
from api_scenes import CHAT, client_of, ended, jsonl, ordered, request, results, until
from service_inside import serving

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]

COLOUR: Any = {
    "type": "json_schema",
    "json_schema": {
        "name": "colour",
        "schema": {
            "type": "object",
            "properties": {"colour": {"enum": ["red", "green", "blue"]}},
            "required": ["colour"],
        },
    },
}
RESPONSES = "/v1/responses"


async def test_chats_and_responses(real_model: Path, tmp_path: Path) -> None:
    asked: Any = {"response_format": COLOUR, "max_tokens": 24, "temperature": 0}
    schema = jsonl(*(request(f"r{n}", **asked) for n in range(4)))
    newer: Any = {"input": "Say hello.", "max_output_tokens": 8, "max_tokens": None}
    async with serving(tmp_path, real_model, real=True) as service, client_of(service) as client:
        await until(lambda: service.batches.closed is None)
        first = await ordered(client, schema, CHAT)
        second = await ordered(client, jsonl(request("a", RESPONSES, **newer)), RESPONSES)
        for batch, count in ((first, 4), (second, 1)):
            done = await ended(client, batch.id)
            found = await results(client, done.output_file_id)
            assert len(found) == count, await results(client, done.error_file_id)
            assert done.usage and done.usage.output_tokens > count
        chats = await results(client, (await client.batches.retrieve(first.id)).output_file_id)
        for one in chats:
            (choice,) = one["response"]["body"]["choices"]
            assert '"colour"' in choice["message"]["content"]
