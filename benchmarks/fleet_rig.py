"""Several hosts on one machine, each with an address, a /tmp and processes of its own.

    with Lab(kept=[...]) as lab:
        one, two = lab.host("one"), lab.host("two")
        one.run(["ping", "-c", "1", two.address])

A host is a set of Linux namespaces (network, mounts, processes, host name); all hang on one bridge
in a namespace of its own, so nothing outside can see or reach them. Nothing has a name outside
either: whatever ends the process that holds a `Lab`, SIGKILL included, the kernel ends the hosts
with all their processes and removes networks, mounts and files.

Needs root or the right to make user namespaces; `refusal()` says why not.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from servers import tree

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent
NET = "10.77.0"
GATEWAY = f"{NET}.254"  # the bridge itself: an address to route to, and nobody there
KINDS = ("--net", "--mount", "--pid", "--uts", "--ipc")
HOME = "/tmp/home"
MADE_S = 120.0


class NoLabError(RuntimeError):
    """Namespaces cannot be made here; the words say why."""


@dataclass
class Host:
    """One host, from its making to `kill`."""

    lab: "Lab"
    name: str
    address: str
    space: "Space"
    port: str  # its end of the cable on the bridge
    env: dict[str, str] = field(default_factory=dict)

    def command(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> list[str]:
        """The command that runs `argv` on this host, in its /tmp."""
        words = [f"{name}={value}" for name, value in {**self.env, **(env or {})}.items()]
        return [*self.space.enter(*KINDS), "--", "env", "-C", "/tmp", *words, *argv]

    def run(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float = 600
    ) -> subprocess.CompletedProcess[str]:
        """Run it to its end; its words and its exit code."""
        return subprocess.run(
            self.command(argv, env), capture_output=True, text=True, timeout=timeout_s
        )

    def start(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        out: int | IO[Any] = subprocess.DEVNULL,
    ) -> "Running":
        """Start it; all its words go to `out`."""
        command = self.command(argv, env)
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
        )
        self.lab.started.append(process)
        return Running(process)

    def write(self, path: str, text: str, mode: int = 0o600) -> None:
        """A file in its /tmp."""
        target = Path(f"/proc/{self.space.pid}/root{path}")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        target.chmod(mode)

    def read(self, path: str) -> str:
        """A file of its /tmp."""
        return Path(f"/proc/{self.space.pid}/root{path}").read_text(encoding="utf-8")

    def lay_over(self, path: str, text: str) -> None:
        """Let a file of the system, /proc/meminfo for one, say something else on this host."""
        instead = f"/tmp/.{Path(path).name}"
        self.write(instead, text, 0o644)
        done(self.space.enter(*KINDS), "mount", "--bind", instead, path)

    def pids(self, words: str) -> list[int]:
        """The processes on this host whose command line holds `words`; ids as seen out here."""
        here = Path(f"/proc/{self.space.pid}/ns/pid").stat().st_ino
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal():
                continue
            try:
                if (entry / "ns" / "pid").stat().st_ino != here:
                    continue
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:  # it ended meanwhile
                continue
            if words in line:
                found.append(int(entry.name))
        return sorted(found)

    def cut(self) -> None:
        """Pull the cable out of the switch."""
        self.lab.switch_run("ip", "link", "set", self.port, "down")

    def mend(self) -> None:
        """Put it back."""
        self.lab.switch_run("ip", "link", "set", self.port, "up")

    def kill(self) -> None:
        """As when the power fails: all its processes at once, its /tmp gone."""
        self.space.kill()


@dataclass(frozen=True)
class Running:
    """A process on a host."""

    process: "subprocess.Popen[bytes]"

    def send(self, number: signal.Signals) -> None:
        """To the process itself: the one that entered the host passes nothing on."""
        inner = tree(self.process.pid)[1:2]
        for pid in inner:
            os.kill(pid, number)

    def end(self, number: signal.Signals = signal.SIGTERM, patience_s: float = 300) -> int:
        """Ask it to end and wait; its exit code."""
        self.send(number)
        try:
            return self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGKILL)
            return self.process.wait(patience_s)


class Space:
    """New namespaces and their first process."""

    def __init__(self, before: Sequence[str], kinds: Sequence[str], words: Sequence[str]) -> None:
        argv = [*before, "unshare", *kinds, "--fork", "--kill-child", "--mount-proc", "--"]
        argv += [sys.executable, "-I", "-S", str(HERE / "fleet_host.py"), *words]
        # Alone, a Ctrl-C in the terminal does not reach it: the lab ends when its user does.
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdout is not None and self._process.stderr is not None
        if self._process.stdout.readline() != "made\n":
            why = self._process.stderr.read().strip().splitlines()[-1:]
            self._process.kill()
            self._process.wait()
            raise NoLabError(f"no namespace for {words[0]}: {' '.join(why) or 'it ended'}")
        self.pid = tree(self._process.pid)[-1]
        self._rootless = "--user" in kinds or "--user" in before

    def enter(self, *kinds: str) -> list[str]:
        """The command that enters these of its namespaces."""
        user = ["--user", "--preserve-credentials"] if self._rootless else []
        return ["nsenter", "--target", str(self.pid), *user, *kinds]

    def kill(self) -> None:
        """End its first process, and with it all."""
        if self._process.poll() is None:
            # What it holds is gone when all its processes are: the kernel kills them before
            # it lets the first one go.
            os.kill(self.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()


class Lab:
    """The switch, and the hosts on it; all end with the `with` block."""

    def __init__(self, kept: Sequence[Path] = (), env: Mapping[str, str] | None = None) -> None:
        folders = {Path(sys.prefix), Path(sys.base_prefix), REPOSITORY, *kept}
        self._kept = sorted(str(path) for path in folders)
        self._env = dict(env or {})
        self.hosts: dict[str, Host] = {}
        self.started: list[subprocess.Popen[bytes]] = []
        self._cables = 0

    def __enter__(self) -> Self:
        user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        self._switch = Space([], [*user, *KINDS], ["switch", GATEWAY])
        self.switch_run("ip", "link", "set", "lo", "up")
        self.switch_run("ip", "link", "add", "switch", "type", "bridge")
        self.switch_run("ip", "address", "add", f"{GATEWAY}/24", "dev", "switch")
        self.switch_run("ip", "link", "set", "switch", "up")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for host in self.hosts.values():
            host.kill()
        self._switch.kill()
        for process in self.started:
            process.wait()  # what it ran is gone

    def host(self, name: str, address: str | None = None) -> Host:
        """A new host on the switch. `address`: that of a host that was killed, to come back."""
        self._cables += 1
        number, port = self._cables, f"port{self._cables}"
        address = address or f"{NET}.{number}"
        before = [] if os.geteuid() == 0 else self._switch.enter()
        space = Space(before, KINDS, [name, address, *self._kept])
        env = {"HOME": HOME, "WORKHORSE_HOME": f"{HOME}/workhorse", "TMPDIR": "/tmp", **self._env}
        host = Host(self, name, address, space, port, env)
        self.hosts[name] = host
        peer = ("peer", "name", "eth0", "netns", str(space.pid))
        self.switch_run("ip", "link", "add", port, "type", "veth", *peer)
        self.switch_run("ip", "link", "set", port, "master", "switch", "up")
        for words in (
            ("link", "set", "lo", "up"),
            ("address", "add", f"{address}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("route", "add", "default", "via", GATEWAY),
        ):
            done(host.space.enter("--net"), "ip", *words)
        host.run(["mkdir", "-p", HOME])
        return host

    def switch_run(self, *argv: str) -> None:
        """Run a command in the network of the switch."""
        done(self._switch.enter("--net"), *argv)


def done(before: Sequence[str], *argv: str) -> None:
    """Run a command of the system; `NoLabError` with its words when it fails."""
    ended = subprocess.run([*before, "--", *argv], capture_output=True, text=True)
    if ended.returncode != 0:
        raise NoLabError(f"`{' '.join(argv)}`: {ended.stderr.strip()}")


def refusal() -> str | None:
    """Why no lab can be made here; None when one was made, with a host that has an address."""
    try:
        with Lab() as lab:
            lab.host("try")
    except (NoLabError, OSError) as error:
        return str(error)
    return None


def wait_until(
    holds: Callable[[], bool], patience_s: float, what: str, every_s: float = 0.1
) -> float:
    """Ask `holds()` until it is true; the seconds that took. A TimeoutError when it never is."""
    began_s = time.monotonic()
    while not holds():
        if time.monotonic() - began_s > patience_s:
            raise TimeoutError(f"not within {patience_s:.0f} s: {what}")
        time.sleep(every_s)
    return time.monotonic() - began_s
