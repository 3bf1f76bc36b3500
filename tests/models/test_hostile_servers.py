"""Servers that lie, fall silent or never end: one AppError each, little memory, never the file."""

import json

import pytest
from file_server import (
    Answer,
    Behaviour,
    FileServer,
    answers,
    breaks_after,
    stalls_after,
)
from hub_reading import REPO, TINY, large_vocabulary, read, refusal

from workhorse.errors import AppError
from workhorse.models.remote_file import RemoteFile
from workhorse.units import MIB


def test_a_server_without_ranges_is_not_downloaded_from(server: FileServer) -> None:
    server.ranges = False
    server.files["/big.gguf"] = large_vocabulary()
    said = refusal(server.url("/big.gguf"))
    assert "cannot send a part of a file" in said
    assert server.sent_bytes < 16 * MIB
    server.files["/tiny.gguf"] = TINY
    assert read(server.url("/tiny.gguf")).name == "Tiny", "a file as small as its header is fine"


def changed(answer: Answer) -> None:
    """The file is another one from now on."""
    answer.server_state.etag = '"v2"'
    answer.whole()


def test_a_file_that_changes_while_it_is_read(server: FileServer) -> None:
    server.files["/big.gguf"] = large_vocabulary()
    server.script = [Answer.whole, changed]
    assert "changed while it was read" in refusal(server.url("/big.gguf"))


def partial(content_range: str, body: bytes, **headers: str) -> Behaviour:
    """A 206 that says of itself what the test wants."""

    def behave(answer: Answer) -> None:
        answer.send_response(206)
        answer.send_header("Content-Range", content_range)
        for name, value in headers.items():
            answer.send_header(name.replace("_", "-"), value)
        answer.send_header("Content-Length", str(len(body)))
        answer.end_headers()
        answer.send(body)

    return behave


@pytest.mark.parametrize(
    ("behaviour", "expected"),
    [
        (partial("bytes 5-104/900", bytes(100)), "other bytes than asked for"),
        (partial("bytes 0-99/50", bytes(100)), "other bytes than asked for"),
        (partial("bytes 0-99/*", bytes(100)), "does not say how long"),
        (partial("bytes 0-99/" + "9" * 400, bytes(100)), "does not say how long"),
        (partial("nonsense", bytes(100)), "does not say how long"),
        (partial("bytes 0-999999/1000000", b"GGUF"), "ended early"),
        (partial("bytes 0-99/900", bytes(100)), "zeros, as an unfinished download"),
        (partial("bytes 0-99/900", bytes(100), Content_Encoding="gzip"), "compressed"),
    ],
)
def test_lies_about_ranges(server: FileServer, behaviour: Behaviour, expected: str) -> None:
    server.files["/m.gguf"] = TINY
    server.script = [behaviour] * 9
    assert expected in refusal(server.url("/m.gguf"))


def page(answer: Answer) -> None:
    body = b"<html>" + b"x" * 5_000_000
    answer.send_response(200)
    answer.send_header("Content-Type", "text/html; charset=utf-8")
    answer.send_header("Content-Length", str(len(body)))
    answer.end_headers()
    answer.send(body)


def endless(answer: Answer) -> None:
    """A body without a length and without an end."""
    answer.send_response(200)
    answer.end_headers()
    while not answer.server_state.closing.is_set():
        answer.send(b"{" * MIB)


def endless_redirect(answer: Answer) -> None:
    """A redirect to itself, with a body that never ends."""
    answer.send_response(302)
    answer.send_header("Location", answer.path)
    answer.end_headers()
    while not answer.server_state.closing.is_set():
        answer.send(b"x" * MIB)


@pytest.mark.parametrize(
    ("behaviour", "expected"),
    [
        (page, "web page"),
        (endless, "cannot send a part"),
        (endless_redirect, "redirects without end"),
        (answers(302, {"Location": "file:///etc/passwd"}), "not a http or https address"),
        (answers(302, {"Location": "ftp://127.0.0.1/x"}), "not a http or https address"),
        (answers(302, {"Location": "http://[::bad/"}), "does not give us the file"),
        (answers(302, {"Location": "http://127.0.0.1:99999/"}), "could not be read from"),
        (answers(302, {"Location": "http://127.0.0.1:x/"}), "does not give us the file"),
        (answers(302, {"Location": "http:///nowhere"}), "redirects without end"),
        (answers(302, {"Location": "//"}), "redirects without end"),
        (answers(302, {"Location": "/a b"}), "does not give us the file"),
        (answers(302), "redirects without end"),
        (answers(204), "empty file"),
        (answers(416, {"Content-Range": "bytes */0"}), "empty file"),
    ],
)
def test_hostile_answers(server: FileServer, behaviour: Behaviour, expected: str) -> None:
    server.files["/m.gguf"] = TINY
    server.script = [behaviour] * 9
    assert expected in refusal(server.url("/m.gguf"))


@pytest.mark.parametrize("behaviour", [endless, endless_redirect, page])
def test_hostile_listings(server: FileServer, behaviour: Behaviour) -> None:
    server.script = [behaviour] * 40
    refusal(REPO, {"HF_ENDPOINT": server.url("")})
    refusal(f"ms:{REPO}", {"MODELSCOPE_ENDPOINT": server.url("")})


def test_pages_of_a_listing_that_never_end(server: FileServer) -> None:
    entries = json.dumps([{"path": f"{i}.txt"} for i in range(3)]).encode()

    def one_more(answer: Answer) -> None:
        answer.send_response(200)
        answer.send_header("Link", '<https://elsewhere.example/api?cursor=x>; rel="next"')
        answer.send_header("Content-Length", str(len(entries)))
        answer.end_headers()
        answer.send(entries)

    server.script = [one_more] * 100
    refusal(REPO, {"HF_ENDPOINT": server.url("")})
    asked = [path for path, _ in server.requests if "/tree/" in path]
    assert 1 < len(asked) <= 20


def test_a_server_that_falls_silent(server: FileServer) -> None:
    server.files["/m.gguf"] = TINY
    server.script = [stalls_after(10)] * 4
    remote = RemoteFile(server.url("/m.gguf"), stall_s=0.2, pause=lambda _: None)
    with pytest.raises(AppError, match="in 4 tries"):
        remote.read_at(0, 64)


def test_a_connection_that_breaks_is_taken_up_again(server: FileServer) -> None:
    server.files["/m.gguf"] = TINY
    server.script = [breaks_after(100), breaks_after(0), answers(500)]
    assert read(server.url("/m.gguf")).name == "Tiny"
