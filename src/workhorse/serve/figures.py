"""Token counts and speeds from the usage and timings that an engine sends. Pure."""

from dataclasses import dataclass, replace
from typing import Any

import msgspec

Json = dict[str, Any]

PREFILL_TOKENS_MIN = 64  # fewer say little of the speed of a prompt
LARGEST_COUNT = 2**31  # of one answer: what is kept of many has to fit 64 bits


@dataclass(frozen=True, slots=True)
class TokenCount:
    """What one answer took: counts of tokens; None: the engine did not say."""

    prompt: int | None
    cached: int | None  # of the prompt, taken from the engine's cache
    generated: int | None
    decode_tokens_per_s: float | None
    prefill_tokens_per_s: float | None = None
    prompt_again: bool = False  # another choice of the same answer has counted it

    @property
    def prompt_once(self) -> int:
        """Tokens of the prompt, for a sum over all choices; 0: not said."""
        return 0 if self.prompt_again else self.prompt or 0

    @property
    def cached_once(self) -> int:
        """Those of them that came from the cache."""
        return 0 if self.prompt_again else self.cached or 0


class Figures:
    """The latest usage and timings of each choice of one answer.

    A chunk that has figures but no choice belongs to the choice of the chunk before it: that is
    how llama.cpp sends `stream_options.include_usage`. `one_prompt`: all choices answer the same
    one, as a chat's do (a plain completion may have several).
    """

    def __init__(self, *, one_prompt: bool = False) -> None:
        self._one_prompt = one_prompt
        self.usage: dict[int, Json] = {}
        self.timings: dict[int, Json] = {}
        self._index = 0

    def add(self, event: Json) -> None:
        """Takes in one chunk of a stream, or a whole answer."""
        for choice in event.get("choices") or ():
            self._index = _number(choice, "index") or 0
        if isinstance(usage := event.get("usage"), dict):
            self.usage[self._index] = usage
        if isinstance(timings := event.get("timings"), dict):
            self.timings[self._index] = timings

    def counts(self) -> list[TokenCount]:
        """One count for each choice that has figures."""
        counts = [
            _count(self.usage.get(index, {}), self.timings.get(index, {}))
            for index in sorted({*self.usage, *self.timings})
        ]
        if self._one_prompt:
            return [*counts[:1], *(replace(one, prompt_again=True) for one in counts[1:])]
        return counts


def _count(usage: Json, timings: Json) -> TokenCount:
    details = usage.get("prompt_tokens_details")
    computed, cached = _number(timings, "prompt_n"), _number(timings, "cache_n")
    prompt, generated = _number(usage, "prompt_tokens"), _number(timings, "predicted_n")
    if computed is not None and cached is not None:
        prompt = computed + cached
    if cached is None and isinstance(details, dict):
        cached = _number(details, "cached_tokens")
    if generated is None:
        generated = _number(usage, "completion_tokens")
    return TokenCount(
        prompt=prompt,
        cached=cached,
        generated=generated,
        decode_tokens_per_s=_decode_speed(timings),
        prefill_tokens_per_s=_prefill_speed(timings),
    )


def _decode_speed(timings: Json) -> float | None:
    """The engine's own figure: tokens after the first over their time; None for one token."""
    return _speed(timings, "predicted_per_second", _number(timings, "predicted_n"), 2)


def _prefill_speed(timings: Json) -> float | None:
    """The engine's own figure; None for a few tokens."""
    return _speed(timings, "prompt_per_second", _number(timings, "prompt_n"), PREFILL_TOKENS_MIN)


def _speed(timings: Json, name: str, tokens: int | None, least_tokens: int) -> float | None:
    speed = timings.get(name)
    if not isinstance(speed, int | float) or not 0 < speed < LARGEST_COUNT:
        return None
    return float(speed) if tokens is not None and tokens >= least_tokens else None


def _number(document: Json, name: str) -> int | None:
    """A count of an engine's; None for what cannot be one, on which sums would fail later."""
    found = document.get(name)
    if isinstance(found, float) and found.is_integer():
        found = int(found)
    return found if isinstance(found, int) and 0 <= found < LARGEST_COUNT else None


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
