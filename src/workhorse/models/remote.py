"""Opens one file on a server, from any byte on."""

import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPException, InvalidURL
from urllib.parse import urlsplit

from workhorse import __version__
from workhorse.errors import AppError
from workhorse.text import Text

SCHEMES = ("http", "https", "file")
# Answers after which the same request may succeed (RFC 9110, RFC 6585).
PASSING_STATUS = (408, 425, 429, 500, 502, 503, 504)
PARTIAL_CONTENT = 206
RANGE_NOT_SATISFIABLE = 416
CONTENT_RANGE = re.compile(r"bytes (?:(?P<first>\d+)-(?P<last>\d+)|\*)/(?P<total>\d+|\*)", re.ASCII)


class Unreachable(AppError):
    """The server cannot be reached or does not give us the file; another way to it may work."""


class Interrupted(Exception):
    """The transfer failed in a way that may pass: try again. `reason` is for the user."""

    def __init__(self, reason: str, wait_s: float = 0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.wait_s = wait_s  # what the server asked for (Retry-After)


class NothingLeft(Exception):
    """The server has no bytes from there on; `total_bytes` is what it says the file has."""

    def __init__(self, total_bytes: int | None) -> None:
        super().__init__(total_bytes)
        self.total_bytes = total_bytes


@dataclass(frozen=True, slots=True)
class Remote:
    """An open answer: its bytes begin at `start_bytes` of a file of `total_bytes`."""

    start_bytes: int
    total_bytes: int | None
    etag: str | None  # a strong one, fit for If-Range
    read: Callable[[int], bytes]  # the next bytes, at most so many; b"" at the end


@contextmanager
def opened_remote(url: str, start_bytes: int, etag: str | None, stall_s: float) -> Iterator[Remote]:
    """The file at `url` (http, https or file) from `start_bytes` on, if the server can do that.

    A server that cannot, or that has another version than `etag`, answers from byte 0: look at
    `start_bytes`. Proxies come from the environment (`https_proxy`, `no_proxy`), trusted
    certificates from the system or `SSL_CERT_FILE`. Raises Interrupted when another try may help
    (also after `stall_s` seconds of silence), NothingLeft when the file ends before
    `start_bytes`, Unreachable when nothing will help; reading raises them too.
    """
    with transfer_errors(url):
        request = _request(url, start_bytes, etag)
        # Not urlopen: its opener keeps the proxies of the first call for the whole process.
        answer = urllib.request.build_opener().open(request, timeout=stall_s)
    with answer:
        start, total = _extent(answer.status, answer.headers, start_bytes)
        if answer.status is None and start_bytes:  # a local file: it has no status
            answer.seek(start_bytes)
            start = start_bytes

        def read(size: int) -> bytes:
            with transfer_errors(url):
                chunk: bytes = answer.read1(size)
                return chunk

        yield Remote(start, total, strong_etag(answer.headers), read)


def _request(url: str, start_bytes: int, etag: str | None) -> urllib.request.Request:
    if urlsplit(url).scheme not in SCHEMES:
        raise refused(url, "not a http, https or file address", "不是 http、https 或 file 地址")
    request = urllib.request.Request(url)  # noqa: S310 - the scheme was checked
    request.add_header("User-Agent", f"workhorse/{__version__}")
    request.add_header("Accept-Encoding", "identity")
    if start_bytes:
        request.add_header("Range", f"bytes={start_bytes}-")
        if etag:
            request.add_header("If-Range", etag)
    return request


def _extent(status: int | None, headers: Message, asked_bytes: int) -> tuple[int, int | None]:
    """First byte and total size that an answer speaks of."""
    if status == PARTIAL_CONTENT:
        match = CONTENT_RANGE.fullmatch(headers.get("Content-Range", ""))
        if match is None or match["first"] != str(asked_bytes):
            raise Interrupted("the server sent another part of the file than was asked for")
        return asked_bytes, whole_number(match["total"])
    return 0, whole_number(headers.get("Content-Length", ""))


def whole_number(text: str) -> int | None:
    """The number in a header; None when it has none, or one that no file is as long as."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else None


def strong_etag(headers: Message) -> str | None:
    """The version of a file as its server names it; None when it names none byte for byte."""
    etag = str(headers.get("ETag", ""))
    return etag if etag.startswith('"') and etag.isascii() else None


@contextmanager
def transfer_errors(url: str) -> Iterator[None]:
    """Turn what the network throws into Interrupted, NothingLeft or Unreachable."""
    try:
        yield
    except urllib.error.HTTPError as error:
        with error:
            raise _status_error(url, error) from error
    except urllib.error.URLError as error:
        final = isinstance(error.reason, ssl.SSLCertVerificationError) or url.startswith("file:")
        if final:
            raise refused(url, str(error.reason), str(error.reason)) from error
        raise Interrupted(_words(error.reason)) from error
    except (InvalidURL, ValueError, OverflowError) as error:  # a port beyond 65535 overflows
        raise refused(url, str(error), str(error)) from error
    except (OSError, HTTPException) as error:
        raise Interrupted(_words(error)) from error


def _words(reason: str | BaseException) -> str:
    """Why it failed, without the numbers that the system has for it."""
    told = reason.strerror if isinstance(reason, OSError) else None
    return told or str(reason) or type(reason).__name__


def _status_error(url: str, error: urllib.error.HTTPError) -> Exception:
    if error.code == RANGE_NOT_SATISFIABLE:
        match = CONTENT_RANGE.fullmatch(error.headers.get("Content-Range", ""))
        return NothingLeft(whole_number(match["total"]) if match else None)
    if error.code in PASSING_STATUS:
        wait_s = whole_number(error.headers.get("Retry-After", ""))
        return Interrupted(f"HTTP {error.code}", wait_s or 0)
    return refused(url, f"HTTP {error.code}", f"HTTP {error.code}")


def refused(url: str, english: str, chinese: str) -> Unreachable:
    """The error for a file that the server does not give us."""
    place = url.partition("://")[2].partition("/")[0].rpartition("@")[2] or url
    return Unreachable(
        Text(
            f"{place} does not give us the file: {english}.", f"{place} 未提供该文件：{chinese}。"
        ),
        Text(
            "Check the address, the proxy settings and the network.",
            "请检查地址、代理设置和网络。",
        ),
    )
