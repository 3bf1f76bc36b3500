"""Walks through a file's header in bounded steps, whatever lengths the header claims."""

import struct
from collections.abc import Callable

from workhorse.errors import AppError
from workhorse.models.refusals import damaged, truncated
from workhorse.units import MIB, show_bytes

# The one seam to the bytes: (offset, size) -> exactly `size` bytes, or fewer at the end.
ReadAt = Callable[[int, int], bytes]

# No header is longer than this. The largest known ones, with a vocabulary of 262,144 tokens and
# its merges, have about 16 MB (gemma 3, 2025). A hostile file of nothing but empty texts, eight
# million of them, costs about a second at this bound.
HEADER_BYTES_MAX = 64 * MIB

# A kept text: names, licence, chat template. The longest template known has 40 kB (2026-11).
TEXT_BYTES_MAX = MIB

_LENGTH = struct.Struct("<Q")


class Cursor:
    """A position in the header, with a window of `chunk_bytes` read ahead of it.

    Every read is checked against the file's size and `HEADER_BYTES_MAX` first, so a length taken
    from a hostile file never becomes an allocation. Raises AppError, nothing else.
    """

    def __init__(self, read_at: ReadAt, size_bytes: int, name: str, chunk_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.name = name
        self._read_at = read_at
        self._chunk_bytes = chunk_bytes
        self._window = b""
        self._start = 0  # offset of the window in the file
        self._at = 0  # offset of the cursor in the window

    @property
    def position(self) -> int:
        """Offset of the next byte in the file."""
        return self._start + self._at

    def take(self, n_bytes: int) -> bytes:
        """The next `n_bytes` bytes."""
        if self._at + n_bytes > len(self._window):
            self._refill(n_bytes)
        taken = self._window[self._at : self._at + n_bytes]
        self._at += n_bytes
        return taken

    def skip(self, n_bytes: int) -> None:
        """Pass over `n_bytes` bytes without reading them."""
        self._check(n_bytes)
        self._at += n_bytes

    def unpack(self, form: struct.Struct) -> tuple[int | float, ...]:
        """The next values of a fixed layout."""
        return form.unpack(self.take(form.size))

    def length(self) -> int:
        """An unsigned 64-bit number: a length or a count."""
        return int.from_bytes(self.take(8), "little")

    def text(self, what: str, max_bytes: int = TEXT_BYTES_MAX) -> str:
        """A text with its length before it; bytes that are not UTF-8 become U+FFFD."""
        n_bytes = self.length()
        if n_bytes > max_bytes:
            raise damaged(
                self.name,
                f"{what} claims a length of {n_bytes} bytes, {max_bytes} at most are believable",
                f"{what} 声称长 {n_bytes} 字节，合理上限为 {max_bytes} 字节",
            )
        return self.take(n_bytes).decode("utf-8", errors="replace")

    def skip_texts(self, count: int) -> None:
        """Pass over `count` texts; a vocabulary of 150,000 takes some 20 ms."""
        self._check(8 * count)
        unpack_from = _LENGTH.unpack_from
        while count:
            self._check(8)
            if self._at + 8 > len(self._window):
                self._refill(8)
            window, at = self._window, self._at
            last = len(window) - 8
            while count and at <= last:
                at += 8 + unpack_from(window, at)[0]
                count -= 1
            self._at = at
        self._check(0)

    def _refill(self, n_bytes: int) -> None:
        self._check(n_bytes)
        start = self.position
        wanted = min(max(n_bytes, self._chunk_bytes), self.size_bytes - start)
        window = self._read_at(start, wanted)
        if len(window) < n_bytes:
            raise self._cut_off(start + n_bytes)
        self._window, self._start, self._at = window, start, 0

    def _check(self, n_bytes: int) -> None:
        end = self.position + n_bytes
        if end > self.size_bytes:
            raise self._cut_off(end)
        if end > HEADER_BYTES_MAX:
            raise damaged(
                self.name,
                f"it would be longer than {show_bytes(HEADER_BYTES_MAX)}, which no model's is",
                f"文件头超过 {show_bytes(HEADER_BYTES_MAX)}，没有模型会如此",
            )

    def _cut_off(self, end: int) -> AppError:
        # A length from a damaged header can have twenty digits: say only where the file ends.
        return truncated(
            self.name,
            f"the header goes on after the end of the file at {show_bytes(self.size_bytes)}"
            if end < 2 * HEADER_BYTES_MAX
            else "its header points far behind the end of the file",
            f"文件在 {show_bytes(self.size_bytes)} 处结束，而文件头尚未读完"
            if end < 2 * HEADER_BYTES_MAX
            else "文件头指向了文件末尾之后很远的位置",
        )
