"""The raw bytes of one HTTP/1.1 answer, taken apart after it is over. Pure.

While requests run, bytes are only noted: at 256 streams a client that parses as it reads takes
four times the CPU time (36-47 µs a piece against 8, 2026-11) and becomes what is measured.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# Of an answer that is no HTTP: reading on for a head would take all of it.
HEAD_BYTES_MAX = 64 * 1024

STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9][0-9])(?= |\r|$)")
LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,15})[ \t]*(?:\r|$)", re.IGNORECASE)
CHUNKED = re.compile(rb"\r\ntransfer-encoding:[^\r]*chunked", re.IGNORECASE)
CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;|\r|$)")

NO_HTTP = "what came is no HTTP"
CLOSED = "Connection closed without an answer"
BROKE_OFF = "Connection closed in the middle of the answer"

Reads = Sequence[tuple[float, bytes]]


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """The status, and the body's bytes with the time of the read that brought each part.

    `status` is None for what is no HTTP; `problem` tells what is wrong with it or missing.
    """

    status: int | None
    reads: Reads
    problem: str | None


def read_answer(raw: Reads) -> HttpAnswer:
    """What the bytes of a connection say."""
    head, body = split_head(raw)
    status = STATUS.match(head)
    if status is None:
        return HttpAnswer(None, (), NO_HTTP if raw else CLOSED)
    code = int(status[1])
    if CHUNKED.search(head):
        parts: list[tuple[float, bytes]] = []
        whole = dechunk(body, parts)
        return HttpAnswer(code, parts, None if whole else BROKE_OFF)
    length = LENGTH.search(head)
    missing = length is not None and sum(len(data) for _, data in body) < int(length[1])
    return HttpAnswer(code, body, BROKE_OFF if missing else None)


def split_head(raw: Reads) -> tuple[bytes, Reads]:
    """The head without its blank line, and the reads after it; heads of 1xx are passed over."""
    head = b""
    for number, (time_s, data) in enumerate(raw):
        head += data
        while (end := head.find(b"\r\n\r\n")) >= 0:
            status = STATUS.match(head)
            if status is None or not status[1].startswith(b"1"):
                rest = head[end + 4 :]
                first = ((time_s, rest),) if rest else ()
                return head[:end], (*first, *raw[number + 1 :])
            head = head[end + 4 :]
        if len(head) > HEAD_BYTES_MAX:
            break
    return head, ()


def dechunk(reads: Reads, parts: list[tuple[float, bytes]]) -> bool:
    """Put the data of each chunk into `parts`; True when the last chunk came."""
    chunks = Chunks()
    for time_s, data in reads:
        if found := b"".join(chunks.feed(data)):
            parts.append((time_s, found))
        if chunks.done:
            return True
    return False


class Chunks:
    """A body in chunks (RFC 9112, 7.1), from blocks of any size."""

    def __init__(self) -> None:
        self.done = False  # the last chunk came, or something that is none
        self._rest = b""  # of a line that is not whole yet
        self._left = 0  # bytes of the current chunk

    def feed(self, block: bytes) -> Iterator[bytes]:
        """The data in a block."""
        block, self._rest = self._rest + block, b""
        at = 0
        while at < len(block) and not self.done:
            if self._left:
                part = block[at : at + self._left]
                self._left -= len(part)
                at += len(part)
                yield part
                continue
            end = block.find(b"\r\n", at)
            if end < 0:
                self._rest = block[at:]
                return
            line, at = block[at:end], end + 2
            if not line:
                continue  # the end of the chunk before
            size = CHUNK_SIZE.match(line)
            self._left = int(size[1], 16) if size else 0
            self.done = not self._left
