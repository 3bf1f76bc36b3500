"""One document or one request of a job: what it is, where it stands, how it ended."""

from typing import Any, Literal

import msgspec

# An item is `waiting` until a runner has it, then `leased`, and ends in one of the other three.
State = Literal["waiting", "leased", "done", "failed", "cancelled"]
ENDED: tuple[State, ...] = ("done", "failed", "cancelled")

# What kept an item from its result; each has its own advice in the report.
Cause = Literal[
    "unreadable",  # the document could not be read
    "too long",  # it fits into no context, and its template splits nothing
    "refused",  # the service will not answer this request, however often it is asked
    "no answer",  # errors and time-outs, more often than the job allows
    "not valid",  # answers came, none of them had the form that was asked for
    "crashed",  # the engine ended each time this item was asked
    "template",  # the template's own code failed on it
    "cancelled",
]


class NewItem(msgspec.Struct, frozen=True, kw_only=True):
    """What goes into the ledger when a job is made.

    `content` is the text of a document, or the JSON of a request (`kind`). An item that cannot be
    read goes in too, with `reason` instead of content: it is counted and told.
    """

    id: str  # unique in the job: a path relative to the input, a row's number, a `custom_id`
    source: str  # where it comes from, for people: `handbook/fans.pdf`, `mail.xlsx row 17`
    kind: Literal["text", "request"] = "text"
    content: str | None = None
    # What the reader made of it: text/markdown, text/x-python … A text whose file is not UTF-8
    # tells so, `text/x-python; charset=gb18030`: what replaces the document is written in it again.
    media_type: str = "text/plain"
    reason: "Reason | None" = None


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """Why an item has no result: the cause, and what was seen, with the value."""

    cause: Cause
    seen: str  # a sentence in English, with the engine's own words where there are any
    seen_zh: str


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What an item took of the engine, its failed attempts included."""

    prompt_tokens: int = 0
    cached_tokens: int = 0  # of the prompt's, those that the engine had computed before
    output_tokens: int = 0
    requests: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            requests=self.requests + other.requests,
        )


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What an item gave: a text, a JSON value that its schema allows, or a request's response.

    `file`: the text replaces the document (comments put into source code, a translation).
    """

    text: str | None = None
    value: Any = None
    file: bool = False
    notes: tuple[str, ...] = ()  # what a reader should know: repaired, pieces left uncommented …


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """An item as the ledger has it."""

    number: int  # its place in the input, from 0; the output has the same order
    id: str
    source: str
    kind: Literal["text", "request"]
    content: str
    media_type: str
    state: State
    attempts: int  # that ended in an error which was the item's own
    usage: Usage = Usage()
    result: Result | None = None
    reason: Reason | None = None
