"""Pulls that are broken off: by the server, the network, the disk, another process, our death."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import namedtuple
from pathlib import Path

import pytest
from file_server import Answer, FileServer, answers, breaks_after, stalls_after, without_length
from hub_server import publish_hf
from pulling import CONTENT, NAME, OTHER, REPO, left_in, pull_to

from workhorse.errors import AppError
from workhorse.models.pull_part import PIECE_BYTES
from workhorse.models.pull_record import RECORD

FILE = f"/{REPO}/resolve/main/{NAME}"
# A server that had to wait for its turn is silent too: who loses bytes does each time.
ATTEMPTS = 6


@pytest.fixture
def environment(server: FileServer) -> dict[str, str]:
    """A hub with the file."""
    return publish_hf(server, REPO, {NAME: CONTENT})


def behave(server: FileServer, *behaviours: object) -> None:
    """What happens to the requests for bytes, after the listing and the first look."""
    server.script = [Answer.whole, Answer.whole, *behaviours]  # type: ignore[list-item]


def starts(server: FileServer) -> list[int]:
    """Where the requests for bytes began, the first look left out."""
    asked = [headers.get("range", "bytes=0-0") for _, headers in server.requests]
    return [int(r.removeprefix("bytes=").partition("-")[0]) for r in asked if r != "bytes=0-0"]


def test_a_server_that_is_busy_is_given_the_time_it_asks_for(
    server: FileServer, environment: dict[str, str], tmp_path: Path
) -> None:
    behave(server, answers(429, {"Retry-After": "300"}), answers(503))
    pauses, said = list[float](), list[str]()
    pulled = pull_to(tmp_path, REPO, environment, pauses=pauses, said=said)
    assert pulled.path.read_bytes() == CONTENT
    assert pauses == [300.0, 1.0]
    assert said == ["The server asks us to wait 5 min 0 s (HTTP 429)."]


def test_a_server_that_asks_for_hours(
    server: FileServer, environment: dict[str, str], tmp_path: Path
) -> None:
    behave(server, answers(429, {"Retry-After": "7200"}))
    with pytest.raises(AppError, match="wants us to wait 2 h 0 min"):
        pull_to(tmp_path, REPO, environment)


def test_silence_and_breaks_are_gone_on_from(
    server: FileServer, environment: dict[str, str], tmp_path: Path
) -> None:
    half = PIECE_BYTES + PIECE_BYTES // 2
    seen = []
    for attempt in range(ATTEMPTS):
        server.requests.clear()
        # One connection takes one piece at a time of so small a file.
        stall = stalls_after(PIECE_BYTES // 2)
        behave(server, Answer.whole, stall, breaks_after(7), breaks_after(0))
        pulled = pull_to(tmp_path / str(attempt), REPO, environment, stall_s=0.3)
        assert pulled.path.read_bytes() == CONTENT
        seen.append(starts(server)[:4])
        if seen[-1] == [0, PIECE_BYTES, half, half + 7]:  # to the byte
            return
    pytest.fail(f"it went on from {seen}")


def test_a_server_that_gives_nothing_more(
    server: FileServer, environment: dict[str, str], tmp_path: Path
) -> None:
    behave(server, Answer.whole, *[breaks_after(0)] * 5)
    with pytest.raises(AppError, match=r"stopped at 4\.00 MiB, and 5 tries.*goes on where it"):
        pull_to(tmp_path, REPO, environment)
    assert left_in(tmp_path) == {f"{NAME}.part", f"{NAME}.part.done"}
    server.requests.clear()
    assert pull_to(tmp_path, REPO, environment).path.read_bytes() == CONTENT
    assert min(starts(server)) == PIECE_BYTES, "what was there is not asked for again"


def test_one_connection_that_is_refused_does_not_end_the_others(
    server: FileServer, environment: dict[str, str], tmp_path: Path
) -> None:
    first = threading.Semaphore(1)

    def only_one(answer: Answer) -> None:
        if not first.acquire(blocking=False):
            return answer.status(503)
        try:
            return answer.whole()
        finally:
            first.release()

    behave(server, *[only_one] * 60)
    pulled = pull_to(tmp_path, REPO, environment, connections=4)
    assert pulled.path.read_bytes() == CONTENT


def test_a_file_that_changes_on_the_way(server: FileServer, tmp_path: Path) -> None:
    server.files["/m.gguf"] = CONTENT

    def changed(answer: Answer) -> None:
        server.etag, server.files["/m.gguf"] = '"v2"', OTHER
        answer.whole()

    server.script = [Answer.whole, Answer.whole, changed]
    said: list[str] = []
    assert pull_to(tmp_path, server.url("/m.gguf"), said=said).path.read_bytes() == OTHER
    assert said == ["m.gguf: the file on the server changed; beginning anew."]


def test_a_file_that_changed_between_two_runs(server: FileServer, tmp_path: Path) -> None:
    server.files["/m.gguf"] = CONTENT
    server.script = [Answer.whole, Answer.whole, *[breaks_after(0)] * 5]
    with pytest.raises(AppError, match="goes on where it stopped"):
        pull_to(tmp_path, server.url("/m.gguf"))
    server.etag, server.files["/m.gguf"] = '"v2"', OTHER
    said: list[str] = []
    assert pull_to(tmp_path, server.url("/m.gguf"), said=said).path.read_bytes() == OTHER
    assert said == ["m.gguf: the file on the server changed; beginning anew."]


def test_a_file_that_changes_without_end(server: FileServer, tmp_path: Path) -> None:
    server.files["/m.gguf"] = CONTENT

    def another(answer: Answer) -> None:
        server.etag = f'"{len(server.requests)}"'
        answer.whole()

    server.script = [another] * 40
    with pytest.raises(AppError, match="changed 3 times while"):
        pull_to(tmp_path, server.url("/m.gguf"))
    assert left_in(tmp_path) == set()


def test_a_wrong_hash(server: FileServer, environment: dict[str, str], tmp_path: Path) -> None:
    server.files[FILE] = OTHER
    with pytest.raises(AppError, match="is not what the hub lists: its SHA-256 is"):
        pull_to(tmp_path, REPO, environment)
    assert left_in(tmp_path) == set()


def test_wrong_bytes_of_an_earlier_run(
    server: FileServer, environment: dict[str, str], tmp_path: Path
) -> None:
    server.files[FILE] = OTHER
    behave(server, Answer.whole, *[breaks_after(0)] * 5)
    with pytest.raises(AppError, match="goes on where it stopped"):
        pull_to(tmp_path, REPO, environment)
    server.files[FILE] = CONTENT
    said: list[str] = []
    assert pull_to(tmp_path, REPO, environment, said=said).path.read_bytes() == CONTENT
    assert said == [f"{NAME}: its bytes are of two versions; beginning anew."]


def test_a_hash_of_a_small_file_too(server: FileServer, tmp_path: Path) -> None:
    environment = publish_hf(server, REPO, {"m.gguf": b"small", "config.json": b"{}"})
    server.files[f"/{REPO}/resolve/main/m.gguf"] = b"smell"
    with pytest.raises(AppError, match="is not what the hub lists"):
        pull_to(tmp_path, REPO, environment, file="m.gguf")
    server.files[f"/{REPO}/resolve/main/m.gguf"] = b"smaller"
    with pytest.raises(AppError, match="7 bytes instead of 5"):
        pull_to(tmp_path, REPO, environment, file="m.gguf")
    assert left_in(tmp_path) == set()


def test_a_server_without_ranges(
    server: FileServer, environment: dict[str, str], tmp_path: Path
) -> None:
    server.ranges = False
    behave(server, breaks_after(PIECE_BYTES), breaks_after(5))
    pulled = pull_to(tmp_path, REPO, environment, connections=4)
    assert pulled.path.read_bytes() == CONTENT and not pulled.unchecked
    server.files["/m.gguf"] = CONTENT
    server.script = [without_length, without_length]
    assert pull_to(tmp_path / "b", server.url("/m.gguf")).path.read_bytes() == CONTENT


def test_a_page_instead_of_the_file(
    server: FileServer, environment: dict[str, str], tmp_path: Path
) -> None:
    def page(answer: Answer) -> None:
        answer.send_response(200)
        answer.send_header("Content-Type", "text/html; charset=utf-8")
        answer.end_headers()
        answer.send(b"<html>log in</html>")

    server.script = [Answer.whole, page]
    with pytest.raises(AppError, match="it sent a web page instead"):
        pull_to(tmp_path, REPO, environment)


# ---------------------------------------------------------------- this machine


def test_a_disk_that_is_too_small_is_seen_before(
    server: FileServer,
    environment: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage(10**9, 10**9, 1000))
    with pytest.raises(AppError, match=r"has 1000 B left, 12\.0 MiB more are needed"):
        pull_to(tmp_path / "new", REPO, environment)
    assert len(server.requests) == 1, "the listing alone"


def test_a_real_disk_that_fills_up(
    server: FileServer,
    environment: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount a small disk")
    try:
        usage = namedtuple("usage", "total used free")
        with monkeypatch.context() as lying:
            lying.setattr(shutil, "disk_usage", lambda _path: usage(10**9, 0, 10**9))
            with pytest.raises(AppError, match="disk is full"):
                pull_to(disk, REPO, environment)
        assert NAME not in left_in(disk)
        subprocess.run(["mount", "-o", "remount,size=32m", str(disk)], check=True)
        server.requests.clear()
        assert pull_to(disk, REPO, environment).path.read_bytes() == CONTENT
        assert min(starts(server)) == PIECE_BYTES, "what had arrived was kept"
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_two_pulls_at_once(server: FileServer, environment: dict[str, str], tmp_path: Path) -> None:
    waits, said = threading.Event(), list[str]()

    class Heard(list[str]):
        def append(self, words: str) -> None:
            said.append(words)
            waits.set()

    def once_the_other_waits(answer: Answer) -> None:
        if answer.path == FILE and answer.headers["Range"] != "bytes=0-0":
            assert waits.wait(120)
        answer.whole()

    server.script = [once_the_other_waits] * 20
    results: list[int] = []

    def one(words: list[str] | None) -> None:
        done = pull_to(tmp_path, REPO, environment, said=words, stall_s=600.0)
        results.append(done.fetched_bytes)

    threads = [threading.Thread(target=one, args=(Heard(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert (tmp_path / NAME).read_bytes() == CONTENT
    assert said == [f"{NAME} is being pulled by another process: waiting for it."]
    assert server.sent_bytes < len(CONTENT) + 8192, "its bytes came once"
    assert left_in(tmp_path) == {NAME, RECORD}


PROGRAM = (
    "import sys, os; sys.path.insert(0, sys.argv[1]); from pathlib import Path\n"
    "from pulling import pull_to\n"
    "pull_to(Path(sys.argv[2]), sys.argv[3], {'HF_ENDPOINT': sys.argv[4]}, connections=2,"
    " stall_s=600)"
)


def test_our_own_death(server: FileServer, environment: dict[str, str], tmp_path: Path) -> None:
    behave(server, Answer.whole, stalls_after(100), stalls_after(100))
    journal = tmp_path / f"{NAME}.part.done"
    words = [str(Path(__file__).parent), str(tmp_path), REPO, environment["HF_ENDPOINT"]]
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, *words])
    try:
        until_s = time.monotonic() + 240
        while not (journal.exists() and journal.read_bytes().count(b"\n") > 1):
            assert process.poll() is None and time.monotonic() < until_s
            time.sleep(0.02)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert NAME not in left_in(tmp_path)
    with journal.open("ab") as torn:
        torn.write(b"2")  # the last line of a journal may be torn: piece 2 is not there
    server.script.clear()
    server.requests.clear()
    said: list[str] = []
    assert pull_to(tmp_path, REPO, environment, said=said).path.read_bytes() == CONTENT
    assert not said and len(starts(server)) == 3, "three of four pieces were missing"
