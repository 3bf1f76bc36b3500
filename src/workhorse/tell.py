"""Who tells the user how far a long piece of work is."""

from typing import Protocol

from workhorse.text import Text


class Teller(Protocol):
    """Who tells the user how far we are."""

    def stage(self, words: Text) -> None:
        """The next stage begins."""

    def progress(self, done: int, total: int | None) -> None:
        """Steps or bytes of this stage; `total` None: not known."""
