"""Downloads from a server on loopback that breaks, lies, stalls and changes its files."""

import hashlib
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fetching import CONTENT, OTHER, PROGRAM, SHA256, get, part_of
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

# A server that had to wait for its turn is silent too: who loses bytes does each time.
ATTEMPTS = 6


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
    command = [sys.executable, "-c", PROGRAM, server.url("/model"), str(target), SHA256]
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
    seen = []
    for _ in range(ATTEMPTS):
        server.requests.clear()
        server.script = [stalls_after(300_000)]
        get(server.url("/model"), target, stall_s=1.0)
        target.unlink()
        seen.append(server.requests[1][1].get("range"))
        if seen[-1] == "bytes=300000-":
            return
    pytest.fail(f"it went on from {seen}")


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
