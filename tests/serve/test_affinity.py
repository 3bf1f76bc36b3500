"""A prompt goes to the engine that has its beginning, as far as one can know."""

from dataclasses import replace

from admission_scenes import CHAT, two
from hypothesis import given
from hypothesis import strategies as st

from workhorse.serve.affinity import ENDS_BYTES, MOST_REMEMBERED, Affinity, digests_of
from workhorse.serve.decisions import Grant


def test_the_same_beginning_goes_to_the_same_engine() -> None:
    document = bytes(range(256)) * 64
    tokens = len(document) / 4
    about = replace(CHAT, prompt_tokens=tokens, prefix=digests_of(document))
    core = two(slots=4)
    assert core.arrive(1, CHAT, 0) == Grant(1, 1)
    assert core.arrive(2, about, 0) == Grant(2, 2)
    core.leave(2, 50)
    question = replace(about, prefix=digests_of(document + b"?" * 1000))
    core.leave(1, 50)
    assert core.arrive(3, question, 60) == Grant(3, 2)
    core.cache_lost(2)
    assert core.arrive(4, question, 60) == Grant(4, 1)


def test_affinity_forgets_the_oldest() -> None:
    affinity = Affinity()
    affinity.remember(1, (10,))
    for digest in range(20, 20 + MOST_REMEMBERED):
        affinity.remember(2, (digest,))
    assert affinity.known_bytes(1, (10,)) == 0
    assert affinity.known_bytes(2, (20, 999_999)) == ENDS_BYTES[0]


@given(st.binary(max_size=8000), st.binary(max_size=3000))
def test_digests_of_a_longer_prompt_begin_with_those_of_a_shorter(a: bytes, b: bytes) -> None:
    assert digests_of(a + b)[: len(digests_of(a))] == digests_of(a)
