"""Cards that compute each layer together: who waits for whom."""

import pytest

import builders
from workhorse.plan.speed.transfers import Shared, slowest_link


@pytest.mark.parametrize(
    ("cards", "kv_heads", "share"),
    [(2, 8, 1 / 2), (3, 4, 1 / 2), (3, 8, 3 / 8), (8, 4, 1 / 4), (4, 0, 1 / 4), (2, 1, 1.0)],
)
def test_attention_is_cut_between_whole_heads(cards: int, kv_heads: int, share: float) -> None:
    link = slowest_link([builders.gpu(index) for index in range(2)], (), direct=False)
    even = {f"GPU {index}": 1 / cards for index in range(cards)}
    assert Shared("tensor", even, link, kv_heads).attention_share(1 / cards) == pytest.approx(share)
    assert Shared("row", even, link, kv_heads).attention_share(1 / cards) == 1.0
