"""What tests share: the data folder, the real model, a fake engine, and a watch over processes."""

import ctypes
import os
import signal
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import hypothesis
import pytest

from running_fake import FakeEngine, running_fake
from workhorse.config import places
from workhorse.models.embedded import embedded_model

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
# How long a process that was told to end may still be seen. Not a speed that is asserted: on a
# loaded machine the kernel and the parent need their turn.
FAREWELL_S = 60.0

# No example is timed, nor the making of it: on a loaded machine any may wait for its turn.
hypothesis.settings.register_profile(
    "untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("untimed")


# --- processes -----------------------------------------------------------------------------------


def pytest_configure() -> None:
    """Make orphans ours: a grandchild whose parent died is seen and not lost.

    And let signals reach what the tests start, though whoever started the tests ignores them, as
    nohup and a shell's background do.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@dataclass(frozen=True)
class Seen:
    """One process in /proc."""

    parent: int
    ended: bool  # a zombie
    command: str


def all_processes() -> dict[int, Seen]:
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            # The name in parentheses may hold spaces; the state and the parent's id follow it.
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it ended meanwhile
        found[int(entry.name)] = Seen(int(parent), state == "Z", words.strip())
    return found


def below_us(spared: Collection[int] = ()) -> dict[int, str]:
    """The live processes below this one by their command lines, without `spared` and theirs."""
    processes = all_processes()
    found: dict[int, str] = {}
    ring = {os.getpid()}
    while ring:
        inner = {p for p, seen in processes.items() if seen.parent in ring} - found.keys()
        ring = inner.difference(spared)
        found |= {pid: processes[pid].command for pid in ring}
    for pid in [pid for pid in found if processes[pid].ended]:
        reap(pid)  # an orphan that ended well: nobody but us can wait for it
        del found[pid]
    return found


def reap(pid: int) -> None:
    with suppress(ChildProcessError):  # a child of a child: its parent's business
        os.waitpid(pid, os.WNOHANG)


@pytest.fixture(autouse=True)
def no_process_left_behind() -> Iterator[None]:
    """Fail the test that leaves a process; end that process, so that only this test suffers.

    Set up first and taken down last of the test's own fixtures; what session and module fixtures
    hold was there before.
    """
    spared = below_us()
    yield
    deadline = time.monotonic() + FAREWELL_S
    while (left := below_us(spared)) and time.monotonic() < deadline:
        time.sleep(0.02)
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert not left, f"processes left behind: {left}"


# --- shared parts --------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Where models are kept: the user's own folder, so that they are downloaded once."""
    return places().data


@pytest.fixture(scope="session")
def real_model(data_dir: Path) -> Path:
    """The embedded model's file; WORKHORSE_TEST_MODEL names another one."""
    if chosen := os.environ.get("WORKHORSE_TEST_MODEL"):
        return Path(chosen)
    return embedded_model(data_dir)


@pytest.fixture
def fake_engine() -> Iterator[FakeEngine]:
    """`fake_engine("--ttft-ms", "20")` starts one and gives its base URL; all end with the test."""
    with ExitStack() as engines:
        yield lambda *options: engines.enter_context(running_fake(*options))
