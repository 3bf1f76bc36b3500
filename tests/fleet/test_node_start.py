"""What a person sees of a start that does not come to its end, and of words that cannot be."""

import argparse
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from workhorse.cli import fleet_node
from workhorse.cli.fleet_boxes import text_of
from workhorse.cli.fleet_up import add_arguments, ask_of
from workhorse.config import Places
from workhorse.errors import AppError
from workhorse.fleet import member
from workhorse.fleet.keeper import place_held
from workhorse.fleet.leave import leave

ARGS = argparse.Namespace(
    fleet="init",
    address=None,
    name=None,
    port=None,
    metrics_port=None,
    stats_port=None,
    token_file=None,
    lang="en",
)


@pytest.fixture
def children(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """What is started instead of the node: a process that never is one."""
    started = []
    real = subprocess.Popen

    def sleeper(_: list[str], **more: Any) -> subprocess.Popen[bytes]:
        child = real([sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"], **more)
        started.append(child)
        return child

    monkeypatch.setattr(fleet_node.subprocess, "Popen", sleeper)
    monkeypatch.setattr(fleet_node, "places", lambda: Places(tmp_path))
    yield started
    for child in started:
        child.kill()
        child.wait()


def test_a_ctrl_c_ends_the_node_that_is_being_started(
    children: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: Places) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(member, "read_member", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fleet_node.in_background(ARGS)
    assert [child.poll() is None for child in children] == [False]


def test_a_start_that_takes_too_long_is_ended_and_told(
    children: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_node, "START_WITHIN_S", 0.0)
    with pytest.raises(AppError, match="did not start within 0 s and was ended"):
        fleet_node.in_background(ARGS)
    assert [child.poll() is None for child in children] == [False]


def test_leave_while_a_node_is_being_started_does_not_say_that_there_is_none(
    tmp_path: Path,
) -> None:
    where = Places(tmp_path)
    with place_held(where), pytest.raises(AppError, match="is being started"):
        leave(where)
    with pytest.raises(AppError, match="a node of no fleet"):
        leave(where)


def test_a_file_that_cannot_be_read_is_named_once(tmp_path: Path) -> None:
    missing = tmp_path / "none.json"
    with pytest.raises(AppError) as told:
        text_of(missing)
    assert told.value.what.en == f"{missing} cannot be read: No such file or directory."


def test_a_least_above_the_most_is_told_with_both_in_both_languages() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser, "zh")
    with pytest.raises(AppError) as told:
        ask_of(parser.parse_args(["a.gguf", "--min", "5", "--max", "2"]))
    assert told.value.what.zh == "--min 5 大于 --max 2。"
