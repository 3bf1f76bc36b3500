"""Downloads and what is around them: full disks, a second process, proxies, certificates."""

import errno
import os
import shutil
import ssl
import subprocess
import sys
import threading
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fetching import CONTENT, PROGRAM, SHA256, get, part_of
from file_server import Answer, FileServer, file_server, without_length

from workhorse.errors import AppError
from workhorse.models.fetch import fetch
from workhorse.models.remote import Unreachable

# ---------------------------------------------------------------- the disk


def test_no_room_is_said_before_the_download(
    server: FileServer, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage(10**9, 10**9, 1000))
    with pytest.raises(AppError, match=r"has 1000 B left, 1\.00 MiB more are needed"):
        get(server.url("/model"), target)
    assert not target.exists()


def test_a_disk_that_fills_up_keeps_what_arrived(
    server: FileServer, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, written = os.write, 0

    def fills_up(handle: int, chunk: bytes) -> int:
        nonlocal written
        if written > 500_000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = write(handle, chunk[:4000])  # a short write, as disks that fill up give
        written += done
        return done

    monkeypatch.setattr(os, "write", fills_up)
    with pytest.raises(AppError, match="disk is full") as caught:
        get(server.url("/model"), target)
    assert not isinstance(caught.value, Unreachable)
    assert part_of(target).stat().st_size == written
    monkeypatch.setattr(os, "write", write)
    get(server.url("/model"), target)


def test_a_real_disk_that_fills_up(server: FileServer, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this user may not mount a small disk")
    try:
        with pytest.raises(AppError, match="are needed"):
            get(server.url("/model"), disk / "model")
        server.script = [without_length]
        with pytest.raises(AppError, match="disk is full"):
            get(server.url("/model"), disk / "model")
        assert part_of(disk / "model").stat().st_size > 400_000
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_place_that_cannot_be_written(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(AppError, match="cannot be written"):
        get(server.url("/model"), tmp_path / "file" / "model")


# ---------------------------------------------------------------- two at once


def test_two_processes_fetch_once(server: FileServer, target: Path) -> None:
    go_on = threading.Event()

    def held(answer: Answer) -> None:
        body = answer.begin()
        assert body is not None
        answer.send(body[:100_000])
        go_on.wait(300)
        answer.send(body[100_000:])

    server.script = [held]
    command = [sys.executable, "-c", PROGRAM, server.url("/model"), str(target), SHA256]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as first,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as second,
    ):
        # Whichever waits reports the bytes of the other, so both say something.
        for process in (first, second):
            assert process.stdout is not None
            for line in process.stdout:
                if int(line) == 100_000:
                    break
        go_on.set()
        for process in (first, second):
            process.communicate(timeout=300)
            assert process.returncode == 0
    assert target.read_bytes() == CONTENT
    assert list(target.parent.iterdir()) == [target]
    assert len(server.requests) == 1


def test_many_threads_fetch_once(server: FileServer, target: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        url = server.url("/model")
        fetched = [pool.submit(fetch, url, target, sha256=SHA256) for _ in range(8)]
        assert {future.result() for future in fetched} == {target}
    assert target.read_bytes() == CONTENT
    assert list(target.parent.iterdir()) == [target]
    assert len(server.requests) == 1


# ---------------------------------------------------------------- proxies, certificates


def test_the_proxy_of_the_environment_is_used(
    server: FileServer, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.files["http://files.invalid/model"] = CONTENT
    monkeypatch.setenv("http_proxy", server.url(""))
    get("http://files.invalid/model", target)
    target.unlink()
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    get(server.url("/model"), target)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")
def test_certificates_named_by_the_environment_are_trusted(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command.split(), *names, *files], check=True, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    with file_server(tls=tls, files={"/model": CONTENT}) as server:
        url = server.url("/model").replace("http:", "https:")
        with pytest.raises(Unreachable, match="certificate verify failed"):
            get(url, target)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        get(url, target)
