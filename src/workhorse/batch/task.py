"""What a template does with one item, and the means that it is given for it.

A task is written as if nothing could go wrong: it asks, and awaits answers. Whoever calls it
repeats what failed, remembers every answer (a task that is run again after a crash gets those it
had without asking), keeps to the pace, and counts.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from workhorse.batch.item import Item, Reason, Result


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request to the service.

    `step` names it within its item: the same item gives the same requests under the same names
    each time it is run. `check` names what the answer has to be, see `Tools.ask`.
    """

    step: str  # "part 3 of 12", "merge 1.2"
    body: Mapping[str, Any]  # OpenAI's, without model and stream
    path: str = "/v1/chat/completions"


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What the service said: always a complete response with status 200."""

    text: str  # the assistant's message; empty for embeddings
    finish: str | None  # "stop", "length" …
    body: Mapping[str, Any]  # the whole response


class ItemFailed(Exception):
    """The item cannot have a result; no repetition would help."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.seen)
        self.reason = reason


class NotValid(Exception):
    """An answer that cannot be used: the same step is asked again, as often as the job allows.

    Raised by a check, with a sentence that tells the model's fault. After the last time the item
    fails with the cause "not valid" and this sentence.
    """

    def __init__(self, seen: str, seen_zh: str) -> None:
        super().__init__(seen)
        self.seen, self.seen_zh = seen, seen_zh


class Check(Protocol):
    """Looks at an answer before it is remembered; returns what the task gets, or refuses it."""

    def __call__(self, answer: Answer) -> Any:
        """The checked value; raises `NotValid`."""
        ...


class Tools(Protocol):
    """What a task may use."""

    @property
    def context_tokens(self) -> int:
        """The context of one slot: prompt and answer together have to fit."""
        ...

    async def count_tokens(self, text: str) -> int:
        """How many tokens the model sees in a text, by its own tokenizer; remembered."""
        ...

    async def ask(self, request: Request, check: Check | None = None) -> Any:
        """The answer, as `check` returns it (without one, the `Answer` itself).

        Repeated where that may help; raises `ItemFailed` where it does not. Asked twice with the
        same `step`, also after a crash, it gives the first accepted answer again. Several may be
        awaited at once (`asyncio.gather`).
        """
        ...

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]] | None:
        """A vector for each text; None: the served model cannot."""
        ...


class Task(Protocol):
    """What turns an item into its result."""

    async def __call__(self, item: Item, tools: Tools) -> Result:
        """The result; raises `ItemFailed`."""
        ...
