"""The official client against the gateway in front of the real engine and model."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio
from real_engine import RealEngine, real_engine
from stand_ins import StandInBackend, gateway

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

ASK: Any = [{"role": "user", "content": "Name three colours."}]
# Greedy, and nothing of the request before: the same request gets the same answer.
SAME: Any = {"temperature": 0, "seed": 1, "extra_body": {"cache_prompt": False}}
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MODEL = "horse"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(
    real_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RealEngine]:
    async with real_engine(real_model, tmp_path_factory.mktemp("engine") / "log") as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url(engine: RealEngine) -> AsyncIterator[str]:
    async with gateway(StandInBackend(engine.url)) as front:
        yield front


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as made:
        yield made


async def test_models(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == [MODEL]


async def test_chat(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=16, **SAME)
    (choice,) = answer.choices
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16
    assert answer.usage.prompt_tokens > 10
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 16


async def test_a_stream_says_what_the_whole_answer_says(client: openai.AsyncOpenAI) -> None:
    asked: Any = {"model": MODEL, "messages": ASK, "max_tokens": 24, **SAME}
    whole = await client.chat.completions.create(**asked)
    parts = [part async for part in await client.chat.completions.create(stream=True, **asked)]
    said = "".join(part.choices[0].delta.content or "" for part in parts)
    assert said == whole.choices[0].message.content
    assert parts[-1].choices[0].finish_reason == "length"
    assert {part.usage for part in parts} == {None}
    assert len(parts) > 20


async def test_usage_in_a_stream(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=ASK,
        max_tokens=5,
        stream=True,
        stream_options={"include_usage": True},
    )
    parts = [part async for part in stream]
    assert parts[-1].choices == []
    assert parts[-1].usage is not None
    assert parts[-1].usage.completion_tokens == 5


async def test_stop(client: openai.AsyncOpenAI) -> None:
    asked: Any = {"model": MODEL, "messages": ASK, "max_tokens": 24, **SAME}
    free = (await client.chat.completions.create(**asked)).choices[0].message.content
    assert free is not None
    word = free.split()[3]
    (choice,) = (await client.chat.completions.create(stop=[word], **asked)).choices
    assert choice.finish_reason == "stop"
    assert choice.message.content == free[: free.index(word)]
    stream = await client.chat.completions.create(stop=word, stream=True, **asked)
    said = "".join([part.choices[0].delta.content or "" async for part in stream])
    assert said == choice.message.content


@pytest.mark.parametrize("stream", [True, False])
async def test_a_bad_request(client: openai.AsyncOpenAI, stream: bool) -> None:
    wrong: Any = "hot"
    with pytest.raises(openai.BadRequestError, match="temperature"):
        await client.chat.completions.create(
            model=MODEL, messages=ASK, temperature=wrong, stream=stream
        )


@pytest.mark.parametrize("stream", [True, False])
async def test_a_prompt_longer_than_the_context(client: openai.AsyncOpenAI, stream: bool) -> None:
    long: Any = [{"role": "user", "content": "word " * 20_000}]
    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(model=MODEL, messages=long, stream=stream)
    error: Any = refused.value.body
    assert error["type"] == "exceed_context_size_error"
    assert error["n_ctx"] == 8192


async def test_embeddings_are_refused_clearly(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.APIStatusError, match="does not support embeddings") as refused:
        await client.embeddings.create(model=MODEL, input="a")
    assert refused.value.status_code == 501


async def test_completions(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(
        model=MODEL, prompt=["One,", "Two,"], max_tokens=4, logprobs=1, **SAME
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert all(choice.text and choice.logprobs for choice in answer.choices)


async def test_a_json_schema_is_kept(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model=MODEL, messages=ASK, response_format=schema(), max_tokens=40, **SAME
    )
    content = answer.choices[0].message.content
    assert content is not None
    assert isinstance(json.loads(content)["warm"], bool)


def schema() -> Any:
    warm = {"type": "object", "properties": {"warm": {"type": "boolean"}}, "required": ["warm"]}
    return {"type": "json_schema", "json_schema": {"name": "colour", "schema": warm}}


TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALLED = [
    {"role": "user", "content": "The weather in Rome?"},
    {
        "role": "assistant",
        "tool_calls": [
            {
                "id": "1",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "1", "content": "sunny"},
]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": ASK}),
        (CHAT, {"messages": ASK, "max_tokens": 1}),
        (CHAT, {"messages": ASK, "stop": [",", "."]}),
        (CHAT, {"messages": ASK, "n": 2}),
        (CHAT, {"messages": ASK, "logprobs": True, "top_logprobs": 2}),
        (CHAT, {"messages": [*ASK, {"role": "assistant", "content": "The colours are"}]}),
        (CHAT, {"messages": ASK, "tools": [TOOL]}),
        (CHAT, {"messages": CALLED, "tools": [TOOL]}),
        (CHAT, {"messages": ASK, "response_format": schema()}),
        (CHAT, {"messages": ASK, "timings_per_token": True, "unknown": [1]}),
        (TEXT, {"prompt": "Once upon a time"}),
        (TEXT, {"prompt": ["Once", "Two"], "n": 1}),
        (TEXT, {"prompt": "Once", "logprobs": 2, "stop": ["e"]}),
        (TEXT, {"prompt": "Once", "n_probs": 2}),
        (TEXT, {"prompt": ""}),
        (CHAT, {}),
        (CHAT, {"messages": ASK, "n": 99}),
        (CHAT, {"messages": ASK, "grammar": "root ::= ("}),
        (TEXT, {"prompt": None}),
    ],
    ids=lambda value: value if isinstance(value, str) else ",".join(value) or "nothing",
)
async def test_equals_the_engines_own_answer(
    engine: RealEngine, url: str, path: str, body: dict[str, Any]
) -> None:
    """All but ids, the moment and durations, and the last digits of probabilities.

    An error says in addition that the engine speaks.
    """
    asked = {"temperature": 0, "seed": 1, "cache_prompt": False, "max_tokens": 10, **body}
    own_status, own = await engine.post(path, asked)
    async with engine.http.post(url + path, data=json.dumps(asked)) as answer:
        assert answer.status == own_status
        told = await answer.json()
    if own_status != 200:
        assert told["error"].pop("speaker") == "engine"
    assert comparable(told) == comparable(own, near=True)


def comparable(value: Any, name: str = "", *, near: bool = False) -> Any:
    if isinstance(value, dict):
        # A token has an id too, which must be the same: it has neither of these.
        hidden = ("id", "created") if value.keys() & {"object", "type"} else ()
        return {k: comparable(v, k, near=near) for k, v in value.items() if k not in hidden}
    if isinstance(value, list):
        return [comparable(part, near=near) for part in value]
    if name.endswith(("_ms", "_per_second")):
        return "a duration"
    return pytest.approx(value, abs=0.02) if near and isinstance(value, float) else value
