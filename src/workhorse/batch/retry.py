"""What an answer of the service means for who asked, and how long to wait. Pure."""

import random
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from workhorse.serve.fair_order import BATCH_YIELDS_S

# What has become of one request:
Fate = Literal[
    "answered",  # with 200
    "busy",  # no room now
    "away",  # nobody there who could answer, through no fault of the request's
    "lost",  # taken, and no answer came: it may be what has ended the engine
    "own",  # an error that may be this request's own, and may pass
    "too long",
    "refused",  # it will be refused again
    "key",  # the service does not let us in
    "not served",  # no such model or route
]
FATES: dict[int, Fate] = {
    401: "key",
    403: "key",
    404: "not served",
    408: "own",
    409: "own",
    413: "too long",
    425: "busy",
    429: "busy",
    501: "refused",
    502: "lost",
    503: "away",
    529: "busy",  # "overloaded", as some services have it
}
# The gateway's word for an engine that did not even take the request (`serve/refusal.py`).
REFUSES = "refuses connections"
# Words for a prompt that the context does not hold: llama-server 0.5.0, vLLM 0.32.0 (2026-11).
TOO_LONG = ("exceed_context_size", "context length", "context size", "context_length_exceeded")

BACK_OFF_S, BACK_OFF_MOST_S = 1.0, 30.0
AWAY_PAUSE_S, AWAY_PAUSE_MOST_S = 0.5, 15.0
RETRY_AFTER_MOST_S = 60.0  # look again, whatever the service says

# Before anything is known: the slowest that still is some use. A CPU with other work decodes half a
# token a second and reads 16 times as fast.
ASSUMED_S_PER_TOKEN = 2.0
PROMPT_SHARE = 1 / 16
BYTES_PER_TOKEN = 3.0
# A request of a batch lets people go first for so long; then it still has to get a slot.
FLOOR_S = 2 * BATCH_YIELDS_S
TIMES_EXPECTED = 8.0
LIMIT_MOST_S = 6 * 3600.0
LEARN_FROM, LEARNED_AT_LEAST = 64, 4


class Refusal(msgspec.Struct):
    """The error of an answer."""

    message: str | None = None
    type: str | None = None
    code: Any = None


class Refused(msgspec.Struct):
    """An answer with an error in it."""

    error: Refusal | str | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back: its status, its body, and when to ask again where it says so."""

    status: int
    body: bytes
    retry_after_s: float | None = None
    request_id: str | None = None

    @property
    def words(self) -> str:
        """The service's own words for its error, at most 300 letters."""
        try:
            error = msgspec.json.decode(self.body, type=Refused).error
        except (msgspec.DecodeError, UnicodeDecodeError):
            error = None
        if isinstance(error, Refusal) and error.message:
            return error.message[:300]
        if isinstance(error, str):
            return error[:300]
        return self.body[:200].decode(errors="replace").strip()


def fate_of(reply: Reply) -> Fate:
    """What has become of a request that was answered like this."""
    if reply.status == 200:
        return "answered"
    if reply.status == 502 and REFUSES in reply.words:
        return "away"
    if 400 <= reply.status < 500 and any(
        word in reply.body[:4096].decode(errors="replace") for word in TOO_LONG
    ):
        return "too long"
    known = FATES.get(reply.status)
    if known is not None:
        return known
    return "own" if reply.status >= 500 else "refused"


def retry_after(header: str | None) -> float | None:
    """The seconds in a `Retry-After`; None for a date or nonsense."""
    try:
        seconds = float(header) if header else None
    except ValueError:
        return None
    return None if seconds is None or not 0 <= seconds < 1e9 else seconds


def back_off_s(tries: int, chance: random.Random) -> float:
    """The pause after so many errors of one request: doubled each time, half of it by chance."""
    longest_s = min(BACK_OFF_MOST_S, BACK_OFF_S * 2.0 ** min(tries - 1, 16))
    return longest_s * chance.uniform(0.5, 1.0)


def away_pause_s(tries: int, retry_after_s: float | None, chance: random.Random) -> float:
    """The pause before a service that was not there is asked again, for the `tries`-th time.

    All that were sent away ask again at moments of their own, none before the service said.
    """
    longest_s = min(AWAY_PAUSE_MOST_S, AWAY_PAUSE_S * 2.0 ** min(tries - 1, 16))
    told_s = min(RETRY_AFTER_MOST_S, retry_after_s or 0.0)
    return told_s + longest_s * chance.uniform(0.5, 1.0)


def varied(body: Mapping[str, Any], tries: int) -> dict[str, Any]:
    """A request that is asked again because its answer was not valid: it may come out otherwise.

    Without this a greedy engine says the same once more.
    """
    if tries == 0:
        return dict(body)
    warmth = body.get("temperature")
    told = float(warmth) if isinstance(warmth, int | float) else 0.0
    return {**body, "temperature": min(1.0, max(told, 0.2 * tries)), "seed": tries}


class Patience:
    """How long a request may take: what those before it took, with much to spare.

    Until some were answered, what a laden CPU would take. Waiting for a slot counts as well, so
    the answers of a busy service lengthen it.
    """

    def __init__(self, floor_s: float = FLOOR_S) -> None:
        self._floor_s = floor_s
        self._s_per_token: deque[float] = deque(maxlen=LEARN_FROM)

    def limit_s(self, prompt_bytes: int, output_tokens: int, slow: int = 0) -> float:
        """The time for a request; doubled for each time (`slow`) that it ran out before."""
        cost = prompt_bytes / BYTES_PER_TOKEN * PROMPT_SHARE + output_tokens
        each_s = ASSUMED_S_PER_TOKEN
        if len(self._s_per_token) >= LEARNED_AT_LEAST:
            each_s = TIMES_EXPECTED * max(self._s_per_token)
        limit_s = self._floor_s + each_s * cost
        return min(LIMIT_MOST_S, limit_s * 2.0 ** min(slow, 16))

    def took(self, seconds: float, prompt_tokens: int, output_tokens: int) -> None:
        """A request was answered."""
        cost = prompt_tokens * PROMPT_SHARE + output_tokens
        self._s_per_token.append(seconds / max(1.0, cost))
