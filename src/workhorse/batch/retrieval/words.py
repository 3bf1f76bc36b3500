"""A text as the words that a search compares: in Chinese, in English, in code. Pure."""

import re
import unicodedata
from collections.abc import Callable, Iterator
from functools import cache
from typing import cast

# Written without spaces: Chinese, kana; hangul's words take endings that a search should not see.
_UNSPACED = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_RUN = re.compile(rf"(?P<unspaced>[{_UNSPACED}]+)|(?P<word>[^\W{_UNSPACED}]+)")
# `parseHTTPHeader`, `max_tokens`, `E5v4` at the places where a reader hears a new word.
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[^\WA-Z\d_]+|\d+")
_LONGEST_WORD_CHARS = 60  # longer ones are data


def words_of(text: str) -> list[str]:
    """The words of a text, in order, each as often as it is there.

    English words lose their endings; a name of code is there whole and in its parts; of Chinese
    every two neighbouring characters are a word, which needs no dictionary and finds the same.
    """
    return list(_words(unicodedata.normalize("NFKC", text)))


def _words(text: str) -> Iterator[str]:
    for match in _RUN.finditer(text):
        run = match[0]
        if match["unspaced"]:
            yield from (run[at : at + 2] for at in range(max(1, len(run) - 1)))
        elif len(run) <= _LONGEST_WORD_CHARS:
            parts = _PART.findall(run)
            if len(parts) > 1:
                yield _stem(run.casefold())
            yield from (_stem(part.casefold()) for part in parts or [run])


@cache
def _stemmer() -> Callable[[str], str]:
    import snowballstemmer

    return cast("Callable[[str], str]", snowballstemmer.stemmer("english").stemWord)


@cache
def _stem(word: str) -> str:
    return _stemmer()(word) if word.isascii() and len(word) > 2 else word


@cache
def said_everywhere() -> frozenset[str]:
    """Words of a question that say nothing of its subject, as `words_of` gives them."""
    from bm25s.stopwords import STOPWORDS_CHINESE, STOPWORDS_EN_PLUS

    return frozenset(words_of(" ".join([*STOPWORDS_CHINESE, *STOPWORDS_EN_PLUS])))


def asked_words(question: str) -> list[str]:
    """The words of a question that a passage has to have something of."""
    return [word for word in words_of(question) if word not in said_everywhere()]
