"""The answers of llama-server, event by event. Pure.

Shapes and the order of keys were taken from a running llama-server 0.5.0-dev (commit 0c1e570,
2026-11-30), one class per endpoint: /completion, /v1/completions, /v1/chat/completions.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from workhorse.engines.fake.tokens import to_tokens

Json = dict[str, Any]
Ending = Literal["limit", "eos", "word"]

FINGERPRINT = "b0-fake"
DONE = b"data: [DONE]\n\n"

ERROR_CODES = {
    "authentication_error": 401,
    "invalid_request_error": 400,
    "exceed_context_size_error": 400,
    "not_found_error": 404,
    "server_error": 500,
    "not_supported_error": 501,
    "unavailable_error": 503,
}


def event(document: object) -> bytes:
    """One server-sent event."""
    return b"data: " + _dump(document) + b"\n\n"


def error(message: str, kind: str, **more: int) -> Json:
    """The body of an error answer."""
    return {"error": {"code": ERROR_CODES[kind], "message": message, "type": kind, **more}}


def _dump(document: object) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class Timings:
    """What one request took: prompt tokens and time, answer tokens and time."""

    prompt_tokens: int
    prompt_ms: float
    predicted_tokens: int
    predicted_ms: float

    def to_json(self) -> Json:
        """llama-server's `timings`, which counts the steps between tokens and gives 0 for none."""
        steps = max(0, self.predicted_tokens - 1)
        return {
            "cache_n": 0,
            "prompt_n": self.prompt_tokens,
            "prompt_ms": self.prompt_ms,
            "prompt_per_token_ms": _share(self.prompt_ms, self.prompt_tokens),
            "prompt_per_second": _share(self.prompt_tokens * 1000, self.prompt_ms),
            "predicted_n": self.predicted_tokens,
            "predicted_ms": self.predicted_ms,
            "predicted_per_token_ms": _share(self.predicted_ms, steps),
            "predicted_per_second": _share(steps * 1000, self.predicted_ms),
        }


def _share(value: float, parts: float) -> float:
    return value / parts if parts > 0 else 0.0


@dataclass(frozen=True, slots=True)
class End:
    """How an answer ended, with everything the last events tell."""

    ending: Ending
    stop_word: str | None
    slot: int
    pieces: Sequence[str]
    timings: Timings

    @property
    def finish_reason(self) -> str:
        """OpenAI's word for the ending."""
        return "length" if self.ending == "limit" else "stop"


class Answer(ABC):
    """The events of one answer; `index` tells the answers to one request apart."""

    object_name = ""

    def __init__(
        self,
        *,
        model: str,
        answer_id: str,
        created: int,
        index: int,
        prompt: str,
        prompt_tokens: int,
        logprobs: bool,
        return_tokens: bool,
        include_usage: bool,
    ) -> None:
        self.model = model
        self.index = index
        self.prompt = prompt
        self.prompt_tokens = prompt_tokens
        self.logprobs = logprobs
        self.return_tokens = return_tokens
        self.include_usage = include_usage
        self.answer_id = answer_id
        self.common: Json = {
            "created": created,
            "id": answer_id,
            "model": model,
            "system_fingerprint": FINGERPRINT,
            "object": self.object_name,
        }

    def progress(self, processed: int, time_ms: int) -> bytes:
        """The event that says how much of the prompt is done (`return_progress`)."""
        state = {"total": self.prompt_tokens, "cache": 0, "processed": processed}
        return event({**self.opening(), "prompt_progress": {**state, "time_ms": time_ms}})

    def usage(self, tokens: int) -> Json:
        """OpenAI's usage figures."""
        return {
            "completion_tokens": tokens,
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": tokens + self.prompt_tokens,
            "prompt_tokens_details": {"cached_tokens": 0},
        }

    @abstractmethod
    def opening(self) -> Json:
        """The document that progress rides on."""

    @abstractmethod
    def piece(self, number: int, text: str) -> bytes:
        """The event of token `number`, counted from 1."""

    @abstractmethod
    def end(self, end: End) -> bytes:
        """The last events of a stream, without `[DONE]`."""

    @abstractmethod
    def whole(self, end: End) -> Json:
        """The answer in one document, for a client that did not ask for a stream."""


class NativeAnswer(Answer):
    """What /completion answers."""

    def opening(self) -> Json:
        """A piece without text."""
        return self._document("", [0], 0)

    def piece(self, number: int, text: str) -> bytes:
        """The event of token `number`."""
        return event(self._document(text, to_tokens(text), number))

    def _document(self, text: str, tokens: list[int], number: int) -> Json:
        return {
            "index": self.index,
            "content": text,
            "tokens": tokens,
            "stop": False,
            "id_slot": -1,
            "tokens_predicted": number,
            "tokens_evaluated": self.prompt_tokens,
        }

    def end(self, end: End) -> bytes:
        """The last event."""
        return event({**self.whole(end), "content": ""})

    def whole(self, end: End) -> Json:
        """The whole answer."""
        tokens = len(end.pieces)
        return {
            "index": self.index,
            "content": "".join(end.pieces),
            "tokens": [t for piece in end.pieces if self.return_tokens for t in to_tokens(piece)],
            "id_slot": end.slot,
            "stop": True,
            "model": self.model,
            "tokens_predicted": tokens,
            "tokens_evaluated": self.prompt_tokens,
            "generation_settings": {},
            "prompt": self.prompt,
            "has_new_line": False,
            "truncated": False,
            "stop_type": end.ending,
            "stopping_word": end.stop_word or "",
            # The last token is sent, but never read again.
            "tokens_cached": self.prompt_tokens + max(0, tokens - 1),
            "timings": end.timings.to_json(),
        }


class OpenAiAnswer(Answer):
    """What the two OpenAI endpoints have in common."""

    # What never changes between two pieces is written once: at 64 streams the writing of JSON
    # would otherwise be most of the work, and the told times would not be kept.
    @cached_property
    def _frame(self) -> tuple[bytes, bytes]:
        mark = "\ufffe"
        head, tail = event(self.piece_json(mark)).split(_dump(mark))
        return head, tail

    def piece(self, number: int, text: str) -> bytes:  # noqa: ARG002  (/completion counts)
        """The event of one token."""
        if self.logprobs:
            return event(self.piece_json(text))
        head, tail = self._frame
        return head + json.dumps(text, ensure_ascii=False).encode() + tail

    @abstractmethod
    def piece_json(self, text: str) -> Json:
        """The document of one piece."""


class TextAnswer(OpenAiAnswer):
    """What /v1/completions answers. Usage comes with the last event, asked for or not."""

    object_name = "text_completion"

    def opening(self) -> Json:
        """A piece without text."""
        return self._document("", None, None)

    def piece_json(self, text: str) -> Json:
        """The document of one piece."""
        return self._document(text, _logprobs([text]) if self.logprobs else None, None)

    def end(self, end: End) -> bytes:
        """The last event."""
        return event(self._last("", None, end))

    def whole(self, end: End) -> Json:
        """The whole answer."""
        return self._last(
            "".join(end.pieces), _logprobs(end.pieces) if self.logprobs else None, end
        )

    def _last(self, text: str, logprobs: Json | None, end: End) -> Json:
        return {
            **self._document(text, logprobs, end.finish_reason),
            "usage": self.usage(len(end.pieces)),
            "timings": end.timings.to_json(),
        }

    def _document(self, text: str, logprobs: Json | None, finish_reason: str | None) -> Json:
        choice = {
            "text": text,
            "index": self.index,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }
        return {"choices": [choice], **self.common}


class ChatAnswer(OpenAiAnswer):
    """What /v1/chat/completions answers; each progress event opens with the role, too."""

    object_name = "chat.completion.chunk"

    def opening(self) -> Json:
        """The event with the role alone."""
        return self._document({"role": "assistant", "content": None}, None)

    def piece_json(self, text: str) -> Json:
        """The document of one piece."""
        document = self._document({"content": text}, None)
        if self.logprobs:
            document["choices"][0]["logprobs"] = _logprobs([text])
        return document

    def piece(self, number: int, text: str) -> bytes:
        """The event of token `number`, before the first one the event with the role."""
        first = event(self.opening()) if number == 1 else b""
        return first + super().piece(number, text)

    def end(self, end: End) -> bytes:
        """The last event, and one with the usage for a client that asked."""
        last = self._document({}, end.finish_reason)
        timings = {"timings": end.timings.to_json()}
        if not self.include_usage:
            return event({**last, **timings})
        usage = {"usage": self.usage(len(end.pieces)), **timings}
        return event(last) + event({"choices": [], **self.common, **usage})

    def whole(self, end: End) -> Json:
        """The whole answer."""
        choice: Json = {
            "finish_reason": end.finish_reason,
            "index": self.index,
            "message": {"role": "assistant", "content": "".join(end.pieces)},
        }
        if self.logprobs:
            choice["logprobs"] = _logprobs(end.pieces)
        return {
            "choices": [choice],
            **self.common,
            "object": "chat.completion",
            "usage": self.usage(len(end.pieces)),
            "timings": end.timings.to_json(),
        }

    def _document(self, delta: Json, finish_reason: str | None) -> Json:
        choice = {"finish_reason": finish_reason, "index": self.index, "delta": delta}
        return {"choices": [choice], **self.common}


def _logprobs(pieces: Sequence[str]) -> Json:
    content = []
    for piece in pieces:
        one = {
            "id": next(iter(to_tokens(piece)), 0),
            "token": piece,
            "bytes": list(piece.encode()),
            "logprob": -0.5,
        }
        content.append({**one, "top_logprobs": [one]})
    return {"content": content}
