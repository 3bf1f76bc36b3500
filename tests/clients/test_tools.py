"""Streaming with tools, as editors and agents do it, on the real engine.

The model here is too small to choose a tool by itself, and its own chat template knows none: it
gets one that does and is told that it must, and the engine holds it to the tool's schema. What is
tried is everything else on the way.
"""

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from real_engine import real_engine
from stand_ins import StandInBackend
from test_clients import PYTHON, Service, installed, run
from tool_model import with_tools

from workhorse.serve.activity import Activity
from workhorse.serve.app import Gateway, build_app
from workhorse.serve.auth import Access
from workhorse.serve.backend import Roster, Served
from workhorse.serve.key_store import KeyStore
from workhorse.serve.keys import Key

pytestmark = [pytest.mark.clients, pytest.mark.real, pytest.mark.timeout(1300)]

PARAMETERS = {
    "type": "object",
    "properties": {"path": {"type": "string", "maxLength": 20}, "lines": {"type": "integer"}},
    "required": ["path", "lines"],
}
TOOLS: Any = [
    {
        "type": "function",
        "function": {"name": "read_file", "description": "Reads.", "parameters": PARAMETERS},
    }
]
ASKED: Any = [{"role": "user", "content": "Read ten lines of README.md."}]
# Nothing of the request before: the same request gets the same answer.
TOLD: Any = {"model": "any", "tools": TOOLS, "max_tokens": 150, "temperature": 0.5}
TOLD["extra_body"] = {"cache_prompt": False}
# The schema allows words before a call, and a small model has many: with the engine of our own
# dependencies the first of these seeds has none.
SEEDS = range(1, 11)
# aider and others ask by litellm.
LITELLM = """
import json, litellm, sys
asked = json.loads(sys.argv[1])
for seed in range(1, int(sys.argv[2])):
    parts = list(litellm.completion(stream=True, tool_choice="required", seed=seed, **asked))
    whole = litellm.stream_chunk_builder(parts, messages=asked["messages"])
    if whole.choices[0].message.tool_calls:
        break
call = whole.choices[0].message.tool_calls[0]
print(json.dumps([call.id, call.function.name, call.function.arguments]))
"""


@pytest.fixture
async def service(tmp_path: Path, real_model: Path) -> AsyncIterator[Service]:
    store = KeyStore(tmp_path / "service.sqlite")
    key = store.add(Key("ann"), time.time())
    model = with_tools(real_model, tmp_path / "model.gguf")
    async with real_engine(model, tmp_path / "engine.log") as engine:
        served = Served("horse", StandInBackend(engine.url))
        opened = Gateway(build_app(Roster((served,)), activity=Activity(), access=Access(store)))
        await opened.start(port=0)
        try:
            yield Service(opened.url or "", key)
        finally:
            await opened.stop()


def read(arguments: str) -> dict[str, Any]:
    """The arguments of a call, which the schema allows."""
    found: dict[str, Any] = json.loads(arguments)
    assert isinstance(found["path"], str)
    assert isinstance(found["lines"], int)
    return found


async def streamed_call(client: openai.AsyncOpenAI, seed: int) -> Any:
    """Id, name and the pieces of the arguments of a call; None: the model talked on instead."""
    pieces, finish, call_id, name = [], None, "", ""
    stream = await client.chat.completions.create(
        messages=ASKED, stream=True, tool_choice="required", seed=seed, **TOLD
    )
    async for part in stream:
        for choice in part.choices:
            finish = choice.finish_reason or finish
            for call in choice.delta.tool_calls or ():
                assert call.index == 0
                assert call.function is not None
                call_id, name = call_id or call.id or "", name or call.function.name or ""
                pieces.append(call.function.arguments or "")
    return (call_id, name, pieces) if finish == "tool_calls" else None


async def test_a_call_comes_in_pieces_and_its_result_goes_back(service: Service) -> None:
    async with openai.AsyncOpenAI(base_url=f"{service.url}/v1", api_key=service.key) as client:
        for seed in SEEDS:
            if (found := await streamed_call(client, seed)) is not None:
                break
        assert found is not None
        call_id, name, pieces = found
        arguments = "".join(pieces)
        assert name == "read_file"
        assert len(pieces) > 2
        assert read(arguments)
        whole = await client.chat.completions.create(
            messages=ASKED, tool_choice="required", seed=seed, **TOLD
        )
        (call,) = whole.choices[0].message.tool_calls or ()
        assert call.type == "function"
        assert call.function.arguments == arguments
        function = {"name": name, "arguments": arguments}
        calls = [{"id": call_id, "type": "function", "function": function}]
        turns: Any = [
            *ASKED,
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": call_id, "content": "# workhorse"},
        ]
        stream = await client.chat.completions.create(
            messages=turns, stream=True, tool_choice="none", **{**TOLD, "max_tokens": 20}
        )
        said = [choice.delta.content async for part in stream for choice in part.choices]
        assert "".join(filter(None, said)).strip()


async def test_litellm_puts_the_pieces_together(service: Service) -> None:
    python = await installed(PYTHON["litellm"][0], "litellm")
    asked = {
        **TOLD,
        "model": "openai/any",
        "api_base": f"{service.url}/v1",
        "api_key": service.key,
        "messages": ASKED,
    }
    words = ("-c", LITELLM, json.dumps(asked), str(SEEDS.stop))
    said = await run(python, *words, LITELLM_LOCAL_MODEL_COST_MAP="True")
    call_id, name, arguments = json.loads(said.splitlines()[-1])
    assert call_id
    assert name == "read_file"
    assert read(arguments)
