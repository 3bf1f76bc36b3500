"""Garbage in the stream: found in what engines send, never in sane answers, and cheaply."""

import json
import random
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from running_fake import FakeEngine
from workhorse.guard.garbage import PIECES, STREAMS_MAX, GarbageTap, is_garbage

ROOT = Path(__file__).resolve().parents[2]
TEXTS = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "src/workhorse/guard/garbage.py"]


@dataclass(frozen=True)
class Horse:
    name: str = "horse"


def chunk(content: str, answer: str = "a", key: str = "content") -> bytes:
    delta = {"choices": [{"index": 0, "delta": {key: content}}], "id": f"chatcmpl-{answer}"}
    return (
        b"data: " + json.dumps(delta, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"
    )


def feed(tap: GarbageTap, pieces: list[str], answer: str = "a", key: str = "content") -> None:
    for piece in pieces:
        tap(Horse(), chunk(piece, answer, key))


def counts(tap: GarbageTap) -> tuple[int, int]:
    seen = tap.counts.get("horse")
    return (0, 0) if seen is None else (seen.garbage, seen.sane)


def in_pieces(text: str, seed: int = 1) -> list[str]:
    """A text as a model streams it: a word or a few characters at a time."""
    chance, found, at = random.Random(seed), [], 0
    while at < len(text):
        size = chance.choice((1, 2, 3, 4, 4, 5, 7))
        found.append(text[at : at + size])
        at += size
    return found


BAD = {
    "one token": ["G"] * PIECES,
    "GGGG": ["GGGG"] * PIECES,
    "!!!!": ["!"] * PIECES,
    "NaN": [" nan"] * PIECES,
    "a cycle of three": ["lo", "rem", " "] * PIECES,
    "a cycle of six": list("abcdef") * PIECES,
    "a slip now and then": (["G"] * 40 + ["x"]) * 2,
    "replacement characters": [f"\ufffd\ufffd{n % 7}" for n in range(PIECES)],
    "escaped garbage": ['"\\'] * PIECES,
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("key", ["content", "text", "delta", "reasoning_content"])
def test_garbage_is_found_whatever_the_route_calls_it(name: str, key: str) -> None:
    tap = GarbageTap()
    feed(tap, BAD[name], key=key)
    assert counts(tap) == (1, 0)
    sample = tap.counts["horse"].sample
    assert sample and len(sample) <= 40 and sample.isprintable()


SANE = {
    "a rule of a table": ["-"] * PIECES,
    "an indent": [" "] * PIECES,
    "dot leaders": [" .", "."] * PIECES,
    "a table": ["| ", "--", "- "] * PIECES,
    "line ends": ["\n"] * PIECES,
    "numbers": [f" {n}" for n in range(PIECES)],
    "a list of one word": [p for n in range(PIECES) for p in ("no", f" {n}", "\n")],
}


@pytest.mark.parametrize("name", SANE)
def test_what_repeats_in_sane_answers_is_none(name: str) -> None:
    tap = GarbageTap()
    feed(tap, SANE[name])
    assert counts(tap) == (0, 1)


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_text_of_our_own_is_garbage(path: Path, seed: int) -> None:
    pieces = [p.encode() for p in in_pieces(path.read_text(encoding="utf-8"), seed)]
    batches = [pieces[at : at + PIECES] for at in range(0, len(pieces) - PIECES, PIECES)]
    assert len(batches) > 5 and not any(map(is_garbage, batches))


def test_answers_side_by_side_are_told_apart() -> None:
    tap, text = GarbageTap(), in_pieces(TEXTS[0].read_text(encoding="utf-8"))
    for index in range(PIECES):
        feed(tap, [text[index]], "one")
        feed(tap, ["G"], "two")
    assert counts(tap) == (1, 1)


def test_an_answer_counts_once_however_long_it_is() -> None:
    tap = GarbageTap()
    feed(tap, ["G"] * PIECES * 10)
    assert counts(tap) == (1, 0)


def test_an_answer_that_turns_into_garbage_is_garbage() -> None:
    tap = GarbageTap()
    feed(tap, in_pieces(TEXTS[0].read_text(encoding="utf-8"))[:PIECES])
    feed(tap, ["G"] * PIECES)
    assert counts(tap) == (1, 1)


def test_several_events_in_a_block_are_all_seen() -> None:
    tap = GarbageTap()
    for _ in range(4):
        tap(Horse(), b"".join(chunk("G") for _ in range(PIECES // 4)))
    assert counts(tap) == (1, 0)


def test_many_short_answers_take_a_bounded_place() -> None:
    tap = GarbageTap()
    for answer in range(3 * STREAMS_MAX):
        feed(tap, ["a", "b"], f"{answer:08}")
    assert len(tap._streams) <= STREAMS_MAX


@given(st.lists(st.binary(max_size=300), max_size=50))
def test_no_bytes_make_it_raise(blocks: list[bytes]) -> None:
    tap = GarbageTap()
    for block in blocks:
        tap(Horse(), block)
        tap(Horse(), b'"id":"x","content":"' + block)


@given(st.lists(st.binary(max_size=12), min_size=1, max_size=200))
def test_no_pieces_make_the_judgement_raise(pieces: list[bytes]) -> None:
    is_garbage(pieces)


async def stream_of(url: str, prompt: str, tap: GarbageTap) -> None:
    body = {
        "messages": [{"role": "user", "content": prompt}],
        "stream": True,
        "max_tokens": 3 * PIECES,
        "ignore_eos": True,
    }
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{url}/v1/chat/completions", json=body) as answer,
    ):
        async for block in answer.content.iter_any():
            tap(Horse(), block)


@pytest.mark.parametrize(("garbage", "seen"), [(True, (4, 0)), (False, (0, 4))])
async def test_an_engine_that_computes_nonsense_is_seen_through_its_own_stream(
    fake_engine: FakeEngine, garbage: bool, seen: tuple[int, int]
) -> None:
    tap, url = GarbageTap(), fake_engine(*(["--garbage"] if garbage else []))
    for index in range(4):
        await stream_of(url, f"say {index}", tap)
    assert counts(tap) == seen
