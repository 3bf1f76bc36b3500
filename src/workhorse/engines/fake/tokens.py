"""The fake engine's tokenizer and the text it answers with. Pure.

A token is four bytes of UTF-8, so every text and every token list has one image and comes back
unchanged. The same prompt and seed always give the same answer, so a disturbed stream can be
compared with an undisturbed one.
"""

import hashlib
from collections.abc import Sequence

TOKEN_BYTES = 4

# Three letters and a space are one token, so an answer of n tokens is tokenized into n tokens.
# 64 words: one byte of the digest picks one without bias.
WORDS = (  # noqa: SIM905  (64 quoted words are harder to read)
    "act add age air all arm art ask axe bag bed big box boy bus buy can cap car cat "
    "cow cup cut day dog dry ear eat egg end eye far fig fix fly fog fox fun gas get "
    "hat hen hot ice ink jar job key law leg map net oak old owl pen pie red sea sky "
    "sun tea toy van"
).split()
GARBAGE = "GGGG"


def to_tokens(text: str) -> list[int]:
    """The tokens of a text."""
    data = text.encode("utf-8", errors="replace")
    # The byte 1 on top keeps the length of a short last piece and its zero bytes.
    return [
        int.from_bytes(data[at : at + TOKEN_BYTES] + b"\x01", "little")
        for at in range(0, len(data), TOKEN_BYTES)
    ]


def to_bytes(token: int) -> bytes:
    """The bytes of one token; `<id>` for an id that no text gives."""
    data = token.to_bytes(max(1, (token.bit_length() + 7) // 8), "little") if token > 0 else b""
    if 2 <= len(data) <= TOKEN_BYTES + 1 and data[-1] == 1:
        return data[:-1]
    return f"<{token}>".encode()


def to_text(tokens: Sequence[int]) -> str:
    """The text of some tokens."""
    return b"".join(to_bytes(token) for token in tokens).decode("utf-8", errors="replace")


def say(
    prompt: Sequence[int], *, seed: int, limit: int, natural: bool, length: int | None
) -> tuple[list[str], bool]:
    """The pieces of the answer to `prompt`, one a token, and whether it ended by itself.

    `natural`: the answer may end before `limit`, after `length` tokens or, when that is None,
    after 24 to 95 that depend on the prompt. Otherwise it has exactly `limit` pieces.
    """
    key = hashlib.shake_256(f"{seed}:{','.join(map(str, prompt))}".encode())
    if natural:
        end = 24 + key.digest(1)[0] % 72 if length is None else length
        if end < limit:
            return _pieces(key.digest(end)), True
    return _pieces(key.digest(limit)), False


def _pieces(digest: bytes) -> list[str]:
    return [f" {WORDS[byte % len(WORDS)]}" for byte in digest]


def cut_at_stop(pieces: list[str], stops: Sequence[str]) -> tuple[list[str], str | None]:
    """The pieces before the first of the stop words, and that word; None: none came."""
    text = "".join(pieces)
    found = [(text.find(stop), stop) for stop in stops if stop and stop in text]
    if not found:
        return pieces, None
    left, word = min(found)
    kept = []
    for piece in pieces:
        if left <= 0:
            break
        kept.append(piece[:left])
        left -= len(piece)
    return kept, word


def embedding(tokens: Sequence[int], *, size: int) -> list[float]:
    """A vector of length one that depends on the tokens alone."""
    digest = hashlib.shake_256(",".join(map(str, tokens)).encode()).digest(size)
    raw = [byte - 127.5 for byte in digest]  # never all zero
    length = sum(value * value for value in raw) ** 0.5
    return [value / length for value in raw]
