"""HTTP/1.1 answers as an engine sends them, from blocks of bytes of any size. Pure.

Only what an engine on the same machine needs: one answer a connection, of a known length, in
chunks, or up to the end of the connection (RFC 9112, 6 and 7).
"""

import re
from dataclasses import dataclass

LARGEST_HEAD_BYTES = 64 * 1024
LARGEST_LINE_BYTES = 4096  # of a chunk's size with its extensions, or of a trailer

_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([1-5][0-9][0-9])(?: |$)")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;|$)")
_NO_BODY = (204, 304)


class BrokenAnswerError(Exception):
    """What came is no HTTP, or ended before it was complete."""


@dataclass(frozen=True, slots=True)
class Head:
    """The status and the headers of an answer; names in lower case, the last of a name counts."""

    status: int
    headers: dict[str, str]

    @property
    def content_type(self) -> str:
        """Without its parameters, in lower case; empty when there is none."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


class Answer:
    """Takes in the blocks of one answer; `head` is there once it is whole, `done` at the end."""

    def __init__(self) -> None:
        self.head: Head | None = None
        self.done = False
        self._rest = b""  # of a head or a line that is not whole yet
        self._left = 0  # bytes of the body, or of the current chunk, still to come
        self._chunked = False
        self._to_the_end = False
        self._after_chunk = False  # its line end is still to come
        self._trailer = False

    def feed(self, block: bytes) -> bytes:
        """The part of the body that a block holds. Raises `BrokenAnswerError`."""
        if self.head is None:
            block = self._take_head(block)
            if self.head is None:
                return b""
        if self.done:
            return b""
        if self._chunked:
            return self._take_chunks(block)
        if self._to_the_end:
            return block
        block = block[: self._left]
        self._left -= len(block)
        self.done = not self._left
        return block

    def end(self) -> None:
        """The connection has ended. Raises `BrokenAnswerError` unless the answer was whole."""
        if self._to_the_end:
            self.done = True
        if not self.done:
            raise BrokenAnswerError("the connection ended in the middle of an answer")

    def _take_head(self, block: bytes) -> bytes:
        """Read the head when it is whole; returns what comes after it."""
        rest = self._rest + block
        while True:
            head, blank, rest_after = rest.partition(b"\r\n\r\n")
            if not blank:
                if len(rest) > LARGEST_HEAD_BYTES:
                    raise BrokenAnswerError("the head of an answer does not end")
                self._rest = rest
                return b""
            found = read_head(head)
            if found.status >= 200:
                self._rest = b""
                self._begin(found)
                return rest_after
            rest = rest_after  # 100 Continue and the like: the answer comes after it

    def _begin(self, head: Head) -> None:
        self.head = head
        self._chunked = "chunked" in head.headers.get("transfer-encoding", "").lower()
        length = head.headers.get("content-length")
        if head.status in _NO_BODY:
            self._chunked = False
            self.done = True
        elif not self._chunked and length is None:
            self._to_the_end = True
        elif not self._chunked and length is not None:
            if not (length.isascii() and length.isdigit()):
                raise BrokenAnswerError(f"a length of {length[:40]!r}")
            self._left = int(length)
            self.done = not self._left

    def _take_chunks(self, block: bytes) -> bytes:
        if self._rest:
            block, self._rest = self._rest + block, b""
        parts: list[bytes] = []
        at, size = 0, len(block)
        while at < size and not self.done:
            if self._left:
                part = block[at : at + self._left]
                parts.append(part)
                at += len(part)
                self._left -= len(part)
                self._after_chunk = not self._left
                continue
            line_end = block.find(b"\r\n", at)
            if line_end < 0:
                if size - at > LARGEST_LINE_BYTES:
                    raise BrokenAnswerError("a line of an answer does not end")
                self._rest = block[at:]
                break
            self._take_line(block[at:line_end])
            at = line_end + 2
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _take_line(self, line: bytes) -> None:
        if self._trailer:
            self.done = not line
        elif self._after_chunk:
            if line:
                raise BrokenAnswerError("a chunk is longer than it says")
            self._after_chunk = False
        elif (match := _CHUNK_SIZE.match(line)) is None:
            raise BrokenAnswerError(f"a chunk of size {line[:40]!r}")
        else:
            self._left = int(match[1], 16)
            self._trailer = not self._left


def read_head(head: bytes) -> Head:
    """The status and headers in the bytes before the blank line. Raises `BrokenAnswerError`."""
    first, *lines = head.split(b"\r\n")
    if (match := _STATUS_LINE.match(first)) is None:
        raise BrokenAnswerError(f"an answer that begins with {first[:40]!r}")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon:
            raise BrokenAnswerError(f"a header {line[:40]!r}")
        headers[name.decode("latin-1").strip().lower()] = value.decode("latin-1").strip()
    return Head(int(match[1]), headers)
