"""Logs as users have them: packed, in other encodings, cut off, with lines without end."""

import bz2
import gzip
import lzma
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from workhorse.cli.log_files import open_log
from workhorse.diagnose.judge import diagnose_lines
from workhorse.errors import AppError

TEXT = "启动\nllama-server: error while loading shared libraries: libgomp.so.1\n"
PACKERS = [gzip.compress, bz2.compress, lzma.compress]


def read(path: Path) -> bytes:
    with ExitStack() as open_files:
        return b"".join(open_log(str(path), open_files).chunks())


@pytest.mark.parametrize("pack", PACKERS)
def test_a_packed_log_is_read(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    log = tmp_path / "syslog.2"
    log.write_bytes(pack(TEXT.encode()))
    assert read(log).decode() == TEXT


@pytest.mark.parametrize("pack", PACKERS)
def test_a_packed_log_that_is_cut_off(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    log = tmp_path / "syslog.2"
    log.write_bytes(pack(TEXT.encode() * 20)[:-12])
    with pytest.raises(AppError, match=r"syslog\.2 cannot be read"):
        read(log)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_is_read(encoding: str, tmp_path: Path) -> None:
    """The shell of Windows writes it."""
    log = tmp_path / "windows.log"
    log.write_bytes(("\ufeff" + TEXT).encode(encoding))
    assert read(log).decode().lstrip("\ufeff") == TEXT


def test_the_last_line_is_ended(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("one\ntwo")
    assert read(log) == b"one\ntwo\n"
    log.write_text("")
    assert read(log) == b""


def test_text_and_what_is_none(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for content, is_text in (
        ("启动\n".encode("gb18030"), True),
        (b"\x1b[31mred\x1b[0m\r\n", True),
        (bytes(range(256)) * 40, False),
        (b"LPKSHHRH" + bytes(200), False),
    ):
        log.write_bytes(content)
        with ExitStack() as open_files:
            opened = open_log(str(log), open_files)
            assert list(opened.chunks())
            assert opened.text is is_text


@pytest.mark.parametrize("words", [TEXT.splitlines()[1], "open: Too many open files"])
def test_a_long_line_is_shown_where_the_words_are(words: str) -> None:
    (finding,) = diagnose_lines(["x" * 1500 + " " + words + " " + "y" * 1500]).findings
    assert words in finding.evidence[0]
    assert len(finding.evidence[0]) < 400
