"""What answers mean, how long to wait, how long a request may take: pure decisions."""

import random

import msgspec
import pytest

from workhorse.batch.answers import check_sane, read_answer, usage_of
from workhorse.batch.client import Seen, read_metrics
from workhorse.batch.item import Usage
from workhorse.batch.retry import (
    AWAY_PAUSE_MOST_S,
    BACK_OFF_MOST_S,
    FLOOR_S,
    REFUSES,
    RETRY_AFTER_MOST_S,
    Patience,
    Reply,
    away_pause_s,
    back_off_s,
    fate_of,
    retry_after,
    varied,
)
from workhorse.batch.task import Answer, NotValid
from workhorse.engines.fake.tokens import GARBAGE
from workhorse.serve import refusal
from workhorse.serve.fair_order import BATCH_YIELDS_S


@pytest.mark.parametrize(
    ("status", "body", "fate"),
    [
        (200, b"{}", "answered"),
        (400, b'{"error":{"message":"no"}}', "refused"),
        (400, b'{"error":{"type":"exceed_context_size_error"}}', "too long"),
        (401, b"", "key"),
        (404, b"", "not served"),
        (413, b"", "too long"),
        (429, b"", "busy"),
        (500, b"", "own"),
        (501, b"", "refused"),
        (502, b'{"error":{"message":"The engine died while it answered."}}', "lost"),
        (503, b"", "away"),
        (504, b"", "own"),
    ],
)
def test_what_an_answer_means(status: int, body: bytes, fate: str) -> None:
    assert fate_of(Reply(status, body)) == fate


def test_an_engine_that_did_not_take_the_request_was_away() -> None:
    assert refusal.REFUSES.en == REFUSES
    document = refusal.refusal(502, str(refusal.EngineLost(refusal.REFUSES)))
    assert fate_of(Reply(502, msgspec.json.encode(document))) == "away"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error":{"message":"told to fail","code":500}}', "told to fail"),
        (b'{"error":"plain"}', "plain"),
        (b"<html>Bad Gateway</html>", "<html>Bad Gateway</html>"),
        (b'{"error":7}', '{"error":7}'),
        (b"\xff\xfe", "��"),
    ],
)
def test_the_services_own_words(body: bytes, words: str) -> None:
    assert Reply(500, body).words == words


@pytest.mark.parametrize(
    ("header", "seconds"),
    [(None, None), ("5", 5.0), ("soon", None), ("-1", None), ("nan", None), ("1e300", None)],
)
def test_when_to_ask_again(header: str | None, seconds: float | None) -> None:
    assert retry_after(header) == seconds


def test_pauses_grow_to_a_limit_and_differ() -> None:
    chance = random.Random(1)
    for tries in range(1, 60):
        longest_s = min(BACK_OFF_MOST_S, 2.0 ** (tries - 1))
        assert longest_s / 2 <= back_off_s(tries, chance) <= longest_s
        assert 0 < away_pause_s(tries, None, chance) <= AWAY_PAUSE_MOST_S
        assert 7 < away_pause_s(tries, 7.0, chance) <= 7 + AWAY_PAUSE_MOST_S
    assert away_pause_s(1, 1e8, chance) <= RETRY_AFTER_MOST_S + AWAY_PAUSE_MOST_S
    assert len({back_off_s(3, chance) for _ in range(20)}) == 20


def test_a_request_gets_the_time_of_those_before_it_and_much_more() -> None:
    patience = Patience()
    unknown_s = patience.limit_s(6000, 200)
    # A laden CPU: 5 tokens read and 0.7 said a second.
    assert unknown_s > 2000 / 5 + 200 / 0.7
    for _ in range(10):
        patience.took(4.0, 2000, 200)
    known_s = patience.limit_s(6000, 200)
    assert 4.0 * 5 + FLOOR_S < known_s < unknown_s
    assert FLOOR_S > BATCH_YIELDS_S  # or it would lose its place in the line before its turn
    assert patience.limit_s(6000, 200, slow=2) == pytest.approx(4 * known_s)
    assert patience.limit_s(10**9, 10**6, slow=50) < 24 * 3600
    patience.took(400.0, 2000, 200)
    assert patience.limit_s(6000, 200) > 5 * known_s / 2  # it has become slow


def test_what_was_not_valid_is_asked_in_another_way() -> None:
    body = {"messages": [], "temperature": 0}
    assert varied(body, 0) == body
    assert [varied(body, tries)["temperature"] for tries in (1, 2, 9)] == [0.2, 0.4, 1.0]
    assert varied({"temperature": 0.9}, 1) == {"temperature": 0.9, "seed": 1}
    assert varied({}, 2) == {"temperature": 0.4, "seed": 2}


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"choices":[]}', b'{"choices":{"a":1}}', b"\xff", b"[" * 100_000]
)
def test_what_is_no_response(body: bytes) -> None:
    with pytest.raises(NotValid):
        read_answer(body)


def test_responses_of_each_route() -> None:
    chat = b'{"choices":[{"message":{"content":"hi"},"finish_reason":"length"}]}'
    assert (read_answer(chat).text, read_answer(chat).finish) == ("hi", "length")
    assert read_answer(b'{"choices":[{"text":"hi","finish_reason":"stop"}]}').text == "hi"
    assert read_answer(b'{"choices":[{"message":{"content":null}}]}').text == ""
    assert read_answer(b'{"data":[{"index":0,"embedding":[1]}]}').finish is None


def test_what_a_response_took() -> None:
    told = {
        "prompt_tokens": 9,
        "completion_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 3},
    }
    assert usage_of({"usage": told}) == Usage(
        prompt_tokens=9, cached_tokens=3, output_tokens=4, requests=1
    )
    for nonsense in ({}, {"usage": None}, {"usage": {"prompt_tokens": "9", "x": 1}}):
        assert usage_of(nonsense) == Usage(requests=1)


@pytest.mark.parametrize(
    ("text", "sane"),
    [
        (GARBAGE * 30, False),
        ("是" * 60, False),
        ("\ufffd" * 60, False),
        ("GGGG", True),  # short: it may be meant
        ("A cold morning at the harbour; the fishermen mend their nets, and nobody talks.", True),
        ("清晨的港口很冷，渔夫们在补网，没有人说话。海鸥在岸边走来走去，等待着什么。", True),
        ("| - " * 60, True),
        ("", True),
    ],
)
def test_one_token_over_and_over_is_no_answer(text: str, sane: bool) -> None:
    try:
        check_sane(Answer(text=text, finish="stop", body={}))
    except NotValid:
        assert not sane
    else:
        assert sane


def test_what_the_metrics_say_of_the_engine() -> None:
    page = (
        b'workhorse_engine_state{model="a",state="ready"} 1.0\n'
        b'workhorse_engine_state{model="b",state="ready"} 1.0\n'
        b'workhorse_engine_state{model="b",state="restarting"} 1.0\n'
        b"# TYPE workhorse_engine_restarts counter\n"
        b'workhorse_engine_restarts_total{model="a"} 2.0\n'
        b'workhorse_engine_restarts_total{model="b"} 5.0\n'
        b'workhorse_slot_context_tokens{model="a"} 4096.0\n'
    )
    assert read_metrics(page, "a") == Seen(2.0, True, True, 4096)
    assert read_metrics(page, "b") == Seen(5.0, ready=True, whole=False)
    for nothing in (b"<html>", b"", b'workhorse_engine_state{model=" 1', b"\xff" * 99):
        assert read_metrics(nothing, "a") == Seen()
    assert read_metrics(page, "c") == Seen()
