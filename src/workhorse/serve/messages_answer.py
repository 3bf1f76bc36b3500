"""The engine's chat answer in Anthropic's form, as a whole or as it comes. Pure.

As llama-server says it (`server-task.cpp`, commit 0c1e570, read November 2026); what a chat answer
does not tell is which stop sequence ended it.
"""

from typing import Any

import msgspec

from workhorse.serve.assemble import Assembly
from workhorse.serve.figures import Json
from workhorse.serve.sse import DONE, EventFilter, event_data, parse_object, split_events

_REASONS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}
# Anthropic's words for OpenAI's and llama.cpp's (its API reference, "Errors", 2026-11).
_ERRORS = {
    "authentication_error": "authentication_error",
    "exceed_context_size_error": "invalid_request_error",
    "invalid_request_error": "invalid_request_error",
    "not_found_error": "not_found_error",
    "rate_limit_error": "rate_limit_error",
    "unavailable_error": "overloaded_error",
}


class MessageAssembly(Assembly):
    """Collects the events of a chat stream; `answer()` is one message."""

    def __init__(self) -> None:
        super().__init__("chat")

    def answer(self) -> Json:
        """The answer as one document."""
        chat = super().answer()
        choice = chat["choices"][0]
        said = choice["message"]
        content: list[Json] = []
        if thought := said.get("reasoning_content"):
            content.append({"type": "thinking", "thinking": thought, "signature": ""})
        if said.get("content"):
            content.append({"type": "text", "text": said["content"]})
        for call in said.get("tool_calls") or ():
            function = call["function"]
            used = parse_object(function["arguments"].encode()) or {}
            content.append(
                {"type": "tool_use", "id": call.get("id"), "name": function["name"], "input": used}
            )
        message = _message(chat, content, usage_of(chat))
        message["stop_reason"] = _REASONS.get(str(choice.get("finish_reason")), "end_turn")
        return message


class MessageEvents:
    """A chat stream as Anthropic's events: feed it blocks, as the engine sends them.

    `started` turns true with the first event that says something.
    """

    def __init__(self, *, keep_progress: bool) -> None:
        self.started = False
        self._keep_progress = keep_progress
        self._chat = EventFilter(keep_progress=True)
        self._usage: Json = {}
        self._timings: Json | None = None
        self._reason: str | None = None
        self._open: str | None = None  # the kind of block that is being said
        self._index = -1
        self._began = False

    def feed(self, block: bytes) -> bytes:
        """The events that `block` completes; empty when there is nothing to say."""
        said = bytearray()
        for event in split_events(self._chat.feed(block)):
            data = event_data(event)
            if data == DONE:
                said += self._end()
            elif found := parse_object(data):
                said += self._one(found)
        return bytes(said)

    def _one(self, chunk: Json) -> bytes:
        if "error" in chunk:
            return error_event(chunk["error"])
        if isinstance(progress := chunk.get("prompt_progress"), dict):
            read, cached = progress.get("total", 0), progress.get("cache", 0)
            self._usage = _usage(read, cached, 0)
            return _event("ping", prompt_progress=progress) if self._keep_progress else b""
        if chunk.get("usage") or chunk.get("timings"):
            self._usage = usage_of(chunk)
            self._timings = chunk.get("timings") or self._timings
        said = b""
        for choice in chunk.get("choices") or ():
            self._reason = choice.get("finish_reason") or self._reason
            delta = choice.get("delta") or {}
            said += self._text("thinking", delta.get("reasoning_content"), chunk)
            said += self._text("text", delta.get("content"), chunk)
            for call in delta.get("tool_calls") or ():
                said += self._call(call, chunk)
        return said

    def _text(self, kind: str, words: str | None, chunk: Json) -> bytes:
        if not words:
            return b""
        said = b"" if self._open == kind else self._block(kind, {kind: ""}, chunk)
        return said + self._delta(f"{kind}_delta", kind, words)

    def _call(self, call: Json, chunk: Json) -> bytes:
        function = call.get("function") or {}
        kind, said = f"tool_use {call.get('index', 0)}", b""
        if self._open != kind:
            named = {"id": call.get("id", ""), "name": function.get("name", ""), "input": {}}
            said = self._block("tool_use", named, chunk, kind)
        if function.get("arguments"):
            said += self._delta("input_json_delta", "partial_json", function["arguments"])
        return said

    def _block(self, kind: str, empty: Json, chunk: Json, name: str | None = None) -> bytes:
        """The start of a block, the end of the one before it, and of the message if need be."""
        said = self._begin(chunk) + self._close()
        self._open, self._index = name or kind, self._index + 1
        block = {"type": kind, **empty}
        return said + _event("content_block_start", index=self._index, content_block=block)

    def _delta(self, kind: str, field: str, words: str) -> bytes:
        delta = {"type": kind, field: words}
        return _event("content_block_delta", index=self._index, delta=delta)

    def _begin(self, chunk: Json) -> bytes:
        if self._began:
            return b""
        self._began = self.started = True
        return _event("message_start", message=_message(chunk, [], self._usage or _usage(0, 0, 0)))

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        said = b""
        if self._open == "thinking":
            delta = {"type": "signature_delta", "signature": ""}
            said = _event("content_block_delta", index=self._index, delta=delta)
        return said + _event("content_block_stop", index=self._index)

    def _end(self) -> bytes:
        said = self._begin({}) + self._close()
        reason = _REASONS.get(str(self._reason), "end_turn")
        more: Json = {"timings": self._timings} if self._timings else {}
        said += _event(
            "message_delta",
            delta={"stop_reason": reason, "stop_sequence": None},
            usage=self._usage,
            **more,
        )
        return said + _event("message_stop")


def message_ends(whole: bytes) -> bool:
    """Is the end of the message in a block of whole events?"""
    return b"event: message_stop\n" in whole


def usage_of(chat: Json) -> Json:
    """Anthropic's usage: cached tokens are not among those of the input."""
    usage, timings = chat.get("usage") or {}, chat.get("timings") or {}
    details = usage.get("prompt_tokens_details") or {}
    cached = timings.get("cache_n", details.get("cached_tokens", 0))
    read = timings["prompt_n"] + cached if "prompt_n" in timings else usage.get("prompt_tokens", 0)
    return _usage(read, cached, timings.get("predicted_n", usage.get("completion_tokens", 0)))


def error_event(error: Any) -> bytes:
    """The last event of a message that an error has ended."""
    return _event("error", error=error_of(error))


def error_of(error: Any) -> Json:
    """An error of the engine or of the gateway with Anthropic's word for its class."""
    known = error if isinstance(error, dict) else {"message": str(error)}
    return {**known, "type": _ERRORS.get(str(known.get("type")), "api_error")}


def _message(chat: Json, content: list[Json], usage: Json) -> Json:
    return {
        "id": str(chat.get("id", "")).replace("chatcmpl-", "msg_"),
        "type": "message",
        "role": "assistant",
        "content": content,
        "model": chat.get("model", ""),
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }


def _usage(read: int, cached: int, generated: int) -> Json:
    return {
        "cache_read_input_tokens": cached,
        "input_tokens": max(0, read - cached),
        "output_tokens": generated,
    }


def _event(kind: str, **fields: Any) -> bytes:
    data = msgspec.json.encode({"type": kind, **fields})
    return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"
