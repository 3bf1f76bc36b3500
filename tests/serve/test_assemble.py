"""One answer out of a stream equals the engine's own, on recordings of the real engine.

`recorded_answers.json`: llama-server 0.5.0 (commit 0c1e570), November 2026, temperature 0; each
request once as a stream with progress and once whole.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from stand_ins import chunk

from workhorse.serve.assemble import Assembly, Kind
from workhorse.serve.figures import TokenCount, whole_answer_figures
from workhorse.serve.sse import EventFilter, event_data, parse_object, split_events

RECORDED: dict[str, Any] = json.loads(
    Path(__file__).with_name("recorded_answers.json").read_text(encoding="utf-8")
)


def assembled(kind: Kind, events: list[dict[str, Any]]) -> Assembly:
    """The events as bytes through the filter, as the proxy does it."""
    assembly, passed = Assembly(kind), EventFilter(keep_progress=False)
    for event in events:
        whole = passed.feed(b"data: " + json.dumps(event).encode() + b"\n\n")
        for part in split_events(whole):
            if found := parse_object(event_data(part)):
                assembly.add(found)
    return assembly


def comparable(answer: dict[str, Any]) -> dict[str, Any]:
    """Without what differs from one run to the next: ids, the clock, and durations."""
    kept = {name: value for name, value in answer.items() if name not in ("id", "created")}
    kept["timings"] = {n: v if n.endswith("_n") else None for n, v in kept["timings"].items()}
    for choice in kept["choices"]:
        for call in choice.get("message", {}).get("tool_calls", ()):
            assert call.pop("id")
    return kept


@pytest.mark.parametrize("name", RECORDED)
def test_equals_the_whole_answer(name: str) -> None:
    recorded = RECORDED[name]
    assembly = assembled(recorded["kind"], recorded["stream"])
    assert assembly.complete
    assert assembly.error is None
    answer = assembly.answer()
    assert answer["id"] == recorded["stream"][0]["id"]
    assert comparable(answer) == comparable(recorded["whole"])


@pytest.mark.parametrize("name", RECORDED)
def test_counts_the_tokens_of_every_choice(name: str) -> None:
    recorded = RECORDED[name]
    counts = assembled(recorded["kind"], recorded["stream"]).figures.counts()
    assert len(counts) == len(recorded["whole"]["choices"])
    (whole,) = whole_answer_figures(json.dumps(recorded["whole"]).encode()).counts()
    assert (counts[0].prompt, counts[0].generated) == (whole.prompt, whole.generated)


@pytest.mark.parametrize(
    ("name", "prompts"), [("chat with two choices", 1), ("text of two prompts", 2)]
)
def test_the_prompt_of_several_choices_counts_once(name: str, prompts: int) -> None:
    recorded = RECORDED[name]
    counts = assembled(recorded["kind"], recorded["stream"]).figures.counts()
    assert len(counts) == 2
    assert sum(count.prompt_once for count in counts) == sum(
        c.prompt or 0 for c in counts[:prompts]
    )
    assert all(count.generated for count in counts)


def test_a_stream_that_was_cut_is_not_complete() -> None:
    assert not Assembly("chat").complete
    stream = RECORDED["chat with two choices"]["stream"]
    finished = [i for i, e in enumerate(stream) for c in e["choices"] if c["finish_reason"]]
    assert not assembled("chat", stream[: finished[0] + 1]).complete
    assert assembled("chat", stream[: finished[1] + 1]).complete


def test_an_error_event_is_kept_whole() -> None:
    error = {"error": {"code": 500, "message": "no", "type": "server_error"}}
    assert assembled("chat", [chunk("a"), error]).error == error


def test_tool_calls_are_merged_by_their_index() -> None:
    def call(index: int, **part: Any) -> dict[str, Any]:
        event = chunk(None)
        event["choices"][0]["delta"] = {"tool_calls": [{"index": index, **part}]}
        return event

    events = [
        call(0, id="a", type="function", function={"name": "one"}),
        call(1, id="b", type="function", function={"name": "two", "arguments": "{"}),
        call(0, function={"arguments": '{"x"'}),
        call(1, function={"arguments": "}"}),
        call(0, function={"arguments": ":1}"}),
        chunk(None, finish="tool_calls"),
    ]
    message = assembled("chat", events).answer()["choices"][0]["message"]
    assert message == {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"type": "function", "id": "a", "function": {"name": "one", "arguments": '{"x":1}'}},
            {"type": "function", "id": "b", "function": {"name": "two", "arguments": "{}"}},
        ],
    }


def test_fields_of_other_engines_are_kept() -> None:
    first, last = chunk("a", service_tier="x", usage=None), chunk("b", finish="stop")
    first["choices"][0]["delta"]["refusal"] = "I "
    last["choices"][0]["delta"]["refusal"] = "won't"
    last["choices"][0]["stop_reason"] = 7
    tokens = {"tokens": ["a"], "text_offset": [0]}
    first["choices"][0]["logprobs"] = tokens
    last["choices"][0]["logprobs"] = {"tokens": ["b"], "text_offset": [1]}
    total = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
    assembly = assembled("chat", [first, last, total])
    (choice,) = assembly.answer()["choices"]
    assert assembly.answer()["service_tier"] == "x"
    assert assembly.answer()["usage"] == total["usage"]
    assert choice["message"]["refusal"] == "I won't"
    assert choice["stop_reason"] == 7
    assert choice["logprobs"] == {"tokens": ["a", "b"], "text_offset": [0, 1]}
    assert assembly.figures.counts() == [TokenCount(3, None, 2, None)]


def test_an_answer_without_figures_counts_nothing() -> None:
    assert whole_answer_figures(b"<html>").counts() == []
    assert whole_answer_figures(b'{"usage": 3}').counts() == []
    assert whole_answer_figures(b'{"data": []}').counts() == []


def test_counts_that_are_none_are_not_taken() -> None:
    odd = b"""{
        "usage": {"prompt_tokens": "many", "completion_tokens": -1, "prompt_tokens_details": []},
        "timings": {"predicted_n": [7], "cache_n": 1e30, "predicted_per_second": "fast"}
    }"""
    assert whole_answer_figures(odd).counts() == [TokenCount(None, None, None, None)]
