"""What is said to a person, in both languages, without the rest of workhorse."""

import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

# (bytes done, bytes in all)
Progress = Callable[[int, int], None]
SHOW_AFTER_S = 2.0  # a shorter wait needs no line: it would flash and be gone
REDRAW_S = 0.2


class Words(NamedTuple):
    """One sentence in English and Chinese."""

    en: str
    zh: str

    def told(self) -> str:
        """The words for who reads them."""
        return self.zh if speaks_chinese() else self.en


class Refusal(Exception):
    """An error that a person can act on: what happened, one next step, and the exit code."""

    def __init__(self, what: Words, next_step: Words, exit_code: int = 1) -> None:
        super().__init__(f"{what.en} {next_step.en}")
        self.what = what
        self.next_step = next_step
        self.exit_code = exit_code


def speaks_chinese() -> bool:
    """Whether the reader's language is Chinese: `WORKHORSE_LANG`, else the locale's."""
    names = ("WORKHORSE_LANG", "LC_ALL", "LC_MESSAGES", "LANG")
    said = next((os.environ[name] for name in names if os.environ.get(name)), "en")
    return said.lower().startswith("zh")


def listed(names: Sequence[str]) -> str:
    """The first few of some names."""
    more = f" (+{len(names) - 5})" if len(names) > 5 else ""
    return ", ".join(name[:120] for name in names[:5]) + more


def shown_bytes(n_bytes: int) -> str:
    """A size such as `92 MiB`."""
    for exponent, name in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if n_bytes >= 1024**exponent:
            return f"{n_bytes / 1024**exponent:.1f} {name}"
    return f"{n_bytes} B"


class Line:
    """One line on a terminal that says how far the work is and when it ends."""

    def __init__(self) -> None:
        self._label = ""
        self._began_s = self._drawn_s = 0.0
        self._began_bytes = 0
        self._drawn = False

    def stage(self, words: Words) -> None:
        """The next stage begins."""
        self.clear()
        self._label, self._began_s = words.told(), 0.0
        print(f"· {self._label}", file=sys.stderr, flush=True)

    def progress(self, done_bytes: int, total_bytes: int) -> None:
        """Bytes of this stage."""
        now_s = time.monotonic()
        if not self._began_s:
            self._began_s, self._began_bytes = now_s, done_bytes
        took_s = now_s - self._began_s
        if took_s < SHOW_AFTER_S or now_s - self._drawn_s < REDRAW_S or not sys.stderr.isatty():
            return
        self._drawn_s, self._drawn = now_s, True
        rate = max(done_bytes - self._began_bytes, 1) / took_s
        minutes, seconds = divmod(round((total_bytes - done_bytes) / rate), 60)
        share = done_bytes / max(total_bytes, 1)
        words = f"  {share:4.0%}  {shown_bytes(done_bytes)} / {shown_bytes(total_bytes)}"
        print(f"\r\033[K{words}  {minutes}:{seconds:02d}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Take the line away."""
        if self._drawn:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
            self._drawn = False
