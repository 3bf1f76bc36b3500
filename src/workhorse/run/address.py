"""Where a running engine answers, and the key without which it does not. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol


class Asking(Protocol):
    """A request to an engine whose answer is not over."""

    @property
    def received_bytes(self) -> int:
        """How much of the answer has come."""
        ...

    def lose(self, why: str) -> None:
        """Nothing more will come: whoever waits for it learns that now."""
        ...


class Link:
    """The way to an engine on another machine, which nobody here sees live or die.

    Each request is in `asking` until its answer is over, so that the engine's owner can end those
    of an engine that is gone. `failed` is told of each that got no answer of the engine;
    `is_its_own` says by the headers, names in lower case, whether an answer is the engine's or
    that of a proxy in between.
    """

    def __init__(
        self, failed: Callable[[str], None], is_its_own: Callable[[Mapping[str, str]], bool]
    ) -> None:
        self.asking: set[Asking] = set()
        self.failed, self.is_its_own = failed, is_its_own


@dataclass(frozen=True, slots=True)
class Address:
    """One start of an engine as those see it who ask it."""

    # Such as http://127.0.0.1:40001, without a slash at the end; its host is an IP address. May
    # have a path, which comes before that of each request.
    url: str
    key: str | None = field(default=None, repr=False)  # of this start alone; None: it asks for none
    link: Link | None = field(default=None, repr=False, compare=False)  # None: on this machine

    @property
    def headers(self) -> dict[str, str]:
        """What a request has to bring."""
        return {} if self.key is None else {"Authorization": f"Bearer {self.key}"}
