"""One JSON answer from the events of a stream. Pure.

The result equals what the engine answers when it is not asked for a stream, but for half a
character that the token limit left at the end: the stream leaves it out, where the whole answer
of a plain completion ends in U+FFFD. Fields that are not known here are kept too: text is joined,
lists are joined, anything else is replaced by what came last.
Source: llama.cpp `tools/server/server-task.cpp`, commit 0c1e570, read November 2026.
"""

from typing import Any, Literal

from workhorse.serve.figures import Figures, Json

Kind = Literal["chat", "text"]

_OBJECTS = {"chat": "chat.completion", "text": "text_completion"}
# Merged by choice, made anew, or never part of an answer that is not streamed.
_NOT_COPIED = frozenset(("choices", "usage", "timings", "object", "prompt_progress"))


class Assembly:
    """Collects the events of one stream; `answer()` is the whole.

    `error` is the engine's error event, once there was one; `figures` what it says of tokens.
    """

    def __init__(self, kind: Kind) -> None:
        self.kind: Kind = kind
        self.error: Json | None = None
        self.figures = Figures(one_prompt=kind == "chat")
        self._fields: Json = {}
        self._choices: dict[int, Json] = {}

    def add(self, event: Json) -> None:
        """Takes in the next event."""
        if "error" in event:
            self.error = event
            return
        self.figures.add(event)
        self._fields.update((n, v) for n, v in event.items() if n not in _NOT_COPIED)
        for chunk in event.get("choices") or ():
            index = chunk.get("index", 0)
            _add_chunk(self._choices.setdefault(index, {"index": index}), chunk)

    @property
    def complete(self) -> bool:
        """True when every choice has come to its end."""
        choices = self._choices.values()
        return bool(choices) and all(c.get("finish_reason") is not None for c in choices)

    def answer(self) -> Json:
        """The answer as one document; usage and timings are the first choice's."""
        choices = [self._choices[index] for index in sorted(self._choices)]
        whole: Json = {"choices": [_finish(choice, self.kind) for choice in choices]}
        whole |= self._fields
        whole["object"] = _OBJECTS[self.kind]
        for name, figures in (("usage", self.figures.usage), ("timings", self.figures.timings)):
            if figures:
                whole[name] = figures[min(figures)]
        return whole


def _add_chunk(choice: Json, chunk: Json) -> None:
    for name, value in chunk.items():
        if name == "delta":
            _merge_message(choice.setdefault("message", {}), value or {})
        elif name == "text":
            choice["text"] = choice.get("text", "") + (value or "")
        elif name == "logprobs":
            _merge_lists(choice, value)
        elif value is not None or name not in choice:
            choice[name] = value


def _finish(choice: Json, kind: Kind) -> Json:
    """A choice with the fields that the engine always gives."""
    if kind == "text":
        return {"text": "", "logprobs": None, **choice}
    message = {"role": "assistant", **choice.get("message", {})}
    if message.get("content") is None:
        message["content"] = ""
    calls = message.pop("tool_calls", None)
    if calls:
        message["tool_calls"] = [_finish_call(calls[index]) for index in sorted(calls)]
    return {**choice, "message": message}


def _finish_call(call: Json) -> Json:
    function = {"name": "", "arguments": "", **call.get("function", {})}
    return {"type": "function", **call, "function": function}


def _merge_message(message: Json, delta: Json) -> None:
    for name, value in delta.items():
        if name == "tool_calls":
            for call in value or ():
                calls = message.setdefault("tool_calls", {})
                _merge_call(calls.setdefault(call.get("index", 0), {}), call)
        elif name == "role":
            message["role"] = value
        else:
            message[name] = _joined(message.get(name), value)


def _merge_call(call: Json, delta: Json) -> None:
    for name, value in delta.items():
        if name == "function":
            function = call.setdefault("function", {})
            for part, text in (value or {}).items():
                function[part] = _joined(function.get(part), text)
        elif name != "index" and value is not None:
            call[name] = value


def _merge_lists(choice: Json, logprobs: Json | None) -> None:
    """Lengthens each list of a choice's log probabilities."""
    if logprobs is None:
        choice.setdefault("logprobs", None)
        return
    merged = choice.get("logprobs") or {}
    choice["logprobs"] = merged | {n: _joined(merged.get(n), v) for n, v in logprobs.items()}


def _joined(before: Any, now: Any) -> Any:
    """Text after text, list after list; otherwise what came last, null never over a value."""
    if now is None:
        return before
    if isinstance(before, str) and isinstance(now, str):
        return before + now
    if isinstance(before, list) and isinstance(now, list):
        return before + now
    return now
