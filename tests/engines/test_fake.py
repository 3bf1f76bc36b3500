"""The fake engine speaks like llama-server and shows the faults that it is told to have."""

import asyncio
import base64
import json
import random
import struct
from pathlib import Path
from typing import Any

import pytest
from fake_client import Json, fake, read_events, until
from hypothesis import given
from hypothesis import strategies as st

from workhorse.engines.fake.__main__ import behaviour_of, build_parser, main
from workhorse.engines.fake.decode import Behaviour
from workhorse.engines.fake.tokens import GARBAGE, cut_at_stop, say, to_text, to_tokens

SHAPES = json.loads((Path(__file__).parent / "llama_server_shapes.json").read_text())

# ------------------------------------------------------------ llama-server's words


def shape_of(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: "object" if key == "generation_settings" else shape_of(part)
            for key, part in value.items()
        }
    if isinstance(value, list):
        return [shape_of(value[0])] if value else []
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "number"
    return "null" if value is None else "string" if value != "[DONE]" else value


@pytest.mark.parametrize(
    "seen", SHAPES, ids=[f"{at} {seen['path']}" for at, seen in enumerate(SHAPES)]
)
async def test_answers_have_the_shape_that_llama_server_gives(seen: Json) -> None:
    # Captured from llama-server 0.5.0-dev (0c1e570), 2 slots of 4096 tokens, --embeddings.
    body = dict(seen["body"]) if "body" in seen else None
    if body is not None and str(body.get("prompt")).endswith(" tokens>"):
        body["prompt"] = [7] * int(body["prompt"].strip("<> tokens"))
    async with fake(slots=2, embeddings=True) as client:
        status, content_type, text = await client.post(seen["path"], body)
    assert (status, content_type) == (seen["status"], seen["type"])
    if "events" in seen:
        assert [shape_of(event) for event in read_events(text)] == seen["events"]
    else:
        assert shape_of(json.loads(text)) == seen["document"]


async def test_two_prompts_in_one_stream() -> None:
    async with fake(gap_s=0.001) as client:
        native = await client.events("/completion", {"prompt": ["a", "b"], "n_predict": 3})
        text = await client.events("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 3})
    assert native[0] is None, "llama-server opens each further prompt with null"
    assert sorted(event["index"] for event in native[1:]) == [0] * 4 + [1] * 4
    assert text[0] is None
    assert text[-1] == "[DONE]"
    assert sorted(event["choices"][0]["index"] for event in text[1:-1]) == [0] * 4 + [1] * 4


async def test_while_loading_everything_is_unavailable() -> None:
    async with fake(load_s=3600.0) as client:
        status, _, text = await client.post("/health", None)
        assert status == 503
        assert json.loads(text)["error"] == {
            "code": 503,
            "message": "Loading model",
            "type": "unavailable_error",
        }
        assert (await client.post("/v1/models", None))[0] == 503
        client.server.loaded_s = 0
        assert await client.post("/health", None) == (200, "application/json", '{"status": "ok"}')


async def test_props_tell_the_slots_and_the_context() -> None:
    async with fake(slots=3, context_tokens=777) as client:
        props = json.loads((await client.post("/props", None))[2])
        assert props["total_slots"] == 3
        assert props["default_generation_settings"]["n_ctx"] == 777
        assert await client.busy() == [False] * 3


async def test_broken_json_and_wrong_types_are_refused() -> None:
    async with fake() as client:
        async with client.http.post(client.url + "/v1/chat/completions", data=b"{bad") as answer:
            assert answer.status == 500
        prompts: list[Any] = [3, [], [None], [["a", None]]]
        for prompt in prompts:
            assert (await client.post("/completion", {"prompt": prompt}))[0] == 400
        messages: list[Any] = [[3], {}]
        for wrong in messages:
            assert (await client.post("/v1/chat/completions", {"messages": wrong}))[0] == 400
        assert (await client.post("/v1/embeddings", {"input": "x"}))[0] == 501


async def test_embeddings_have_length_one_and_the_same_values_in_base64() -> None:
    async with fake(embeddings=True) as client:
        _, _, text = await client.post("/v1/embeddings", {"input": ["cat", "dog"]})
        cat, dog = (one["embedding"] for one in json.loads(text)["data"])
        asked = {"input": "cat", "encoding_format": "base64"}
        _, _, text = await client.post("/v1/embeddings", asked)
    packed = base64.b64decode(json.loads(text)["data"][0]["embedding"])
    assert cat != dog
    assert sum(value * value for value in cat) == pytest.approx(1)
    assert struct.unpack(f"<{len(cat)}f", packed) == pytest.approx(cat)


# ------------------------------------------------------------ text and tokens


@given(st.text())
def test_every_text_comes_back_from_its_tokens(text: str) -> None:
    assert to_text(to_tokens(text)) == text


@given(st.lists(st.integers()))
def test_any_number_is_a_token(tokens: list[int]) -> None:
    assert isinstance(to_text(tokens), str)


@given(st.text(max_size=20), st.integers(1, 50), st.integers(0, 3))
def test_the_same_prompt_gives_the_same_answer(prompt: str, limit: int, seed: int) -> None:
    told: Json = {"seed": seed, "limit": limit, "natural": False, "length": None}
    pieces, ended = say(to_tokens(prompt), **told)
    assert (pieces, ended) == say(to_tokens(prompt), **told)
    assert len(pieces) == limit == len(to_tokens("".join(pieces)))
    assert not ended
    assert pieces[:5] == say(to_tokens(prompt), **{**told, "limit": limit + 5})[0][: min(limit, 5)]


def test_stop_words_cut_the_answer() -> None:
    assert cut_at_stop([" cat", " dog", " owl"], ["og o", "owl"]) == ([" cat", " d"], "og o")
    assert cut_at_stop([" cat"], [" cat"]) == ([], " cat")
    assert cut_at_stop([" cat"], ["", "x"]) == ([" cat"], None)


async def test_an_answer_ends_by_itself_at_a_limit_or_at_a_stop_word() -> None:
    ask: Json = {"prompt": "tell me"}
    async with fake(answer_tokens=9) as client:

        async def end_of(**more: Any) -> tuple[str, str, int]:
            _, _, text = await client.post("/v1/completions", {**ask, **more})
            body = json.loads(text)
            choice, usage = body["choices"][0], body["usage"]
            return choice["text"], choice["finish_reason"], usage["completion_tokens"]

        whole, reason, tokens = await end_of()
        assert (reason, tokens) == ("stop", 9)
        assert await end_of(max_tokens=4) == (whole[:16], "length", 4)
        assert (await end_of(max_tokens=20))[1:] == ("stop", 9)
        assert (await end_of(max_tokens=20, ignore_eos=True))[1:] == ("length", 20)
        assert await end_of(stop=whole[9:12]) == (whole[:9], "stop", 3)
        assert (await end_of(ignore_eos=True))[2] == 4096 - len(to_tokens("tell me"))


async def test_a_prompt_may_be_tokens_and_a_stream_says_what_the_whole_says() -> None:
    async with fake() as client:
        _, _, text = await client.post("/tokenize", {"content": "hello there"})
        tokens = json.loads(text)["tokens"]
        asks: list[Json] = [{"prompt": prompt} for prompt in ("hello there", tokens)]
        wholes = [json.loads((await client.post("/completion", ask))[2]) for ask in asks]
        events = await client.events("/completion", asks[0])
    assert wholes[0]["content"] == wholes[1]["content"]
    assert "".join(event["content"] for event in events) == wholes[0]["content"]
    assert wholes[0]["tokens_evaluated"] == len(tokens) == 3


async def test_garbage_is_one_token_over_and_over() -> None:
    async with fake(garbage=True) as client:
        _, _, text = await client.post("/completion", {"prompt": "x", "n_predict": 5})
    assert json.loads(text)["content"] == "GGGG" * 5


# ------------------------------------------------------------ faults


async def test_told_share_of_requests_fails_and_the_same_ones_each_time() -> None:
    async def codes() -> list[int]:
        async with fake(error_rate=0.5, seed=3) as client:
            ask = {"prompt": "x", "n_predict": 1}
            return [(await client.post("/completion", ask))[0] for _ in range(20)]

    first = await codes()
    assert set(first) == {200, 500}
    assert first == await codes()


async def test_told_shares_of_silence_and_of_garbage() -> None:
    drawn = random.Random(3)
    fates = [drawn.random() for _ in range(20)]
    silent: list[asyncio.Task[tuple[int, str, str]]] = []
    async with fake(hang_rate=0.3, garbage_rate=0.3, seed=3) as client:
        for fate in fates:
            before = client.server.chance.getstate()
            asking = asyncio.create_task(client.post("/completion", {"prompt": "x"}))
            await until(lambda: client.server.chance.getstate() != before)  # noqa: B023
            if fate < 0.3:
                silent.append(asking)
            else:
                _, _, text = await asking
                assert (GARBAGE in text) == (fate < 0.6)
        assert 0 < len(silent) < 20
        assert not any(asking.done() for asking in silent)
        for asking in silent:
            asking.cancel()
        await asyncio.gather(*silent, return_exceptions=True)


async def test_an_answer_that_fails_in_the_middle_ends_with_an_error_event() -> None:
    async with fake(fail_after_tokens=2) as client:
        ask = {"messages": [], "max_tokens": 5}
        events = await client.events("/v1/chat/completions", ask)
        assert (await client.post("/v1/chat/completions", ask))[0] == 500
    assert events[-1]["error"]["type"] == "server_error"
    assert len(events) == 4, "role, two tokens, the error; no [DONE]"


def test_the_command_line_tells_times_in_milliseconds() -> None:
    told = "--port 1 --slots 2 --ttft-ms 50 --gap-ms 10 --prefill-ms-per-token 2 --load-s 3"
    assert behaviour_of(build_parser().parse_args(told.split())) == Behaviour(
        slots=2, ttft_s=0.05, gap_s=0.01, prefill_s_per_token=0.002, load_s=3
    )


def test_a_setting_that_it_does_not_know_is_an_error_unless_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--port", "1", "--die-at-start", "--flash-attn"])
    assert "--flash-attn" in capsys.readouterr().err
    told = ["--port", "1", "--die-at-start", "--flash-attn", "on", "--ignore-unknown"]
    assert main(told) == 1


def test_it_dies_at_start_with_the_engines_words_and_repeats_a_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "engine.log"
    log.write_text("load_tensors: offloaded 31/31 layers to GPU {0}\n")
    assert main(["--port", "1", "--die-at-start", "-m", "x.gguf", "--log-lines", str(log)]) == 1
    said = capsys.readouterr().err
    assert "offloaded 31/31 layers to GPU {0}" in said
    assert "failed to open GGUF file 'x.gguf'" in said
