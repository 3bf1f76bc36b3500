"""The refusal of a request that there is no room for, with when to ask again."""

import math

from workhorse.errors import AppError
from workhorse.serve.decisions import Refusal, Why
from workhorse.text import Text
from workhorse.units import show_duration

# Where no speed is known yet: about the length of a short answer.
ASSUMED_RETRY_S = 5.0

_WORDS: dict[Why, Text] = {
    "requests a minute": Text(
        "This key may send {limit} requests a minute, and has.",
        "该密钥每分钟最多 {limit} 个请求，现已用完。",
    ),
    "tokens a minute": Text(
        "This key may use {limit} tokens a minute, and this request would exceed it.",
        "该密钥每分钟最多使用 {limit} 个 token，本请求将超出上限。",
    ),
    "queue full": Text(
        "All slots are busy and {limit} requests wait already.",
        "所有槽位均忙，且已有 {limit} 个请求在排队。",
    ),
    "key's share": Text(
        "All slots are busy and {limit} requests of this key wait already.",
        "所有槽位均忙，且该密钥已有 {limit} 个请求在排队。",
    ),
    "wait": Text(
        "All slots are busy, and a free one is expected only in {wait}.",
        "所有槽位均忙，预计 {wait} 后才有空位。",
    ),
    "gone": Text("The engine that served this model was taken away.", "提供该模型的引擎已被移除。"),
}


class Busy(AppError):
    """There is no room for a request: `retry_after_s` says when there should be."""

    def __init__(self, refusal: Refusal) -> None:
        self.why = refusal.why
        self.retry_after_s = max(1, math.ceil(refusal.retry_after_s or ASSUMED_RETRY_S))
        self.position = refusal.position
        queued = refusal.position is not None
        self.expected_wait_s = refusal.retry_after_s if queued else None
        words = {"limit": refusal.limit, "wait": show_duration(refusal.retry_after_s)}
        again = show_duration(self.retry_after_s)
        super().__init__(
            Text(
                _WORDS[refusal.why].en.format_map(words), _WORDS[refusal.why].zh.format_map(words)
            ),
            Text(f"Ask again in {again}.", f"请在 {again} 后重试。"),
            speaker="gateway",
        )
