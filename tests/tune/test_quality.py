"""How far next tokens are from the plan's own."""

import math

from hypothesis import given
from hypothesis import strategies as st

from workhorse.tune.quality import divergence, likely_tokens, one_divergence

PROBABILITIES = st.lists(st.floats(0.001, 1.0), min_size=2, max_size=8).map(
    lambda parts: {token: part / sum(parts) for token, part in enumerate(parts)}
)


@given(PROBABILITIES, PROBABILITIES)
def test_it_is_zero_for_the_same_and_never_negative(
    p: dict[int, float], q: dict[int, float]
) -> None:
    assert one_divergence(p, p) < 1e-9
    assert one_divergence(p, q) >= 0


def test_it_is_the_sum_that_everybody_knows() -> None:
    p, q = {1: 0.5, 2: 0.5}, {1: 0.25, 2: 0.75}
    expected = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    assert abs((divergence([p], [q]) or 0) - expected) < 1e-6


def test_a_token_that_the_candidate_does_not_name_has_what_is_left_at_most() -> None:
    assert one_divergence({1: 0.9, 2: 0.1}, {1: 0.9}) < 1e-9
    assert one_divergence({1: 0.9, 2: 0.1}, {3: 1.0}) > 10


def test_nothing_told_is_nothing_known() -> None:
    assert divergence([], []) is None
    assert divergence([{1: 1.0}], [{}]) is None


def test_what_the_engine_tells_is_read_and_nothing_else() -> None:
    row = {"id": 7, "logprob": math.log(0.25), "token": "a"}
    hostile = [None, 3, {"id": "x"}, {"id": 1, "logprob": "NaN"}, {"id": 2, "logprob": 0.5}]
    answer = {"completion_probabilities": [{"top_logprobs": [row, *hostile]}]}
    assert {k: round(v, 9) for k, v in likely_tokens(answer).items()} == {7: 0.25}
    for broken in ({}, {"completion_probabilities": 3}, {"completion_probabilities": [4]}):
        assert likely_tokens(broken) == {}
