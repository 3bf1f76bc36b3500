"""The last steps before the engine: what the process that becomes it sets for itself."""

import ctypes
import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from launches import one_cpu

from workhorse.run import enter


def enter_as(*arguments: str, parent: int | None = None) -> subprocess.CompletedProcess[str]:
    pid = os.getpid() if parent is None else parent
    entry = [sys.executable, "-I", "-S", enter.__file__, "--parent", str(pid), *arguments]
    return subprocess.run(entry, capture_output=True, text=True, timeout=300, check=False)


def test_the_command_has_the_process_id_that_was_started() -> None:
    entry = [sys.executable, "-I", "-S", enter.__file__, "--parent", str(os.getpid())]
    with subprocess.Popen([*entry, "--", "sh", "-c", "echo $$"], stdout=subprocess.PIPE) as engine:
        said, _ = engine.communicate(timeout=300)
    assert int(said) == engine.pid


def test_it_runs_on_the_told_cpus() -> None:
    cpu = str(one_cpu())
    done = enter_as("--cpus", cpu, "--", "grep", "Cpus_allowed_list", "/proc/self/status")
    assert done.stdout.split() == ["Cpus_allowed_list:", cpu]


def test_its_memory_is_bound_to_the_told_node() -> None:
    if not Path("/proc/self/numa_maps").exists():
        pytest.skip("this kernel shows no NUMA policies (/proc/self/numa_maps)")
    node = Path("/sys/devices/system/node/has_memory").read_text().strip().split("-")[0]
    done = enter_as("--memory-nodes", node, "--", "cat", "/proc/self/numa_maps")
    if "not allowed here" in done.stderr:
        pytest.skip("this container forbids set_mempolicy")
    assert done.returncode == 0
    assert f" bind:{node} " in done.stdout


def test_the_kernel_ends_it_before_others_when_memory_runs_out() -> None:
    done = enter_as("--", "cat", "/proc/self/oom_score_adj")
    assert int(done.stdout) >= enter.OOM_SCORE


def test_signals_that_the_caller_ignores_or_blocks_reach_the_engine() -> None:
    ignored = signal.signal(signal.SIGINT, signal.SIG_IGN)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        done = enter_as("--", "grep", "-E", "SigIgn|SigBlk", "/proc/self/status")
    finally:
        signal.signal(signal.SIGINT, ignored)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    # Signals 32 and 33 are the C library's own: nobody can set them, and a parent may hand them on.
    own = 0b11 << 31
    assert [int(word, 16) & ~own for word in done.stdout.split()[1::2]] == [0, 0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--cpus", "4000", "--", "true"), "CPUs [4000]"),
        (("--memory-nodes", "900", "--", "true"), "set_mempolicy for nodes [900]"),
        (("--", "/no/such/engine"), "/no/such/engine: No such file or directory"),
        (("--", "/"), "/: Permission denied"),
        (("--cpus", "a", "--", "true"), "wrong arguments"),
        (("--cpus", "--", "true"), "wrong arguments"),
        (("--",), "wrong arguments"),
        ((), "wrong arguments"),
    ],
)
def test_what_goes_wrong_is_one_line_and_127(arguments: tuple[str, ...], said: str) -> None:
    done = enter_as(*arguments)
    if "not allowed here" in done.stderr:
        pytest.skip("this container forbids set_mempolicy")
    assert done.returncode == 127
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_it_does_not_start_for_a_parent_that_has_ended() -> None:
    done = enter_as("--", "true", parent=os.getpid() + 1)
    assert done.returncode == 127
    assert "ended while it started" in done.stderr


class Kernel:
    """A C library whose system call fails."""

    def __init__(self, error: int) -> None:
        self.error = error
        self.calls: list[tuple[Any, ...]] = []

    def syscall(self, *arguments: int) -> int:
        self.calls.append(arguments)
        ctypes.set_errno(self.error)
        return -1 if self.error else 0


def test_a_container_that_forbids_memory_policies_is_no_reason_to_stop(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(enter, "LIBC", Kernel(errno.EPERM))
    enter.use_memory_nodes({0})
    assert "not allowed here" in capsys.readouterr().err
    monkeypatch.setattr(enter, "LIBC", Kernel(errno.EINVAL))
    with pytest.raises(OSError, match="set_mempolicy"):
        enter.use_memory_nodes({0})


def test_one_node_is_bound_and_several_are_interleaved(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(0)
    monkeypatch.setattr(enter, "LIBC", kernel)
    enter.use_memory_nodes({1})
    enter.use_memory_nodes({0, 70})
    one, several = kernel.calls
    assert (one[1], list(one[2]), one[3]) == (enter.MPOL_BIND, [0b10], 65)
    assert (several[1], list(several[2]), several[3]) == (enter.MPOL_INTERLEAVE, [1, 1 << 6], 129)
