"""What `--what` stands for, and how long it is said to take."""

from collections.abc import Sequence
from itertools import pairwise

import pytest

from workhorse.bench.scenario import (
    Prompt,
    Scenario,
    TokenCost,
    corpus,
    text_prompts,
    token_prompts,
)
from workhorse.bench.suites import (
    EVERYTHING,
    Sizes,
    Speeds,
    What,
    expected_s,
    scenarios_for,
    talk_of,
)


def suite(
    what: What, sizes: Sizes | None = None, slots: int | None = 4, room: int | None = 4096
) -> tuple[Scenario, ...]:
    return scenarios_for((what,), sizes or Sizes(), slots=slots, context_tokens=room)


def common(a: Prompt, b: Prompt) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(a))


def test_the_standard_protocol_is_what_bench_does_by_itself() -> None:
    (one,) = suite("standard")
    assert (one.name, one.prompt_tokens, one.output_tokens, one.streams) == (
        "standard",
        768,
        200,
        1,
    )


def test_the_ladder_climbs_one_step_past_the_slots() -> None:
    assert [one.streams for one in suite("ladder", slots=4)] == [1, 2, 4, 8]
    assert [one.streams for one in suite("ladder", slots=None)] == [1, 2, 4, 8, 16]
    assert {one.output_tokens for one in suite("ladder")} == {256}
    assert [one.streams for one in suite("ladder", Sizes(streams=(3, 5)))] == [3, 5]


@pytest.mark.parametrize("what", EVERYTHING)
@pytest.mark.parametrize("room", [64, 700, 4096, None])
def test_every_request_of_a_suite_fits_a_slot(what: What, room: int | None) -> None:
    if what == "standard" and room is not None and room < 968:
        return  # its sizes are fixed: the service says that they do not fit
    for one in suite(what, room=room):
        assert one.longest_tokens <= (room or 4096)
        assert all(r.prompt_tokens > 0 and r.output_tokens > 0 for r in sum(one.rounds, ()))


def test_what_the_user_sets_holds() -> None:
    sizes = Sizes(prompt_tokens=100, output_tokens=10, repeats=7)
    for what in ("standard", "ladder", "prompts", "depths", "prefix"):
        for one in suite(what, sizes):
            assert (one.prompt_tokens, one.output_tokens, one.repeats) == (100, 10, 7)


def test_chats_are_the_same_each_time_and_grow_turn_by_turn() -> None:
    one = talk_of(4, 4096)
    assert one == talk_of(4, 4096)
    assert {request.stream for request in one.talk} == {0, 1, 2, 3}
    assert len({request.prompt_tokens for request in one.talk}) > 8
    talks: dict[int, list[int]] = {}
    for request in one.talk:
        talks.setdefault(request.text, []).append(request.prompt_tokens)
    assert any(len(lengths) > 1 for lengths in talks.values())
    for lengths in talks.values():
        assert all(a < b for a, b in pairwise(lengths))
    assert sum(request.wait_s == 0 for request in one.talk) == 1  # the others come later


def tokens(one: Scenario) -> tuple[Prompt, ...]:
    return token_prompts(list(corpus(1, one.requests).encode()), one, 1, prefix=(7,))


def test_turns_of_a_chat_begin_with_the_turn_before() -> None:
    one = talk_of(2, 4096)
    *prompts, _ = tokens(one)
    seen: dict[int, Sequence[int] | str] = {}
    for request, prompt in zip(one.talk, prompts, strict=True):
        assert len(prompt) == request.prompt_tokens
        if request.text in seen:
            assert common(seen[request.text], prompt) == len(seen[request.text])
        seen[request.text] = prompt


def test_shared_beginnings_are_shared_exactly_and_the_rest_differs() -> None:
    cold, shared = suite("prefix")
    assert (cold.shared_tokens, cold.cache) == (0, False)
    assert (shared.shared_tokens, shared.cache) == (896, True)
    prompts = tokens(shared)
    assert {len(prompt) for prompt in prompts} == {1024}
    for a, b in pairwise(prompts):
        assert 896 <= common(a, b) < 896 + 40
    assert max(common(a, b) for a, b in pairwise(tokens(cold))) < 60


def test_a_depth_is_one_prompt_sent_again() -> None:
    one = suite("depths")[0]
    assert len(set(tokens(one))) == 1


def test_shared_beginnings_of_texts() -> None:
    _, shared = suite("prefix")
    cost = TokenCost(0.25, 1.0, always=20)
    prompts = text_prompts(corpus(1, shared.requests), shared, 1, cost)
    beginnings = {str(prompt)[:800] for prompt in prompts}
    assert len(beginnings) == 1
    assert len(set(prompts)) == len(prompts)


def test_the_time_told_beforehand() -> None:
    speeds = Speeds(prefill_tokens_per_s=100, decode_tokens_per_s=10)
    one = Scenario("x", prompt_tokens=100, output_tokens=10, streams=4, repeats=2)
    # Warm-up 1 s; each request 2 s; two rounds of four at once or one after the other.
    assert expected_s([one], speeds) == (pytest.approx(5), pytest.approx(17))
    kept = Scenario("x", 100, 10, 1, 3, shared_tokens=100, cache=True)
    assert expected_s([kept], speeds) == (pytest.approx(4), pytest.approx(4))
