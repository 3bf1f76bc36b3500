"""Text out of bytes, in whatever encoding they are.

What says its own name is believed first (a byte order mark, a Python file's cookie, a page's
`<meta>`), then UTF-8, which nothing else passes for. The rest is guessed by charset-normalizer
among the encodings that documents are found in.
"""

import codecs
import io
import re
import tokenize
from importlib.util import find_spec
from typing import NamedTuple

from workhorse.batch.documents.refusal import Unreadable, missing

SAMPLE_BYTES = 64 * 1024  # enough to tell an encoding by
# Of the bytes that are no ASCII in a UTF-8 file, so many may be broken: a cut-off character, a
# line pasted from elsewhere. With more of them it is another encoding.
BROKEN_SHARE_MAX = 0.02
CONTROL_SHARE_MAX = 0.02  # of the characters of a text; programs and pictures have far more
ZERO_SHARE_MIN = 0.05  # of the bytes of UTF-16; spaces, digits and line ends have one each
_CONTROLS = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")  # not \t \n \v \f \r, nor escape
_MARKS = (  # UTF-32 first: its mark begins as UTF-16's
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_CANDIDATES = (
    "gb18030", "big5hkscs", "shift_jis", "euc_jp", "euc_kr", "cp1252", "cp1251",
)  # fmt: skip
# The WHATWG's Encoding Standard reads a smaller set's name as its superset's (2026-11): what calls
# itself gb2312 or iso-8859-1 has characters of GBK or windows-1252 in it as a rule.
_SUPERSETS = {
    "gb2312": "gb18030", "gbk": "gb18030", "big5": "big5hkscs", "iso8859-1": "cp1252",
    "ascii": "cp1252", "euc_kr": "cp949", "shift_jis": "cp932",
}  # fmt: skip
COMMON_SHARE_MIN = 0.9
_PAIRS = re.compile(rb"[\x81-\xfe][\x40-\xfe]")
_COMMON = {
    "gb18030": re.compile(rb"(?:[\xb0-\xd7\xa1\xa3][\xa1-\xfe])"),
    "big5hkscs": re.compile(rb"(?:[\xa4-\xc6\xa1][\x40-\x7e\xa1-\xfe])"),
}
# Python calls these text encodings too; they are ways to write one text as another.
_NO_ENCODINGS = ("idna", "punycode", "unicode_escape", "raw_unicode_escape", "undefined")


class Decoded(NamedTuple):
    """A text, and the Python codec that writes it as it was."""

    text: str
    charset: str


def decoded(data: bytes, *, named: str | None = None) -> Decoded:
    """The text in `data`; line ends stay as they are. `named`: what the document says of itself.

    Raises Unreadable for what is no text, AppError where charset-normalizer is needed and missing.
    """
    for mark, charset in _MARKS:
        if data.startswith(mark):
            return _checked(_strictly(data, charset) or _replaced(data, charset))
    found = _utf16_without_mark(data) or _strictly(data, "utf-8")
    if not found and named and (own := codec_of(named)):
        found = _strictly(data, own)
    if not found and b"\0" in data:
        raise binary()
    return _checked(found or _nearly_utf8(data) or _guessed(data))


def decoded_python(data: bytes) -> Decoded:
    """The text of a Python file, by its own rules (PEP 263); raises Unreadable."""
    try:
        charset, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return Decoded(data.decode(charset), charset)
    except (SyntaxError, UnicodeError, LookupError) as error:
        if b"\0" in data:
            raise binary() from error
        why = str(error)[:200]
        raise Unreadable(
            f"The file is not in the encoding that it has by Python's rules: {why}.",
            f"文件内容与其按 Python 规则声明的编码不符：{why}。",
        ) from error


def codec_of(label: str) -> str | None:
    """The Python codec for a name that a document gives; None: there is none for text."""
    try:
        found = codecs.lookup(label.strip())
    except (LookupError, ValueError):
        return None
    if not found._is_text_encoding or found.name in _NO_ENCODINGS:
        return None
    return _SUPERSETS.get(found.name, found.name)


def binary() -> Unreadable:
    """What is no text at all."""
    return Unreadable("The file holds binary data, no text.", "文件内容是二进制数据，不是文本。")


def _strictly(data: bytes, charset: str) -> Decoded | None:
    try:
        return Decoded(data.decode(charset), charset)
    except (UnicodeError, ValueError):
        return None


def _replaced(data: bytes, charset: str) -> Decoded:
    return Decoded(data.decode(charset, "replace"), charset)


def _checked(found: Decoded) -> Decoded:
    sample = found.text[:SAMPLE_BYTES]
    if len(_CONTROLS.findall(sample)) > CONTROL_SHARE_MAX * len(sample):
        raise binary()
    return found


def _utf16_without_mark(data: bytes) -> Decoded | None:
    """UTF-16 by its zeros: of each ASCII character one byte is, and always the same one."""
    sample = data[:SAMPLE_BYTES]
    even, odd = sample[::2].count(0), sample[1::2].count(0)
    if len(data) % 2 or even + odd < ZERO_SHARE_MIN * len(sample):
        return None
    charset = "utf-16-le" if odd > even else "utf-16-be"
    found = _strictly(data, charset)
    if found is None or min(even, odd) > 0.1 * max(even, odd) or _CONTROLS.search(found.text):
        return None
    return found


def _nearly_utf8(data: bytes) -> Decoded | None:
    text = data.decode("utf-8", "replace")
    good = sum(1 for letter in text if letter > "\x7f" and letter != "\ufffd")
    broken = text.count("\ufffd")
    # A single odd byte in a long ASCII text is no sign of UTF-8.
    return Decoded(text, "utf-8") if broken <= BROKEN_SHARE_MAX * good else None


def _guessed(data: bytes) -> Decoded:
    if find_spec("charset_normalizer") is None:
        raise missing("charset-normalizer", "a text that is not UTF-8", "非 UTF-8 文本")
    from charset_normalizer import from_bytes

    sample = beginning(data)
    best = from_bytes(sample, cp_isolation=list(_CANDIDATES)).best()
    guess = codec_of(best.encoding) if best else None
    chinese = None if guess in ("cp949", "cp1251", "euc_jp") else _common_chinese(sample)
    order = [charset for charset in (chinese, guess, "gb18030", "big5hkscs") if charset]
    for charset in order:
        if found := _strictly(data, charset):
            return found
    return _replaced(data, guess or "cp1252")


def _common_chinese(sample: bytes) -> str | None:
    """The Chinese encoding in which all but a few of the characters are common ones.

    In a line or two the guess has too little to go by. Both sets have their common characters in
    a range of their own: GB/T 2312 level 1, Big5 level 1 (2026-11).
    """
    pairs = _PAIRS.findall(sample)
    shares = {
        charset: len(common.findall(b" ".join(pairs))) / max(1, len(pairs))
        for charset, common in _COMMON.items()
    }
    charset = max(shares, key=lambda one: shares[one])
    return charset if shares[charset] >= COMMON_SHARE_MIN else None


def beginning(data: bytes) -> bytes:
    """The first SAMPLE_BYTES, up to a line's end: half a character would rule its encoding out."""
    if len(data) < SAMPLE_BYTES:
        return data
    sample = data[:SAMPLE_BYTES]
    end = sample.rfind(b"\n") + 1
    if b"\0" in sample:  # UTF-16, where a line end has a zero on one side
        return sample[: end + end % 2]
    # No line ends: up to a space or a stop, which are in no encoding the half of a character.
    return sample[:end] or sample[: max(map(sample.rfind, b" ,.!")) + 1] or sample
