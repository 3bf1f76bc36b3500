"""The way to one remote file: its addresses, its redirects, and any stretch of its bytes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPResponse
from urllib.parse import urlsplit

from workhorse.models.remote import (
    CONTENT_RANGE,
    PARTIAL_CONTENT,
    RANGE_NOT_SATISFIABLE,
    Interrupted,
    refused,
    strong_etag,
    transfer_errors,
    whole_number,
)
from workhorse.models.remote_file import Refused, opened_answer


@dataclass(frozen=True, slots=True)
class Opened:
    """An answer: its bytes begin where they were asked for when it is `ranged`, else at 0."""

    ranged: bool
    total_bytes: int | None
    etag: str | None
    read: Callable[[int], bytes]  # the next bytes, at most so many; b"" at the end


class Door:
    """Opens one file any number of times, from several threads.

    The redirects are followed once and again when the place that they led to refuses: signed
    addresses end. `Authorization` goes to the first host alone.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        headers: Mapping[str, str],
        stall_s: float,
        *,
        direct: bool = False,
    ) -> None:
        self._addresses = list(addresses)
        self._headers = dict(headers)
        self._stall_s = stall_s
        self._direct = direct
        self._at = self._addresses[0]

    @contextmanager
    def opened(self, start: int, end: int | None) -> Iterator[Opened]:
        """The file from `start` up to `end`; the whole of it when `end` is None.

        Raises Refused, Interrupted for what may pass, Unreachable for what will not. A file that
        is empty is an answer of no bytes, however it was asked for.
        """
        at = self._at
        home = at in self._addresses
        headers = dict(self._headers)
        if end is not None:
            headers["Range"] = f"bytes={start}-{end - 1}"
        if _origin(at) != _origin(self._addresses[0]):
            headers.pop("Authorization", None)
        try:
            with opened_answer(at, headers, self._stall_s, direct=self._direct) as (answer, led_to):
                self._at = led_to
                yield self._described(answer, start)
        except Refused as refusal:
            if refusal.status == RANGE_NOT_SATISFIABLE and _total(refusal) == 0:
                yield Opened(True, 0, strong_etag(refusal.headers), lambda _: b"")
            elif home and refusal.status == 404 and at != self._addresses[-1]:
                self._at = self._addresses[self._addresses.index(at) + 1]
                raise Interrupted(str(refusal)) from refusal
            elif not home:
                self._at = self._addresses[0]
                raise Interrupted(str(refusal)) from refusal
            else:
                raise

    def _described(self, answer: HTTPResponse, start: int) -> Opened:
        url = self._addresses[0]
        if answer.headers.get("Content-Encoding", "identity") != "identity":
            raise refused(url, "it sends the file compressed", "发送的是压缩后的文件")

        def read(n_bytes: int) -> bytes:
            with transfer_errors(url):
                chunk: bytes = answer.read1(n_bytes)
                return chunk

        etag = strong_etag(answer.headers)
        if answer.status != PARTIAL_CONTENT:
            if str(answer.headers.get("Content-Type", "")).startswith("text/html"):
                raise refused(url, "it sent a web page instead", "返回的是网页")
            return Opened(False, whole_number(answer.headers.get("Content-Length", "")), etag, read)
        match = CONTENT_RANGE.fullmatch(str(answer.headers.get("Content-Range", "")))
        total = whole_number(match["total"]) if match else None
        if match is None or total is None:
            raise refused(url, "it does not say how long the file is", "未说明文件的大小")
        if match["first"] != str(start):
            raise refused(url, "it sent other bytes than asked for", "发来的不是所请求的字节")
        return Opened(True, total, etag, read)


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc


def _total(refusal: Refused) -> int | None:
    match = CONTENT_RANGE.fullmatch(str(refusal.headers.get("Content-Range", "")))
    return whole_number(match["total"]) if match else None
