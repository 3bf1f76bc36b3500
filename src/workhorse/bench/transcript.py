"""What one request's raw bytes say: events, token counts, errors. Pure.

While requests run, only bytes and times are kept; this reads them afterwards, so that reading
does not delay the clock.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from workhorse.records import Run


@dataclass(frozen=True, slots=True)
class Transcript:
    """One request as it was received.

    `reads` are the bytes of each read from the socket with the clock's time of that read;
    `status` the HTTP status, None when no answer came; `problem` what ended it before its end.
    """

    stream: int
    sent_s: float
    ended_s: float
    status: int | None
    reads: Sequence[tuple[float, bytes]]
    problem: str | None


class Delta(msgspec.Struct):
    """What a chunk of a chat adds; services name thinking in one of two ways."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class Choice(msgspec.Struct):
    """One choice of a chunk."""

    text: str | None = None
    delta: Delta | None = None
    finish_reason: str | None = None

    @property
    def has_text(self) -> bool:
        """True when the chunk brings text, thought or said."""
        added = self.delta or Delta()
        return bool(self.text or added.content or added.reasoning_content or added.reasoning)


class CachedTokens(msgspec.Struct):
    """Part of the OpenAI usage record."""

    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """The OpenAI usage record."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: CachedTokens | None = None


class Timings(msgspec.Struct):
    """llama-server's own figures, in its last chunk."""

    cache_n: int | None = None
    prompt_n: int | None = None
    prompt_ms: float | None = None
    predicted_n: int | None = None
    predicted_ms: float | None = None


class Chunk(msgspec.Struct):
    """One event of a streamed completion; fields that a service adds are ignored."""

    choices: list[Choice] = []
    usage: Usage | None = None
    timings: Timings | None = None
    error: Any = None  # an object with a message, as a rule


def to_run(transcript: Transcript, zero_s: float | None = None) -> Run:
    """The run that the transcript shows; whatever went wrong is in `error`, never raised.

    `zero_s`: when the measurement began, by the same clock.
    """
    arrivals_s: list[float] = []
    usage, timings = Usage(), Timings()
    finished = False
    error = transcript.problem
    if transcript.status != 200:
        error = error or refusal(transcript)
    else:
        for time_s, data in events(transcript.reads):
            if data == b"[DONE]":
                finished = True
                continue
            try:
                chunk = msgspec.json.decode(data, type=Chunk)
            except (msgspec.DecodeError, UnicodeDecodeError):
                error = error or f"an event that is not a completion: {data[:200]!r}"
                continue
            usage, timings = chunk.usage or usage, chunk.timings or timings
            if chunk.error is not None:
                error = error or error_words(chunk.error)
            for choice in chunk.choices:
                finished = finished or choice.finish_reason is not None
                if choice.has_text:
                    arrivals_s.append(time_s - transcript.sent_s)
        if not finished:
            error = error or "the stream ended before the answer did"
    return counted(transcript, zero_s, tuple(arrivals_s), usage, timings, error)


def counted(
    transcript: Transcript,
    zero_s: float | None,
    arrivals_s: tuple[float, ...],
    usage: Usage,
    timings: Timings,
    error: str | None,
) -> Run:
    """The run with the service's own counts; pieces stand for tokens where it counts none."""
    details = usage.prompt_tokens_details
    prompt_tokens = usage.prompt_tokens
    if prompt_tokens is None and timings.prompt_n is not None:
        prompt_tokens = timings.prompt_n + (timings.cache_n or 0)
    output = (usage.completion_tokens, timings.predicted_n, len(arrivals_s))
    return Run(
        stream=transcript.stream,
        prompt_tokens=prompt_tokens,
        cached_tokens=first_known(details.cached_tokens if details else None, timings.cache_n),
        output_tokens=next(count for count in output if count is not None),
        arrivals_s=arrivals_s,
        end_s=transcript.ended_s - transcript.sent_s,
        error=error,
        sent_s=None if zero_s is None else transcript.sent_s - zero_s,
        engine_prefill_s=seconds(timings.prompt_ms),
        engine_decode_s=seconds(timings.predicted_ms),
    )


def seconds(milliseconds: float | None) -> float | None:
    """A time that makes sense, in seconds."""
    return milliseconds / 1000 if milliseconds is not None and 0 <= milliseconds < 1e9 else None


def first_known(*counts: int | None) -> int | None:
    """The first count that is known."""
    return next((count for count in counts if count is not None), None)


def events(reads: Sequence[tuple[float, bytes]]) -> Iterator[tuple[float, bytes]]:
    """Each server-sent event's data with the time of the read that completed its line.

    An `error:` line (older llama-server) comes as an event with an `error` member.
    """
    rest = b""
    for time_s, received in reads:
        *lines, rest = (rest + received).split(b"\n")
        for line in lines:
            name, _, data = line.rstrip(b"\r").partition(b":")
            if name == b"data":
                yield time_s, data.strip()
            elif name == b"error":
                yield time_s, b'{"error":%b}' % data.strip()


def refusal(transcript: Transcript) -> str:
    """An answer that was not a stream, in the service's own words."""
    if transcript.status is None:
        return "no answer"
    body = b"".join(data for _, data in transcript.reads)
    said = refusal_words(body)
    return f"HTTP {transcript.status}: {said}" if said else f"HTTP {transcript.status}"


def refusal_words(body: bytes) -> str:
    """What the body of a refusal says: its error's message, else its first 200 bytes."""
    try:
        error = msgspec.json.decode(body, type=Chunk).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        error = None
    return body[:200].decode(errors="replace").strip() if error is None else error_words(error)


def error_words(error: object) -> str:
    """The message of an OpenAI error object, or the object itself."""
    message = error.get("message") if isinstance(error, dict) else None
    return str(message or error)
