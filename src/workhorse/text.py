"""What a person reads, in the two languages of our users.

A sentence is written where it is meant, both languages side by side, so that a record carries
its own words and a stored one stays readable without the version that wrote it.
"""

from dataclasses import dataclass
from typing import Literal

Language = Literal["en", "zh"]


@dataclass(frozen=True, slots=True)
class Text:
    """One sentence or label in English and Chinese."""

    en: str
    zh: str

    def in_language(self, language: Language) -> str:
        """The words for a reader of `language`."""
        return self.zh if language == "zh" else self.en


def same(words: str) -> Text:
    """A text that is the same in both languages: a name, a path, a command line."""
    return Text(words, words)
