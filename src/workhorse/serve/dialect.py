"""How each route that generates is asked and answers: one dialect a route. Pure.

The engine is always asked for a stream with progress (`ask.py`); a dialect says in which form,
what of it the client sees, and how the whole is made from the parts.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import msgspec

from workhorse.serve.ask import Ask, Kind, ask_engine, ask_unchanged
from workhorse.serve.assemble import Assembly
from workhorse.serve.figures import Figures, Json
from workhorse.serve.messages_answer import (
    MessageAssembly,
    MessageEvents,
    error_event,
    message_ends,
)
from workhorse.serve.messages_ask import chat_request
from workhorse.serve.responses import ResponseAssembly, ResponseEvents, response_ends
from workhorse.serve.sse import DONE, EventFilter

CHAT_PATH = "/v1/chat/completions"


class Collecting(Protocol):
    """Makes one document from the events of a stream."""

    error: Json | None
    figures: Figures

    def add(self, event: Json) -> None:
        """Takes in the next event."""

    @property
    def complete(self) -> bool:
        """True when the answer has come to its end."""

    def answer(self) -> Json:
        """The whole document."""


class Events(Protocol):
    """Makes what the client sees from the blocks that the engine sends."""

    started: bool  # has it said anything?

    def feed(self, block: bytes) -> bytes:
        """The whole events that a block completes, for the client."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """The form of one route."""

    kind: Kind
    assembly: Callable[[], Collecting]
    parts: Callable[[bool], Events]  # what an assembly is made from; True: with progress
    events: Callable[[bool], Events]  # what the client sees
    ends: Callable[[bytes], bool]  # is the end of the stream in a block of whole events?

    def ask(self, body: bytes) -> Ask:
        """What the engine is asked for a client's request."""
        if self.kind != "messages":
            return ask_engine(body, self.kind)
        chat = chat_request(body)
        ask = None if chat is None else ask_engine(chat, self.kind)
        if ask is None or ask.answer == "unchanged":
            return ask_unchanged(body)  # the engine refuses it in its own words
        return replace(ask, path=CHAT_PATH)

    def error_event(self, document: Json) -> bytes:
        """The last event of a stream that an error has ended, from the error's document."""
        if self.kind == "messages":
            return error_event(document["error"])
        return b"data: " + msgspec.json.encode(document) + b"\n\n"


def _filter(keep_progress: bool) -> Events:
    return EventFilter(keep_progress=keep_progress)


def _done(whole: bytes) -> bool:
    # At the very end: a text that says so has at least its quotes and braces behind it.
    return whole[-16:].rstrip().endswith(DONE)


def _message_events(keep_progress: bool) -> Events:
    return MessageEvents(keep_progress=keep_progress)


def _response_events(keep_progress: bool) -> Events:
    return ResponseEvents(keep_progress=keep_progress)


CHAT = Dialect("chat", partial(Assembly, "chat"), _filter, _filter, _done)
TEXT = Dialect("text", partial(Assembly, "text"), _filter, _filter, _done)
MESSAGES = Dialect("messages", MessageAssembly, _filter, _message_events, message_ends)
RESPONSES = Dialect(
    "responses", ResponseAssembly, _response_events, _response_events, response_ends
)
