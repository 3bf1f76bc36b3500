"""Reads pieces of a file on a server by range requests; never the whole file."""

import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from email.message import Message
from email.utils import parsedate_to_datetime
from http.client import HTTPResponse
from typing import TypeVar
from urllib.parse import urljoin, urlsplit

from workhorse import __version__
from workhorse.errors import AppError
from workhorse.models.refusals import AGAIN, shown
from workhorse.models.remote import (
    CONTENT_RANGE,
    PARTIAL_CONTENT,
    PASSING_STATUS,
    RANGE_NOT_SATISFIABLE,
    Interrupted,
    Unreachable,
    refused,
    strong_etag,
    transfer_errors,
    whole_number,
)
from workhorse.text import Text
from workhorse.units import MIB, show_bytes

T = TypeVar("T")

TRIES = 4
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0  # a server that asks for more is told to the user instead
STALL_S = 20.0
PIECE_S = 300.0  # one piece may take so long, even when bytes keep dripping
REDIRECTS_MAX = 8
REDIRECTS = (301, 302, 303, 307, 308)
# The header of a 150,000-token vocabulary has 6 to 8 MB: three requests. A part of a split model
# after the first has some kB.
FIRST_PIECE_BYTES = MIB
LARGEST_PIECE_BYTES = 8 * MIB


class Refused(Exception):
    """The server answered with an error that another try does not change."""

    def __init__(self, url: str, status: int, headers: Message) -> None:
        super().__init__(f"HTTP {status}")
        self.url = url
        self.status = status
        self.headers = headers

    def explained(self) -> Unreachable:
        """The error for the user where nothing more is known of the place."""
        if self.status in (401, 403):
            words = Text("it wants a login (HTTP {})", "需要登录（HTTP {}）")
        elif self.status in (404, 410):
            words = Text("it has no such file (HTTP {})", "没有这个文件（HTTP {}）")
        elif self.status in REDIRECTS:
            words = Text("it redirects without end (HTTP {})", "重定向没有尽头（HTTP {}）")
        else:
            words = Text("HTTP {}", "HTTP {}")
        return refused(self.url, words.en.format(self.status), words.zh.format(self.status))


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Redirects become errors: urllib would read the whole body of each and keep every header."""

    def http_error_302(self, *_: object) -> None:
        """Leave it to the next handler, which raises."""

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302  # type: ignore[assignment]


@contextmanager
def opened_answer(
    url: str, headers: Mapping[str, str], stall_s: float = STALL_S, *, direct: bool = False
) -> Iterator[tuple[HTTPResponse, str]]:
    """The answer to a GET and the address that gave it, after its redirects.

    `Authorization` goes to no other host than the one asked; `direct` passes the environment's
    proxies by. Raises Refused for an error status,
    Interrupted for what may pass, Unreachable for what will not.
    """
    first, left = url, dict(headers)
    for _ in range(REDIRECTS_MAX):
        with transfer_errors(url):
            parts, asked = urlsplit(url), urlsplit(first)
        if parts.scheme not in ("http", "https"):
            raise refused(url, "not a http or https address", "不是 http 或 https 地址")
        if (parts.scheme, parts.netloc) != (asked.scheme, asked.netloc):
            left.pop("Authorization", None)
        try:
            with transfer_errors(url):
                answer = _open(url, left, stall_s, direct)
        except Refused as refusal:
            place = str(refusal.headers.get("Location", ""))
            if refusal.status not in REDIRECTS or not place.isascii():
                raise
            last = refusal
            with transfer_errors(url):
                url = urljoin(url, place)
            continue
        with answer:
            yield answer, url
        return
    raise last


def _open(url: str, headers: Mapping[str, str], stall_s: float, direct: bool) -> HTTPResponse:
    request = urllib.request.Request(url, headers=dict(headers))  # noqa: S310 - scheme checked
    request.add_header("User-Agent", f"workhorse/{__version__}")
    request.add_header("Accept-Encoding", "identity")
    proxies = [urllib.request.ProxyHandler({})] if direct else []
    try:
        answer: HTTPResponse = urllib.request.build_opener(_NoRedirects, *proxies).open(
            request, timeout=stall_s
        )
    except urllib.error.HTTPError as error:
        with error:
            if error.code in PASSING_STATUS:
                raise Interrupted(f"HTTP {error.code}", _retry_after_s(error.headers)) from error
            raise Refused(url, error.code, error.headers) from error
    return answer


def _retry_after_s(headers: Message) -> float:
    """What the server asks us to wait: seconds, or a date (RFC 9110, section 10.2.3)."""
    asked = str(headers.get("Retry-After", "")).strip()
    seconds = whole_number(asked)
    if seconds is not None or not asked:
        return float(seconds or 0)
    try:
        return max(0.0, (parsedate_to_datetime(asked) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return 0.0


def patiently(ask: Callable[[], T], url: str, pause: Callable[[float], None] = time.sleep) -> T:
    """What `ask` returns, tried again after what may pass (Interrupted)."""
    for failures in range(TRIES):
        try:
            return ask()
        except Interrupted as error:
            wait_s = max(FIRST_PAUSE_S * 2**failures, error.wait_s)
            if failures == TRIES - 1 or wait_s > LONGEST_PAUSE_S:
                raise _given_up(url, error, failures + 1) from error
            pause(wait_s)
    raise AssertionError("unreachable: the last try raises")


def _given_up(url: str, error: Interrupted, tries: int) -> Unreachable:
    place = shown(urlsplit(url).netloc.rpartition("@")[2])
    if error.wait_s > LONGEST_PAUSE_S:
        wait = f"{error.wait_s:.0f} s"
        return Unreachable(
            Text(
                f"{place} is asked too often: it wants us to wait {wait} ({error.reason}).",
                f"对 {place} 的请求过于频繁：对方要求等待 {wait}（{error.reason}）。",
            ),
            Text(
                f"Try again in {wait}, log in (HF_TOKEN), or use a mirror (HF_ENDPOINT).",
                f"请等待 {wait} 后重试，或登录（HF_TOKEN），或使用镜像（HF_ENDPOINT）。",
            ),
        )
    return Unreachable(
        Text(
            f"{place} could not be read from in {tries} tries: {shown(error.reason)}.",
            f"尝试 {tries} 次仍无法从 {place} 读取：{shown(error.reason)}。",
        ),
        Text(
            "Check the network and the proxy. HF_ENDPOINT can name a mirror of Hugging Face; many "
            "models are on ModelScope too (ms:owner/name).",
            "请检查网络与代理。可用 HF_ENDPOINT 指定 Hugging Face 的镜像；许多模型在 ModelScope "
            "上也有（ms:owner/name）。",
        ),
    )


def received(answer: HTTPResponse, url: str, n_bytes: int) -> bytes:
    """Up to `n_bytes` of the body: fewer only when it ends."""
    began_s = time.monotonic()
    body = bytearray()
    while len(body) < n_bytes:
        with transfer_errors(url):
            chunk = answer.read1(min(n_bytes - len(body), MIB))
        if not chunk:
            break
        body += chunk
        if time.monotonic() - began_s > PIECE_S:
            raise Interrupted(f"{show_bytes(len(body))} in {PIECE_S:.0f} s")
    return bytes(body)


def fetch_document(
    url: str,
    headers: Mapping[str, str],
    max_bytes: int,
    pause: Callable[[float], None] = time.sleep,
) -> tuple[bytes, Message]:
    """A small file whole, and the headers of its answer; AppError when it is larger."""

    def ask() -> tuple[bytes, Message]:
        with opened_answer(url, headers) as (answer, _):
            body = received(answer, url, max_bytes + 1)
            claimed = whole_number(answer.headers.get("Content-Length", ""))
            if claimed is not None and len(body) < min(claimed, max_bytes):
                raise Interrupted("the connection ended early")
            return body, answer.headers

    body, found = patiently(ask, url, pause)
    if len(body) > max_bytes:
        limit = show_bytes(max_bytes)
        raise refused(
            url, f"an answer of more than {limit} is not believable", f"答复超过 {limit}，不可信"
        )
    return body, found


class RemoteFile:
    """A file on a server. `read_at(offset, size)` is the seam that every header reader takes.

    Reads ahead in growing pieces, so that a header costs few requests, and keeps one piece.
    Redirects are followed once: later pieces go to where they led. All errors are AppError, or
    Refused from the first request.
    """

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str] | None = None,
        *,
        first_piece_bytes: int = FIRST_PIECE_BYTES,
        stall_s: float = STALL_S,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.url = url
        self.requests = 0
        self._headers = dict(headers or {})
        self._at = url  # where the redirects of the first request led
        self._piece_bytes = first_piece_bytes
        self._stall_s = stall_s
        self._pause = pause
        self._version: tuple[int, str | None] | None = None  # size and ETag
        self._piece, self._start = b"", 0

    @property
    def size_bytes(self) -> int:
        """The size of the whole file."""
        while self._version is None:
            self._read_ahead(0, 1)
        return self._version[0]

    def read_at(self, offset: int, size: int) -> bytes:
        """Exactly `size` bytes from `offset` on, or fewer at the end of the file."""
        wanted = max(0, min(size, self.size_bytes - offset))
        within = offset - self._start
        if not 0 <= within <= len(self._piece):
            self._piece, self._start, within = b"", offset, 0
        if within + wanted > len(self._piece):
            # What lies before the offset is not needed any more: headers are read forwards.
            self._piece, self._start, within = self._piece[within:], offset, 0
            while wanted > len(self._piece):
                self._read_ahead(offset + len(self._piece), wanted - len(self._piece))
        return self._piece[within : within + wanted]

    def _read_ahead(self, start: int, n_bytes: int) -> None:
        wanted = max(n_bytes, self._piece_bytes)
        self._piece_bytes = min(2 * self._piece_bytes, LARGEST_PIECE_BYTES)

        def ask() -> bytes:
            self.requests += 1
            try:
                return self._ask(start, wanted)
            except Refused as refusal:
                if self._at == self.url:
                    if self._version is None:
                        raise
                    raise refusal.explained() from refusal
                self._at = self.url  # signed addresses end: follow the redirects again
                raise Interrupted(str(refusal)) from refusal

        self._piece += patiently(ask, self.url, self._pause)

    def _ask(self, start: int, wanted: int) -> bytes:
        headers = {**self._headers, "Range": f"bytes={start}-{start + wanted - 1}"}
        if _host(self._at) != _host(self.url):
            headers.pop("Authorization", None)
        try:
            with opened_answer(self._at, headers, self._stall_s) as (answer, at):
                n_bytes = self._extent(answer, start, wanted)
                body = received(answer, self.url, n_bytes)
                if len(body) < n_bytes:
                    raise Interrupted("the connection ended early")
                self._at = at
                return body
        except Refused as refusal:
            if refusal.status != RANGE_NOT_SATISFIABLE:
                raise
            match = CONTENT_RANGE.fullmatch(str(refusal.headers.get("Content-Range", "")))
            total = whole_number(match["total"]) if match else None
            if total is None or start < total:
                raise
            self._check_version(total, strong_etag(refusal.headers))
            return b""

    def _extent(self, answer: HTTPResponse, start: int, wanted: int) -> int:
        """How many bytes of the answer are ours; checks that they are the right ones."""
        if answer.headers.get("Content-Encoding", "identity") != "identity":
            raise refused(self.url, "it sends the file compressed", "发送的是压缩后的文件")
        if answer.status != PARTIAL_CONTENT:
            return self._whole(answer, start, wanted)
        match = CONTENT_RANGE.fullmatch(str(answer.headers.get("Content-Range", "")))
        total = whole_number(match["total"]) if match else None
        if match is None or total is None:
            raise refused(self.url, "it does not say how long the file is", "未说明文件的大小")
        last = whole_number(match["last"] or "")
        if match["first"] != str(start) or last is None or not start <= last < total:
            raise refused(
                self.url,
                f"it sent other bytes than asked for: {shown(match[0])} instead of {start} on",
                f"发来的不是所请求的字节：{shown(match[0])}，而请求的是从 {start} 开始",
            )
        self._check_version(total, strong_etag(answer.headers))
        return min(last + 1 - start, wanted)

    def _whole(self, answer: HTTPResponse, start: int, wanted: int) -> int:
        """A server without ranges sends the whole file: taken only when we asked for all of it."""
        total = whole_number(str(answer.headers.get("Content-Length", "")))
        if str(answer.headers.get("Content-Type", "")).startswith("text/html"):
            raise refused(self.url, "it sent a web page instead", "返回的是网页")
        if start or total is None or total > wanted:
            size = (
                Text("", "") if total is None else Text(f" ({show_bytes(total)})", f"（{total} B）")
            )
            raise Unreachable(
                Text(
                    f"{shown(_host(self.url))} cannot send a part of a file, and the whole"
                    f"{size.en} is not fetched to look at its header.",
                    f"{shown(_host(self.url))} 不支持分段请求；"
                    f"不会为读取文件头而下载整个文件{size.zh}。",
                ),
                Text(
                    "Download the file and give its path, or take a server with range requests.",
                    "请下载该文件后指定本地路径，或换用支持分段请求（Range）的服务器。",
                ),
            )
        self._check_version(total, strong_etag(answer.headers))
        return total

    def _check_version(self, total: int, etag: str | None) -> None:
        if self._version is None:
            self._version = (total, etag)
            return
        size, known = self._version
        if total != size or (known and etag and known != etag):
            raise AppError(
                Text(
                    f"{shown(self.url)} changed while it was read.",
                    f"{shown(self.url)} 在读取过程中发生了变化。",
                ),
                AGAIN if total < size else Text("Run the command again.", "请重新运行该命令。"),
            )


def _host(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2]
