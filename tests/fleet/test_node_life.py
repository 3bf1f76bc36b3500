"""A node from its start to its end: real processes, and a stand-in for Ray that behaves badly."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from workhorse.config import Places
from workhorse.errors import AppError
from workhorse.fleet.addresses import taken_ports
from workhorse.fleet.descendants import descendants, end_processes
from workhorse.fleet.keeper import folder_held
from workhorse.fleet.member import Member, read_member, temp_dir, token_path
from workhorse.fleet.secret import read_token
from workhorse.run.live_processes import read_process
from workhorse.run.process import free_port

PATIENCE_S = 120.0
# `ray start --block`: says that it has started, leaves a child and a daemon, which takes no SIGTERM
# where a file says so, and ends without ending them.
STAND_IN = """
import os, pathlib, signal, subprocess, sys, time
home = pathlib.Path(os.environ["WORKHORSE_HOME"])
with (home / "starts").open("a") as file:
    file.write(str(os.getpid()) + chr(10))
if (home / "fails").exists():
    sys.exit("ValueError: the words of Ray")
if (home / "slow").exists():
    (home / "slow").unlink()
    sys.exit("Exception: The current node timed out during startup. This could happen")
does = "SIG_IGN" if (home / "stubborn").exists() else "SIG_DFL"
stubborn = f"import signal, time; signal.signal(15, signal.{does}); time.sleep(1000)"
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
daemon = subprocess.Popen([sys.executable, "-c", stubborn], start_new_session=True)
(home / "children").write_text(f"{child.pid} {daemon.pid}")
print("2026-11-01 INFO scripts.py -- Ray runtime started.", flush=True)
signal.sigwait({signal.SIGTERM})
"""


def wait_for(holds: Callable[[], bool], what: str) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < until_s, what
        time.sleep(0.05)


def free_row(length: int) -> int:
    """The first of some ports in a row on which nobody listens."""
    while True:
        first = free_port("127.0.0.1")
        if first < 65000 and not taken_ports(range(first, first + length)):
            return first


@dataclass
class Host:
    """A machine with its own data folder and the stand-in instead of Ray."""

    home: Path
    env: dict[str, str]

    @property
    def where(self) -> Places:
        return Places(self.home)

    def words(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "workhorse", "fleet", *words]

    def fleet(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.words(*words), env=self.env, capture_output=True, text=True, timeout=600
        )

    def init(self, *words: str) -> list[str]:
        proxy = [str(free_port("127.0.0.1")) for _ in range(3)]
        options = ["--http-port", proxy[0], "--metrics-port", proxy[1], "--stats-port", proxy[2]]
        first = str(free_row(9))
        return ["init", "--address", "127.0.0.1", "--port", first, *options, *words]

    def member(self) -> Member:
        member = read_member(self.where)
        assert member is not None
        return member

    def children(self) -> list[int]:
        return [int(word) for word in (self.home / "children").read_text().split()]

    def starts(self) -> list[int]:
        return [int(line) for line in (self.home / "starts").read_text().splitlines()]


def alive(pid: int) -> bool:
    return read_process(pid) is not None


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    site = tmp_path / "site"
    scripts = site / "ray" / "scripts"
    scripts.mkdir(parents=True)
    (site / "ray" / "__init__.py").touch()
    (scripts / "__init__.py").touch()
    (scripts / "scripts.py").write_text(STAND_IN)
    facts = site / "ray-2.60.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: ray\nVersion: 2.60.0\n")
    home = tmp_path / "home"
    home.mkdir()
    env = os.environ | {"PYTHONPATH": str(site), "WORKHORSE_HOME": str(home)}
    host = Host(home, env)
    yield host
    member = read_member(host.where)
    if member is not None and member.lives():
        os.kill(member.keeper.pid, signal.SIGTERM)
        wait_for(lambda: not member.lives(), "the keeper did not end")
    end_processes(lambda: [p for pid in pids_of(host) if (p := read_process(pid))])


def pids_of(host: Host) -> list[int]:
    found: list[int] = []
    for name in ("starts", "children"):
        with suppress(OSError):
            found += map(int, (host.home / name).read_text().split())
    return found


def document(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def test_a_node_starts_once_and_leaves_nothing_and_nobody_else_is_touched(host: Host) -> None:
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)", "raylet"])
    try:
        told = document(host.fleet(*host.init("--json", "--name", "first")))
        assert told["node"]["name"] == "first"
        assert told["node"]["head"] is True
        token = Path(told["node"]["token_file"])
        assert token.stat().st_mode & 0o777 == 0o600
        assert token.read_text() not in json.dumps(told)
        member = host.member()
        assert Path(member.temp_dir).stat().st_mode & 0o777 == 0o700

        again = host.fleet(*host.init())
        assert again.returncode == 3
        assert "a node of a fleet already" in again.stderr

        left = document(host.fleet("leave", "--json"))
        assert left["ending"] == "ended"
        assert not any(map(alive, [*host.children(), *host.starts(), member.keeper.pid]))
        assert not Path(member.temp_dir).exists()
        assert read_member(host.where) is None
        assert other.poll() is None

        never = host.fleet("leave")
        assert never.returncode == 3
        assert "no fleet" in never.stderr
    finally:
        other.kill()
        other.wait()


def test_what_a_killed_keeper_left_is_ended_by_the_next_start_or_by_leave(host: Host) -> None:
    document(host.fleet(*host.init("--json")))
    killed(host.member())
    before = host.children()
    document(host.fleet(*host.init("--json")))
    assert not any(map(alive, before))
    assert all(map(alive, host.children()))
    killed(host.member())
    assert document(host.fleet("leave", "--json"))["ending"] == "was dead"
    assert not any(map(alive, host.children()))
    assert read_member(host.where) is None


def test_one_fleet_has_one_node_a_machine(tmp_path: Path) -> None:
    folder = str(tmp_path)
    other = pytest.raises(AppError, match="Another node of this fleet")
    with folder_held(folder), other, folder_held(folder):
        pass
    with folder_held(folder):
        pass


def killed(member: Member) -> None:
    os.kill(member.keeper.pid, signal.SIGKILL)
    wait_for(lambda: not member.lives(), "the keeper was not killed")


def test_a_node_that_dies_is_started_again(host: Host) -> None:
    (host.home / "slow").touch()  # the first start is Ray's impatience, and no reason to give up
    document(host.fleet(*host.init("--json")))
    member, before = host.member(), host.children()
    os.kill(host.starts()[1], signal.SIGKILL)
    wait_for(lambda: len(host.starts()) == 3 and host.children() != before, "it was not started")
    assert not any(map(alive, before))
    assert host.member().keeper == member.keeper
    assert document(host.fleet("leave", "--json"))["ending"] == "ended"


def test_a_start_that_fails_tells_rays_words_and_leaves_nothing(host: Host) -> None:
    (host.home / "fails").touch()
    done = host.fleet(*host.init())
    assert done.returncode == 1
    assert "The node did not start: ValueError: the words of Ray" in done.stderr
    assert len(host.starts()) == 1
    assert "Traceback" not in done.stderr
    assert read_member(host.where) is None
    assert not temp_dir(read_token(token_path(host.where))).exists()


def test_in_the_foreground_it_ends_at_a_ctrl_c_and_all_below_it(host: Host) -> None:
    (host.home / "stubborn").touch()
    running = subprocess.Popen(
        host.words(*host.init("--foreground", "--json")),
        env=host.env,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    wait_for(lambda: read_member(host.where) is not None, "the node did not start")
    assert host.member().keeper.pid == running.pid
    running.send_signal(signal.SIGINT)
    assert running.wait(PATIENCE_S) == 0
    assert not any(map(alive, host.children()))
    assert read_member(host.where) is None


def test_the_unit_starts_the_same_node_and_nothing_is_started(host: Host) -> None:
    told = document(host.fleet(*host.init("--unit", "--json", "--name", "first")))
    assert "fleet init --address 127.0.0.1 --name first" in told["unit"]
    assert "--foreground" in told["unit"]
    assert f"WORKHORSE_HOME={host.home}" in told["unit"]
    assert not (host.home / "starts").exists()


def test_descendants_are_those_below_and_no_others() -> None:
    inner = "import subprocess,sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", inner], stdin=subprocess.PIPE) as outer:
        wait_for(lambda: len(descendants(outer.pid)) == 1, "no grandchild")
        below = {process.pid for process in descendants(os.getpid())}
        assert {outer.pid, descendants(outer.pid)[0].pid} <= below
        assert os.getpid() not in below
        assert os.getppid() not in below
