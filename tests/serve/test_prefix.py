"""Clients that defeat the prompt cache: found by what changes near the start, told without it."""

import json
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from workhorse.serve.prefix import CLEAN_TIMES, MOST_KEYS, TIMES, PrefixWatch

RULES = " ".join(f"Rule {n}: shelf {n} is for readers of group {n % 7}." for n in range(60))
NOON = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


def prompt(before: str, question: str, *, ascii_only: bool = True) -> bytes:
    said = [
        {"role": "system", "content": f"You are a clerk. {before} {RULES}"},
        {"role": "user", "content": question},
    ]
    return json.dumps(said, ensure_ascii=ascii_only).encode()


def at(number: int) -> datetime:
    return NOON + timedelta(days=number, minutes=number)


@pytest.mark.parametrize(
    ("changing", "kind"),
    [
        (lambda n: f"It is {at(n):%H:%M} now.", "a time"),
        (lambda n: f"Now: {at(n).isoformat()}", "a time"),
        (lambda n: f"Today is {at(n):%Y-%m-%d}.", "a date"),
        (lambda n: f"Today is {at(n):%d %B %Y}.", "a date"),
        (lambda n: f"Session {uuid.UUID(int=n)}.", "a UUID"),
        (lambda n: f"Epoch {1764504000 + n}.", "a Unix time"),
        (lambda n: f"Trace req{n}ab93kd0f77.", "a random id"),
        (lambda n: f"Request {n} of the day.", "a number"),
    ],
)
def test_what_changes_near_the_start_is_found_and_told_by_its_kind(
    changing: Callable[[int], str], kind: str
) -> None:
    watch = PrefixWatch()
    for number in range(1, TIMES + 2):
        watch.saw("alice", "m", prompt(changing(number), f"question {number}"), 900, 12)
    (finding,) = watch.findings()
    assert finding.code == "prefix.changes-near-start"
    assert "The key alice" in finding.seen.en
    assert kind in finding.seen.en
    assert "12 of 900 prompt tokens were reused" in finding.evidence
    told = finding.seen.en + finding.seen.zh + "".join(finding.evidence)
    assert "clerk" not in told
    assert changing(TIMES + 1) not in told


@pytest.mark.parametrize("ascii_only", [True, False])
def test_a_time_in_chinese_text_is_found(ascii_only: bool) -> None:
    watch = PrefixWatch()
    rules = "".join(f"第{n}条，图书不外借。" for n in range(60))
    for number in range(TIMES + 1):
        said = [{"role": "system", "content": f"现在是 12:0{number}，请遵守：{rules}"}]
        watch.saw("", "m", json.dumps(said, ensure_ascii=ascii_only).encode(), 900, 12)
    (finding,) = watch.findings()
    assert "某客户端" in finding.seen.zh
    assert "时间" in finding.seen.zh


def test_good_clients_are_left_alone() -> None:
    watch = PrefixWatch()
    for number in range(10):
        watch.saw("same", "m", prompt("", f"question {number}"), 900, 880)
        # Reused all the same: what changes is behind most of it, or another slot had it.
        watch.saw("reuses", "m", prompt(f"It is 12:0{number}.", "q"), 900, 700)
        words = " ".join(f"{number}-{word}" for word in range(200))
        watch.saw("chats", "m", json.dumps([{"role": "user", "content": words}]).encode(), 900, 3)
        watch.saw(f"key {number}", "m", prompt(f"It is 12:0{number}.", "q"), 900, 12)
        watch.saw("models", f"model {number}", prompt(f"It is 12:0{number}.", "q"), 900, 12)
    assert watch.findings() == ()


def test_two_programs_with_one_key_are_told_apart() -> None:
    watch = PrefixWatch()
    for number in range(TIMES + 1):
        watch.saw("team", "m", prompt(f"It is 12:0{number}.", "q"), 900, 12)
        watch.saw("team", "m", prompt("No clock here.", f"question {number}"), 900, 880)
    assert len(watch.findings()) == 1


def test_it_is_over_when_the_client_mends_it() -> None:
    watch = PrefixWatch()
    for number in range(TIMES + 1):
        watch.saw("k", "m", prompt(f"It is 12:0{number}.", "q"), None, None)
    assert watch.findings()
    for number in range(CLEAN_TIMES):
        watch.saw("k", "m", prompt("", f"question {number}"), 900, 880)
    assert watch.findings() == ()


def test_memory_is_bounded_by_the_newest_keys() -> None:
    watch = PrefixWatch()
    for number in range(3):
        watch.saw("old", "m", prompt(f"It is 12:0{number}.", "q"), 900, 12)
    for number in range(MOST_KEYS):
        watch.saw(f"key {number}", "m", b"[]", 1, 0)
    for number in range(3, 3 + TIMES):
        watch.saw("old", "m", prompt(f"It is 12:0{number}.", "q"), 900, 12)
    assert watch.findings() == (), "it was forgotten, and comes back after as many as at first"


@pytest.mark.parametrize("junk", [b"", b"\xff" * 5000, b'"' * 5000, b"[" * 100_000])
def test_junk_is_no_finding(junk: bytes) -> None:
    watch = PrefixWatch()
    for _ in range(TIMES + 1):
        watch.saw("k", "m", junk, 900, 0)
    assert watch.findings() == ()
