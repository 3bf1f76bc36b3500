"""Downloads from a server on loopback that breaks, lies, stalls and changes its files."""

import errno
import hashlib
import os
import shutil
import signal
import ssl
import subprocess
import sys
import threading
from collections import namedtuple
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from file_server import (
    Answer,
    FileServer,
    answers,
    breaks_after,
    file_server,
    stalls_after,
    without_length,
)

from workhorse.errors import AppError
from workhorse.models.fetch import LONGEST_PAUSE_S, TRIES, fetch
from workhorse.models.remote import Unreachable

CONTENT = bytes(range(256)) * 4096  # 1 MiB
OTHER = CONTENT[::-1]
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def server() -> Iterator[FileServer]:
    with file_server(files={"/model": CONTENT}) as running:
        yield running


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "models" / "model.gguf"


def part_of(target: Path) -> Path:
    return target.with_name(target.name + ".part")


def get(url: str, target: Path, **options: object) -> list[float]:
    """Fetch with pauses that are only noted; returns them."""
    pauses: list[float] = []
    result = fetch(url, target, sha256=SHA256, pause=pauses.append, **options)  # type: ignore[arg-type]
    assert result == target
    assert target.read_bytes() == CONTENT
    assert list(target.parent.iterdir()) == [target], "nothing else is left behind"
    return pauses


def test_a_plain_download_with_progress(server: FileServer, target: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    pauses = get(server.url("/model"), target, progress=lambda *sizes: seen.append(sizes))
    assert pauses == []
    assert seen[0] == (0, len(CONTENT))
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert len(server.requests) == 1


def test_a_file_that_is_there_costs_no_request(server: FileServer, target: Path) -> None:
    target.parent.mkdir()
    target.write_bytes(CONTENT)
    get(server.url("/model"), target)
    assert server.requests == []


def test_a_damaged_file_is_replaced(server: FileServer, target: Path) -> None:
    target.parent.mkdir()
    target.write_bytes(OTHER)
    get(server.url("/model"), target)


def test_a_broken_connection_goes_on_where_it_stopped(server: FileServer, target: Path) -> None:
    server.script = [breaks_after(300_000), breaks_after(300_000)]
    pauses = get(server.url("/model"), target)
    assert pauses == [0.5, 0.5], "each try brought bytes, so the pause does not grow"
    assert len(server.requests) == 3
    assert server.requests[1][1]["if-range"] == '"v1"'
    assert server.sent_bytes == len(CONTENT)


def test_a_later_run_goes_on_where_the_first_was_killed(server: FileServer, target: Path) -> None:
    server.script = [stalls_after(400_000)]
    program = (
        "import sys; from pathlib import Path; from workhorse.models.fetch import fetch\n"
        "fetch(sys.argv[1], Path(sys.argv[2]), sha256=sys.argv[3],"
        " progress=lambda done, _: print(done, flush=True))"
    )
    command = [sys.executable, "-c", program, server.url("/model"), str(target), SHA256]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) == 400_000:
                break
        process.send_signal(signal.SIGKILL)
    assert part_of(target).stat().st_size == 400_000
    get(server.url("/model"), target)
    assert server.requests[1][1]["range"] == "bytes=400000-"
    assert server.sent_bytes == len(CONTENT)


def test_a_server_that_ignores_ranges_starts_over(server: FileServer, target: Path) -> None:
    server.ranges = False
    server.script = [breaks_after(300_000)]
    get(server.url("/model"), target)
    assert server.sent_bytes == len(CONTENT) + 300_000


def test_another_version_on_the_server_starts_over(server: FileServer, target: Path) -> None:
    server.files["/model"] = OTHER
    server.script = [breaks_after(300_000)]

    def replace(_pause_s: float) -> None:
        server.files["/model"], server.etag = CONTENT, '"v2"'

    fetch(server.url("/model"), target, sha256=SHA256, pause=replace)
    assert target.read_bytes() == CONTENT


def test_another_version_without_etags_is_noticed_by_its_hash(
    server: FileServer, target: Path
) -> None:
    server.etag = None
    target.parent.mkdir()
    part_of(target).write_bytes(OTHER[:300_000])
    get(server.url("/model"), target)
    assert [request[1].get("range") for request in server.requests] == ["bytes=300000-", None]


def test_a_server_that_ignores_if_range_is_not_trusted(server: FileServer, target: Path) -> None:
    def other_version(answer: Answer) -> None:
        del answer.headers["If-Range"]
        server.etag = '"v2"'
        answer.whole()

    server.script = [breaks_after(300_000), other_version]
    get(server.url("/model"), target)
    assert "range" not in server.requests[2][1]


def test_a_range_that_was_not_asked_for(server: FileServer, target: Path) -> None:
    def shifted(answer: Answer) -> None:
        answer.headers.replace_header("Range", "bytes=5-")
        answer.whole()

    server.script = [breaks_after(300_000), shifted]
    get(server.url("/model"), target)


def test_a_part_that_is_already_whole(server: FileServer, target: Path) -> None:
    target.parent.mkdir()
    part_of(target).write_bytes(CONTENT)
    get(server.url("/model"), target)
    assert server.sent_bytes == 0  # one request, answered with 416
    target.rename(part_of(target))
    get(server.url("/model"), target, size_bytes=len(CONTENT))
    assert len(server.requests) == 1


@pytest.mark.parametrize("size_bytes", [None, len(CONTENT)])
def test_a_part_that_is_too_long(server: FileServer, target: Path, size_bytes: int | None) -> None:
    target.parent.mkdir()
    part_of(target).write_bytes(CONTENT + b"more")
    get(server.url("/model"), target, size_bytes=size_bytes)


def test_a_wrong_hash_is_refused_and_removed(server: FileServer, target: Path) -> None:
    server.files["/model"] = OTHER
    with pytest.raises(AppError) as caught:
        get(server.url("/model"), target)
    for words in (caught.value.what.en, caught.value.what.zh):
        assert SHA256 in words and hashlib.sha256(OTHER).hexdigest() in words
    assert list(target.parent.iterdir()) == []


def test_a_wrong_size_is_refused_at_once(server: FileServer, target: Path) -> None:
    target.parent.mkdir()
    part_of(target).write_bytes(CONTENT[:1000])
    server.files["/model"] = b"<html>please sign in</html>"
    server.ranges = False
    with pytest.raises(Unreachable, match="27 bytes instead of 1048576"):
        get(server.url("/model"), target, size_bytes=len(CONTENT))
    assert part_of(target).stat().st_size == 1000, "what had arrived is kept"


def test_more_bytes_than_there_should_be(server: FileServer, target: Path) -> None:
    server.files["/model"] = CONTENT * 3
    server.script = [without_length]
    with pytest.raises(Unreachable, match="instead of 1048576"):
        get(server.url("/model"), target, size_bytes=len(CONTENT))


def test_a_server_that_names_no_length(server: FileServer, target: Path) -> None:
    server.script = [without_length]
    get(server.url("/model"), target)


@pytest.mark.parametrize("code", [400, 401, 403, 404, 407, 410])
def test_a_refusal_is_not_repeated(server: FileServer, target: Path, code: int) -> None:
    server.script = [answers(code)]
    with pytest.raises(Unreachable, match=f"HTTP {code}"):
        get(server.url("/model"), target)
    assert len(server.requests) == 1
    assert list(target.parent.iterdir()) == [], "no empty part is left behind"


def test_a_server_that_recovers(server: FileServer, target: Path) -> None:
    server.script = [answers(500), answers(503, {"Retry-After": "7"})]
    server.script += [answers(429, {"Retry-After": "86400"})]
    assert get(server.url("/model"), target) == [0.5, 7, LONGEST_PAUSE_S]


def test_a_server_that_does_not_recover(server: FileServer, target: Path) -> None:
    target.parent.mkdir()
    part_of(target).write_bytes(CONTENT[:1000])
    server.script = [answers(502)] * (TRIES + 1)
    pauses: list[float] = []
    with pytest.raises(Unreachable, match="HTTP 502") as caught:
        fetch(server.url("/model"), target, sha256=SHA256, pause=pauses.append)
    assert "goes on where it stopped" in caught.value.next_step.en
    assert pauses == [0.5, 1, 2, 4]
    assert len(server.requests) == TRIES
    assert part_of(target).stat().st_size == 1000


def test_a_stalled_connection_is_given_up_and_resumed(server: FileServer, target: Path) -> None:
    server.script = [stalls_after(300_000)]
    get(server.url("/model"), target, stall_s=1.0)
    assert server.requests[1][1]["range"] == "bytes=300000-"


def test_nobody_listens(server: FileServer, target: Path) -> None:
    url = server.url("/model")
    with file_server() as other:
        closed = other.url("/model")
    with pytest.raises(Unreachable, match="refused"):
        get(closed, target)
    get(url, target)


@pytest.mark.parametrize(
    "url", ["ftp://127.0.0.1/a", "http://[bad/a", "http://127.0.0.1:port/a", "data:,x", "nothing"]
)
def test_addresses_that_are_none(url: str, target: Path) -> None:
    with pytest.raises(Unreachable) as caught:
        get(url, target)
    assert caught.value.what.zh


def test_local_addresses(tmp_path: Path, target: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(CONTENT)
    get(source.as_uri(), target)
    target.unlink()
    part_of(target).write_bytes(CONTENT[:1000])
    get(source.as_uri(), target)
    for missing in (tmp_path / "none", tmp_path):
        with pytest.raises(Unreachable):
            get(missing.as_uri(), tmp_path / "x" / "y")


def test_an_exception_from_progress_ends_the_fetch(server: FileServer, target: Path) -> None:
    def stop(done_bytes: int, _total_bytes: int | None) -> None:
        if done_bytes:
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        get(server.url("/model"), target, progress=stop)
    assert part_of(target).stat().st_size > 0
    get(server.url("/model"), target)
    assert server.sent_bytes <= 2 * len(CONTENT)


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
        go_on.wait(60)
        answer.send(body[100_000:])

    server.script = [held]
    program = (
        "import sys; from pathlib import Path; from workhorse.models.fetch import fetch\n"
        "fetch(sys.argv[1], Path(sys.argv[2]), sha256=sys.argv[3],"
        " progress=lambda done, _: print(done, flush=True))"
    )
    command = [sys.executable, "-c", program, server.url("/model"), str(target), SHA256]
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
            process.communicate(timeout=60)
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
