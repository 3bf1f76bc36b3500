"""A long command in stages: a line where each begins, and a bar while it lasts."""

import sys
from types import TracebackType
from typing import Self

from workhorse.cli.progress import LateBar
from workhorse.text import Language, Text


class Stages:
    """Tells on stderr which stage it is and how far that is, with the time left."""

    def __init__(self, language: Language) -> None:
        self._language = language
        self._bar: LateBar | None = None

    def stage(self, words: Text) -> None:
        """The next stage begins."""
        self.close()
        print(f"· {words.in_language(self._language)}", file=sys.stderr, flush=True)
        self._bar = LateBar(words, self._language)

    def progress(self, done: int, total: int | None) -> None:
        """Bytes, steps or chunks of this stage."""
        if self._bar is not None:
            self._bar.step(done, total)

    def close(self) -> None:
        """Take the bar down."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()
