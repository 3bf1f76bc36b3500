"""Tables and lines of any length, read as they come: a file of gigabytes takes no memory."""

import codecs
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from workhorse.batch.documents.json_lines import LINE_BYTES_MAX
from workhorse.batch.documents.tables import SEP_LINE, Row, csv_rows, delimiter_of
from workhorse.batch.documents.text import SAMPLE_BYTES, beginning, decoded

HEAD_CHARS_MAX = 1_000_000
CHUNK_BYTES = 2**20
_UTF8 = ("utf-8", "utf-8-sig")


def charset_of(path: Path) -> str:
    """The encoding of a file of text, told by all of it; raises Unreadable, OSError."""
    with path.open("rb") as file:
        charset = decoded(beginning(file.read(SAMPLE_BYTES))).charset
        if charset not in _UTF8:
            return charset
        odd = _first_odd_place(file)
        if odd is None:
            return charset
        # Nothing but ASCII so far, perhaps: the part where it is something else tells.
        file.seek(max(0, odd - 1024))
        return decoded(beginning(file.read(SAMPLE_BYTES).partition(b"\n")[2])).charset


def _first_odd_place(file: BinaryIO) -> int | None:
    """Where a file is no UTF-8; None: it is UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    at = 0
    file.seek(0)
    while chunk := file.read(CHUNK_BYTES):
        try:
            decoder.decode(chunk)
        except UnicodeDecodeError as error:
            return max(0, at + error.start - 4)  # the decoder may have had bytes from before
        at += len(chunk)
    return None


@contextmanager
def csv_text(path: Path) -> Iterator[Iterator[Row]]:
    """The rows of a CSV file; a broken character is U+FFFD. Raises Unreadable, AppError."""
    with path.open(encoding=charset_of(path), errors="replace", newline="") as file:
        head = file.readline(HEAD_CHARS_MAX)
        delimiter, first = delimiter_of(head), 1
        if SEP_LINE.match(head):
            first = 2
        else:
            file.seek(0)
        yield csv_rows(file, delimiter, first)


def json_lines(path: Path) -> Iterator[bytes]:
    """The lines of a JSONL file as UTF-8; one longer than LINE_BYTES_MAX comes cut, and longer."""
    charset = charset_of(path)
    if charset not in _UTF8:
        with path.open(encoding=charset, errors="replace", newline="\n") as texts:
            while text := texts.readline(LINE_BYTES_MAX + 1):
                yield text.encode("utf-8", "replace")
        return
    with path.open("rb") as file:
        while line := file.readline(LINE_BYTES_MAX + 1):
            rest = line
            while len(rest) > LINE_BYTES_MAX and not rest.endswith(b"\n"):
                rest = file.readline(LINE_BYTES_MAX + 1)
            yield line
