"""What the admission is told of requests and engines, and what it decides. Pure."""

from dataclasses import dataclass
from typing import Literal

Why = Literal["requests a minute", "tokens a minute", "queue full", "key's share", "wait", "gone"]


@dataclass(frozen=True, slots=True)
class Bid:
    """What a request asks for and what is expected of it; limits: `None` is none."""

    model: str  # the one that is served, however the client called it
    prompt_tokens: float
    output_tokens: float
    key: str = ""  # "": nobody's
    batch: bool = False
    prefix: tuple[int, ...] = ()  # `affinity.digests_of` its prompt
    tokens_per_byte: float = 0.25
    rpm: int | None = None
    tpm: int | None = None
    concurrency: int | None = None
    answers: int = 1  # that the engine computes at once, each in a slot of its own

    @property
    def tokens(self) -> float:
        """All that it is expected to read and write."""
        return self.prompt_tokens + self.output_tokens * self.answers


@dataclass(frozen=True, slots=True)
class Lane:
    """One engine as the admission sees it; a speed that is `None` is not known yet."""

    number: int
    model: str
    slots: int | None  # None: not planned yet, everybody is let through
    ready: bool = True
    prefill_tokens_per_s: float | None = None
    decode_tokens_per_s: float | None = None  # of one stream alone
    total_tokens_per_s: float | None = None  # of all slots together

    def stream_tokens_per_s(self) -> float | None:
        """Decode speed of one stream while all slots are at work."""
        if self.total_tokens_per_s is None or not self.slots:
            return self.decode_tokens_per_s
        each = self.total_tokens_per_s / self.slots
        return each if self.decode_tokens_per_s is None else min(each, self.decode_tokens_per_s)


@dataclass(frozen=True, slots=True)
class Grant:
    """The request may go to that engine now."""

    ticket: int
    engine: int


@dataclass(frozen=True, slots=True)
class Standing:
    """The request waits: it will be the `position`-th; `None`: no speed is known yet."""

    ticket: int
    position: int
    expected_wait_s: float | None


@dataclass(frozen=True, slots=True)
class Refusal:
    """The request is not taken, why, and when to ask again."""

    ticket: int
    why: Why
    retry_after_s: float | None
    position: int | None = None  # that it would have had
    limit: int | None = None  # that it ran into
