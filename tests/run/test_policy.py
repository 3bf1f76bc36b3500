"""What an engine's end means, and when it is started again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workhorse.errors import Cause
from workhorse.run.policy import (
    DELAYS_S,
    describe_exit,
    last_error,
    next_delay_s,
    says_port_taken,
)
from workhorse.text import same


def test_the_first_restart_is_at_once_and_the_waits_grow() -> None:
    waits = [next_delay_s([100.0] * count, now=100.0) for count in range(len(DELAYS_S) + 2)]
    assert waits == [0, 0, 1, 2, 4, 8, 16, 30, None]


def test_time_that_has_passed_counts() -> None:
    assert next_delay_s([0, 0, 0, 10], now=11) == 3
    assert next_delay_s([0, 0, 0, 10], now=60) == 0


@given(st.lists(st.floats(0, 1e6), max_size=20), st.floats(0, 1e6))
def test_a_wait_is_never_negative_nor_longer_than_the_longest(
    deaths: list[float], now: float
) -> None:
    deaths.sort()
    wait_s = next_delay_s(deaths, max([now, *deaths]))
    assert (wait_s is None) == (len(deaths) > len(DELAYS_S))
    assert wait_s is None or 0 <= wait_s <= max(DELAYS_S)


def test_the_last_error_of_a_log_is_the_one_that_says_what() -> None:
    log = [
        "E gguf_init_from_file: failed to open GGUF file 'x' (No such file or directory)",
        "  E srv load_model: failed to load model, 'x'",
        "I srv cleaning up before exit...",
        "E srv llama_server: exiting due to model loading error",
    ]
    assert last_error(log) == Cause(same("E srv load_model: failed to load model, 'x'"))
    assert last_error(["all is well"]) is None
    assert last_error([]) is None


@pytest.mark.parametrize(
    "line",
    [
        "E srv start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 8080",
        "OSError: [Errno 98] Address already in use",
    ],
)
def test_a_taken_port_is_seen(line: str) -> None:
    assert says_port_taken(["first", line, "last"])
    assert not says_port_taken(["first", "last"])


def test_how_a_process_ended_in_words() -> None:
    assert describe_exit(1).en == "exit code 1"
    assert "CPU" in describe_exit(-4).en
    assert "内存不足" in describe_exit(-9).zh
    assert describe_exit(-2).en == "ended by SIGINT"
    assert describe_exit(-63).en == "ended by signal 63"
