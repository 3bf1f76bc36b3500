"""Token counts and speeds from the usage and timings that an engine sends. Pure."""

from dataclasses import dataclass
from typing import Any

import msgspec

Json = dict[str, Any]

PREFILL_TOKENS_MIN = 64  # fewer say little of the speed of a prompt


@dataclass(frozen=True, slots=True)
class TokenCount:
    """What one answer took: counts of tokens; None: the engine did not say."""

    prompt: int | None
    cached: int | None  # of the prompt, taken from the engine's cache
    generated: int | None
    decode_tokens_per_s: float | None
    prefill_tokens_per_s: float | None = None


class Figures:
    """The latest usage and timings of each choice of one answer.

    A chunk that has figures but no choice belongs to the choice of the chunk before it: that is
    how llama.cpp sends `stream_options.include_usage`.
    """

    def __init__(self) -> None:
        self.usage: dict[int, Json] = {}
        self.timings: dict[int, Json] = {}
        self._index = 0

    def add(self, event: Json) -> None:
        """Takes in one chunk of a stream, or a whole answer."""
        for choice in event.get("choices") or ():
            self._index = choice.get("index", 0)
        if isinstance(usage := event.get("usage"), dict):
            self.usage[self._index] = usage
        if isinstance(timings := event.get("timings"), dict):
            self.timings[self._index] = timings

    def counts(self) -> list[TokenCount]:
        """One count for each choice that has figures."""
        return [
            _count(self.usage.get(index, {}), self.timings.get(index, {}))
            for index in sorted({*self.usage, *self.timings})
        ]


def _count(usage: Json, timings: Json) -> TokenCount:
    details = usage.get("prompt_tokens_details") or {}
    cached = timings.get("cache_n", details.get("cached_tokens"))
    prompt = usage.get("prompt_tokens")
    if "prompt_n" in timings and "cache_n" in timings:
        prompt = timings["prompt_n"] + timings["cache_n"]
    return TokenCount(
        prompt=prompt,
        cached=cached,
        generated=timings.get("predicted_n", usage.get("completion_tokens")),
        decode_tokens_per_s=_decode_speed(timings),
        prefill_tokens_per_s=_prefill_speed(timings),
    )


def _decode_speed(timings: Json) -> float | None:
    """The engine's own figure: tokens after the first over their time; None for one token."""
    speed = timings.get("predicted_per_second")
    return float(speed) if speed and timings.get("predicted_n", 0) > 1 else None


def _prefill_speed(timings: Json) -> float | None:
    """The engine's own figure; None for a few tokens."""
    speed = timings.get("prompt_per_second")
    return float(speed) if speed and timings.get("prompt_n", 0) >= PREFILL_TOKENS_MIN else None


class _WholeAnswer(msgspec.Struct):
    """Of an answer that is not a stream, the figures alone: vectors are skipped unread."""

    usage: Json | None = None
    timings: Json | None = None


def whole_answer_figures(body: bytes) -> Figures:
    """The figures in an answer that is not a stream; none when it has none."""
    figures = Figures()
    try:
        answer = msgspec.json.decode(body, type=_WholeAnswer)
    except msgspec.DecodeError:
        return figures
    figures.add({"usage": answer.usage, "timings": answer.timings})
    return figures
