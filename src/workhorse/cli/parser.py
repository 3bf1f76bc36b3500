"""The command line's own mistakes in both languages: argparse knows English alone."""

import argparse
import re
from collections.abc import Callable
from typing import Any, NoReturn

from workhorse.cli.show import print_error
from workhorse.errors import EXIT_USAGE, AppError
from workhorse.text import Language, Text, same

_BETWEEN = "\0"  # argparse takes one text of an argument's type

# What argparse says (Python 3.11 to 3.13, 2026-11), and the same in both languages.
_WORDS: tuple[tuple[str, Callable[[re.Match[str]], Text]], ...] = (
    (
        r"the following arguments are required: (.*)",
        lambda m: Text(f"{m[1]} is missing", f"缺少 {m[1]}"),
    ),
    (
        r"unrecognized arguments: (.*)",
        lambda m: Text(f"There is no {m[1]} here", f"没有 {m[1]} 这样的参数"),
    ),
    (
        r"argument (.*?): invalid choice: (.*?) \(choose from (.*)\)",
        lambda m: Text(
            f"{m[1]} cannot be {m[2]}; it is one of {m[3]}", f"{m[1]} 不能是 {m[2]}，可选：{m[3]}"
        ),
    ),
    (
        r"argument (.*?): invalid \S+ value: (.*)",
        lambda m: Text(f"{m[1]} cannot be {m[2]}", f"{m[1]} 不能是 {m[2]}"),
    ),
    (
        r"argument (.*?): expected (?:one|at least one) argument",
        lambda m: Text(f"{m[1]} needs a value", f"{m[1]} 需要一个值"),
    ),
    (
        r"ambiguous option: (\S+) could match (.*)",
        lambda m: Text(f"{m[1]} may mean {m[2]}", f"{m[1]} 可能指 {m[2]}"),
    ),
    (
        rf"argument (.*?): (.*){_BETWEEN}(.*)",
        lambda m: Text(f"{m[1]}: {m[2]}", f"{m[1]}：{m[3]}"),
    ),
)


class Parser(argparse.ArgumentParser):
    """Tells a mistake as every other error is told, and ends with the exit code for it."""

    def __init__(self, *args: Any, language: Language = "en", **told: Any) -> None:
        super().__init__(*args, **told)
        self.language: Language = language

    def error(self, message: str) -> NoReturn:
        """One sentence and one next step, then the end."""
        step = Text(f"`{self.prog} --help` shows the options.", f"选项见 `{self.prog} --help`。")
        print_error(AppError(in_words(message), step), self.language)
        self.exit(EXIT_USAGE)


def in_words(message: str) -> Text:
    """What argparse says, as a sentence in both languages."""
    for pattern, words in _WORDS:
        if match := re.fullmatch(pattern, message, re.DOTALL):
            told = words(match)
            return Text(f"{told.en}.", f"{told.zh}。")
    return same(message)


def not_taken(why: Text) -> argparse.ArgumentTypeError:
    """The error for a word that an argument's type does not take."""
    return argparse.ArgumentTypeError(f"{why.en}{_BETWEEN}{why.zh}")
