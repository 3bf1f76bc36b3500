"""Anthropic's messages: what the engine is asked, and how its chat comes back."""

import json
from typing import Any

import pytest
from stand_ins import chunk, progress

from workhorse.serve.dialect import CHAT_PATH, MESSAGES
from workhorse.serve.messages_answer import MessageAssembly, MessageEvents
from workhorse.serve.messages_ask import chat_request
from workhorse.serve.sse import event_data, split_events

TIMINGS = {"cache_n": 4, "prompt_n": 6, "predicted_n": 3, "predicted_per_second": 50.0}
CACHED = {"cache_read_input_tokens": 4, "input_tokens": 6, "output_tokens": 3}
TOOL = {"name": "weather", "description": "Tells it.", "input_schema": {"type": "object"}}


def chat(*messages: Any, **more: Any) -> dict[str, Any]:
    body = chat_request(json.dumps({"messages": messages, **more}).encode())
    assert body is not None
    found: dict[str, Any] = json.loads(body)
    return found


def test_plain_words_and_unknown_fields_pass() -> None:
    found = chat({"role": "user", "content": "Hi"}, model="m", max_tokens=5, min_p=0.1, stream=True)
    assert found == {
        "messages": [{"role": "user", "content": "Hi"}],
        "model": "m",
        "max_tokens": 5,
        "min_p": 0.1,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


@pytest.mark.parametrize(
    ("system", "said"),
    [
        ("Be brief.", "Be brief."),
        ([{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}], "Be brief."),
        (
            "x-anthropic-billing-header: cc_version=2.1; cch=a51f5;You are",
            "x-anthropic-billing-header: cc_version=2.1; cch=fffff;You are",
        ),
        ("cch=a51f5;", "cch=a51f5;"),
    ],
)
def test_the_system_prompt_comes_first(system: Any, said: str) -> None:
    found = chat({"role": "user", "content": "Hi"}, system=system)
    assert found["messages"][0] == {"role": "system", "content": said}


def test_a_turn_with_tools_thoughts_and_pictures() -> None:
    png = {"type": "base64", "media_type": "image/png", "data": "QUJD"}
    far = {"type": "url", "url": "https://x/y.png"}
    found = chat(
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm."},
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Rome"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "And this?"},
                {"type": "image", "source": far},
                {"type": "tool_result", "tool_use_id": "t1", "content": "Sunny"},
                {
                    "type": "tool_result",
                    "tool_use_id": "t2",
                    "content": [
                        {"type": "text", "text": "A map"},
                        {"type": "image", "source": png},
                    ],
                },
                {"type": "tool_result", "tool_use_id": "t3"},
            ],
        },
        tools=[TOOL],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        stop_sequences=["END"],
        thinking={"type": "enabled", "budget_tokens": 100},
    )
    call, *results, asked = found["messages"]
    assert call == {
        "role": "assistant",
        "content": [{"type": "text", "text": "Let me see."}],
        "reasoning_content": "Hm.",
        "tool_calls": [
            {
                "id": "t1",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"city":"Rome"}'},
            }
        ],
    }
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}}
    assert [one["content"] for one in results] == [
        "Sunny",
        [{"type": "text", "text": "A map"}, image],
        "",
    ]
    assert [one["tool_call_id"] for one in results] == ["t1", "t2", "t3"]
    assert asked["content"][1]["image_url"]["url"] == "https://x/y.png"
    function = {"name": "weather", "description": "Tells it.", "parameters": {"type": "object"}}
    assert found["tools"] == [{"type": "function", "function": function}]
    assert (found["tool_choice"], found["parallel_tool_calls"]) == ("required", False)
    assert (found["stop"], found["thinking_budget_tokens"]) == (["END"], 100)


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b'{"messages": 5}', b'{"a":' * 9000, b'{"messages": [], "stream": 1}'],
)
def test_what_is_no_message_goes_on_as_it_is(body: bytes) -> None:
    ask = MESSAGES.ask(body)
    assert (ask.body, ask.answer, ask.path) == (body, "unchanged", None)


def test_the_engine_is_asked_for_a_chat_with_progress() -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "logprobs": True, "n": 3}
    ask = MESSAGES.ask(json.dumps(body).encode())
    asked = json.loads(ask.body)
    assert (ask.answer, ask.path) == ("assembled", CHAT_PATH)
    assert asked["stream"]
    assert asked["return_progress"]
    assert not asked.keys() & {"logprobs", "n", "echo"}


def call(index: int, name: str | None, words: str) -> dict[str, Any]:
    function = {"arguments": words} | ({"name": name} if name else {})
    found = chunk(None)
    part = {"index": index, "function": function} | ({"id": f"c{index}"} if name else {})
    found["choices"][0]["delta"] = {"tool_calls": [part]}
    return found


def thought(words: str) -> dict[str, Any]:
    found = chunk(None)
    found["choices"][0]["delta"] = {"reasoning_content": words}
    return found


LAST = {**chunk(None), "choices": [], "timings": TIMINGS}
FIRST = progress(1024)
FIRST["prompt_progress"] = {"total": 10, "cache": 4, "processed": 10}
ANSWERS = {
    "words": [FIRST, chunk("Hel"), chunk("lo"), chunk(None, finish="stop"), LAST],
    "cut": [FIRST, chunk("Hel"), chunk(None, finish="length"), LAST],
    "thoughts": [FIRST, thought("H"), thought("m"), chunk("Yes"), chunk(None, finish="stop"), LAST],
    "tools": [
        FIRST,
        chunk("See:"),
        call(0, "weather", ""),
        call(0, None, '{"city":'),
        call(0, None, '"Rome"}'),
        call(1, "time", "{}"),
        chunk(None, finish="tool_calls"),
        LAST,
    ],
    "nothing": [FIRST, chunk(None, finish="stop"), LAST],
}
CONTENT: dict[str, tuple[list[dict[str, Any]], str]] = {
    "words": ([{"type": "text", "text": "Hello"}], "end_turn"),
    "cut": ([{"type": "text", "text": "Hel"}], "max_tokens"),
    "thoughts": (
        [
            {"type": "thinking", "thinking": "Hm", "signature": ""},
            {"type": "text", "text": "Yes"},
        ],
        "end_turn",
    ),
    "tools": (
        [
            {"type": "text", "text": "See:"},
            {"type": "tool_use", "id": "c0", "name": "weather", "input": {"city": "Rome"}},
            {"type": "tool_use", "id": "c1", "name": "time", "input": {}},
        ],
        "tool_use",
    ),
    "nothing": ([], "end_turn"),
}


def stream(documents: list[dict[str, Any]]) -> bytes:
    events = [json.dumps(document).encode() for document in documents]
    return b"".join(b"data: " + event + b"\n\n" for event in [*events, b"[DONE]"])


def heard(said: bytes) -> dict[str, Any]:
    """The message that a client puts together, by the rules of Anthropic's API."""
    message: dict[str, Any] = {}
    for event in split_events(said):
        data = json.loads(event_data(event) or b"")
        assert event.startswith(f"event: {data['type']}\n".encode())
        match data["type"]:
            case "message_start":
                message = data["message"]
            case "content_block_start":
                assert data["index"] == len(message["content"])
                message["content"].append(data["content_block"])
            case "content_block_delta":
                block, delta = message["content"][data["index"]], data["delta"]
                kind, words = delta["type"], next(v for k, v in delta.items() if k != "type")
                field = {"input_json_delta": "json", "signature_delta": "signature"}.get(
                    kind, kind.removesuffix("_delta")
                )
                block[field] = block.get(field, "") + words
            case "content_block_stop":
                block = message["content"][data["index"]]
                if "json" in block:
                    block["input"] = json.loads(block.pop("json"))
            case "message_delta":
                message |= data["delta"]
                message["usage"] |= data["usage"]
    return message


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_as_a_whole_and_as_a_stream(name: str) -> None:
    assembly = MessageAssembly()
    for document in ANSWERS[name]:
        assembly.add(document)
    assert assembly.complete
    whole = assembly.answer()
    content, reason = CONTENT[name]
    assert (whole["content"], whole["stop_reason"]) == (content, reason)
    assert (whole["usage"], whole["id"], whole["type"]) == (CACHED, "msg_1", "message")
    said = stream(ANSWERS[name])
    for size in (1, 17, len(said)):
        events = MessageEvents(keep_progress=False)
        parts = b"".join(events.feed(said[at : at + size]) for at in range(0, len(said), size))
        told = heard(parts)
        assert MESSAGES.ends(parts)
        if name != "nothing":
            assert told == whole
        else:
            assert (told["content"], told["stop_reason"]) == (content, reason)


def test_prefill_is_silent_and_starts_nothing() -> None:
    events = MessageEvents(keep_progress=False)
    assert events.feed(stream([FIRST, FIRST])[: -len(b"data: [DONE]\n\n")]) == b""
    assert not events.started
    assert b"message_start" in events.feed(stream([chunk("a")]))
    assert events.started


def test_errors_have_anthropics_words() -> None:
    events = MessageEvents(keep_progress=False)
    error = {"error": {"code": 500, "message": "It broke.", "type": "server_error"}}
    (event,) = split_events(events.feed(stream([error])[: -len(b"data: [DONE]\n\n")]))
    assert json.loads(event_data(event) or b"") == {
        "type": "error",
        "error": {"code": 500, "message": "It broke.", "type": "api_error"},
    }
    assert b'"overloaded_error"' in MESSAGES.error_event({"error": {"type": "unavailable_error"}})
