from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workhorse.bench.scenario import (
    STANDARD,
    Scenario,
    TokenCost,
    corpus,
    scenario_for,
    starts,
    text_prompts,
    token_prompts,
    words,
)


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(a))


def test_the_standard_protocol_is_the_published_one() -> None:
    assert (STANDARD.prompt_tokens, STANDARD.output_tokens) == (768, 200)
    assert (STANDARD.streams, STANDARD.repeats) == (1, 3)
    assert scenario_for(streams=8, repeats=5).name == "standard"
    assert scenario_for(prompt_tokens=100).name == "100+200"


def test_the_corpus_holds_both_languages_and_its_order_follows_the_seed() -> None:
    text = corpus(1, 4)
    assert "bread" in text
    assert "豆腐" in text
    assert text == corpus(1, 4)
    assert text != corpus(2, 4)
    assert sorted(words(text)) == sorted(words(corpus(2, 4)))


def test_another_seed_gives_prompts_that_an_earlier_run_did_not_send() -> None:
    def prompts(seed: int) -> tuple[tuple[int, ...], ...]:
        tokens = corpus(seed, 4).encode()
        return token_prompts(tokens, STANDARD, seed)

    pairs = [(a, b) for a in prompts(1) for b in prompts(2)]
    assert max(common_prefix(a, b) for a, b in pairs) < 200  # one sentence, no more


def test_words_are_english_words_and_single_chinese_characters() -> None:
    assert words("To be, 河水涨ok ") == ("To ", "be, ", "河", "水", "涨", "ok ")
    assert "".join(words(corpus(3, 4))) == corpus(3, 4)


@given(
    tokens=st.lists(st.integers(0, 300), min_size=40, max_size=200),
    length=st.integers(1, 900),
    seed=st.integers(0, 9),
)
def test_token_prompts_are_exactly_as_long_as_asked(
    tokens: list[int], length: int, seed: int
) -> None:
    scenario = Scenario("x", prompt_tokens=length, streams=3, repeats=4)
    prompts = token_prompts(tokens, scenario, seed, prefix=(7,))
    assert len(prompts) == 13
    assert {len(prompt) for prompt in prompts} == {length}
    assert all(prompt[0] == 7 for prompt in prompts)


@given(st.lists(st.integers(0, 50), min_size=60, max_size=200), st.integers(0, 9))
def test_prompts_differ_from_the_first_token_on(tokens: list[int], seed: int) -> None:
    distinct = len(set(tokens))
    scenario = Scenario("x", prompt_tokens=20, streams=1, repeats=max(1, distinct - 1))
    prompts = token_prompts(tokens, scenario, seed)
    assert len({prompt[0] for prompt in prompts}) == min(distinct, len(prompts))


def test_many_prompts_of_real_text_share_no_more_than_a_sentence() -> None:
    scenario = Scenario("x", prompt_tokens=100, streams=256, repeats=3)
    text = corpus(5, scenario.requests)
    prompts = token_prompts([hash(word) for word in words(text)], scenario, 5)
    assert len(prompts) == 769
    assert max(common_prefix(a, b) for a, b in combinations(prompts, 2)) < 60


def test_more_prompts_than_beginnings_is_refused() -> None:
    with pytest.raises(ValueError, match="begin"):
        starts([1, 2, 3], 4, seed=0)


def test_text_prompts_reach_the_length_by_their_cost_and_end_with_a_word() -> None:
    cost = TokenCost(english=0.25, other=1.0)
    scenario = Scenario("x", prompt_tokens=768, streams=4)
    prompts = text_prompts(corpus(1, scenario.requests), scenario, 1, cost)
    assert len(prompts) == 13
    assert len({words(prompt)[0] for prompt in prompts}) == 13
    for prompt in prompts:
        length = sum(cost.of(word) for word in words(prompt))
        assert 768 <= length < 768 + 6
