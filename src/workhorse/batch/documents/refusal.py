"""Why a document gives no text, and why an input is no input."""

import sys

from workhorse.batch.item import Reason
from workhorse.errors import EXIT_USAGE, AppError
from workhorse.text import Text

WORDS_MAX = 300  # of what a library or a file says


def shown(text: str) -> str:
    """Words of a file or a library, safe to print and not longer than a line or two."""
    plain = "".join(letter if letter.isprintable() else " " for letter in text[: 2 * WORDS_MAX])
    return " ".join(plain.split())[:WORDS_MAX]


class Unreadable(Exception):
    """One document cannot be read; the others can. Both languages, a whole sentence each."""

    def __init__(self, seen: str, seen_zh: str) -> None:
        super().__init__(seen)
        self.seen, self.seen_zh = seen, seen_zh

    @property
    def reason(self) -> Reason:
        """What the item keeps of it."""
        return Reason(cause="unreadable", seen=self.seen, seen_zh=self.seen_zh)


def wrong_input(english: str, chinese: str, next_english: str, next_chinese: str) -> AppError:
    """The input as a whole is not what was meant; nothing of it was read."""
    return AppError(Text(english, chinese), Text(next_english, next_chinese), exit_code=EXIT_USAGE)


def missing(package: str, what: str, what_zh: str) -> AppError:
    """A library of the extra `documents` is needed and not here."""
    install = f"{sys.executable} -m pip install 'workhorse[documents]'"
    return AppError(
        Text(
            f"{package} is not installed, which reads {what}.",
            f"未安装 {package}，无法读取{what_zh}。",
        ),
        Text(f"Install what reads documents: {install}", f"请安装文档读取组件：{install}"),
    )
