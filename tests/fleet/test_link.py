"""The probe between two machines: over loopback, where anything may knock."""

import socket

import pytest

from workhorse.errors import AppError
from workhorse.fleet.link import Answering, LinkAnswerer, measure


def test_a_link_is_measured() -> None:
    answerer = LinkAnswerer("127.0.0.1")
    try:
        link = measure(answerer.place, sent_s=0.01, own="127.0.0.2")
    finally:
        answerer.close()
    assert 0 < link.round_trip_s < 60
    assert link.bytes_per_s > 0


def test_who_brings_another_word_gets_nothing_and_the_next_one_is_served() -> None:
    answerer = LinkAnswerer("127.0.0.1")
    place = answerer.place
    try:
        for brought in (b"", b"x" * len(place.word), place.word[:-1].encode()):
            with socket.create_connection((place.host, place.port), timeout=60) as stranger:
                stranger.sendall(brought)
                stranger.shutdown(socket.SHUT_WR)
                assert stranger.recv(100) == b""
        assert measure(place, sent_s=0.01).bytes_per_s > 0
    finally:
        answerer.close()


def test_it_waits_for_one_probe_alone() -> None:
    answerer = LinkAnswerer("127.0.0.1")
    measure(answerer.place, sent_s=0.01)
    answerer.close()
    with pytest.raises(AppError, match=r"The link to 127\.0\.0\.1 could not be measured"):
        measure(answerer.place, sent_s=0.01)


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(AppError, match="could not be measured"):
        measure(Answering("127.0.0.1", port, "w"), sent_s=0.01)
