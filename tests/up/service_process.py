"""`workhorse up` as a process, with the fake engine behind it."""

import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATIENCE_S = 240.0  # for what must come true on a machine with other work
OLD = ("--ctx-size N", "--parallel N", "--model F", "--port N", "--host H", "--alias NAME")
KNOWN = (*OLD, "--api-key KEY")

Json = dict[str, Any]
StartService = Callable[..., "Running"]


def fake_server(
    folder: Path, *options: str, name: str = "llama-server", known: Sequence[str] = KNOWN
) -> Path:
    """A program that is called like llama-server and is the fake engine with these options."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / name
    shown = " ".join(f'"{setting}"' for setting in known)
    program.write_text(
        "#!/bin/sh\n"
        'case "$1" in\n'
        f'--help) printf "%s\\n" {shown};;\n'
        "--version) echo version: 1;;\n"
        f'*) exec {sys.executable} -m workhorse.engines.fake --ignore-unknown "$@" '
        f"{' '.join(options)};;\n"
        "esac\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


def workhorse(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Another command of the same user."""
    return subprocess.run(
        [sys.executable, "-m", "workhorse", *arguments],
        env={**os.environ, "WORKHORSE_HOME": str(home), "WORKHORSE_LANG": "en"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@dataclass
class Running:
    """A running `workhorse up` and what it has said so far."""

    process: subprocess.Popen[bytes]
    home: Path
    said: Path
    url: str = ""

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def text(self) -> str:
        return self.said.read_text()

    def wait_for(self, pattern: str) -> re.Match[str]:
        found = self.until(lambda: re.search(pattern, self.text()), what=pattern)
        assert isinstance(found, re.Match)
        return found

    def until(self, condition: Callable[[], object], what: str = "it never came true") -> object:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if found := condition():
                return found
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise AssertionError(f"{what}:\n{self.text()}")

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return workhorse(self.home, *arguments)

    def answering(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command that asks the service, once it has answered in the time that it is given."""

        def well() -> subprocess.CompletedProcess[str] | None:
            done = self.command(*arguments)
            return done if done.returncode == 0 else None

        done = self.until(well, what=f"{arguments} was never well")
        assert isinstance(done, subprocess.CompletedProcess)
        return done

    def written(self) -> Json:
        """The service's own file."""
        found: Json = json.loads((self.home / "run" / f"service-{self.port}.json").read_text())
        return found

    def engine_pid(self) -> int:
        def pid() -> int | None:
            engines = self.written()["engines"]
            return int(engines[0]["pid"]) if engines else None

        found = self.until(pid, what="no engine was written down")
        assert isinstance(found, int)
        return found

    def get(self, path: str) -> tuple[int, Json]:
        return answered(urllib.request.Request(self.url + path))

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout=PATIENCE_S)


def answered(request: urllib.request.Request) -> tuple[int, Json]:
    """The status and the JSON document of an answer."""
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, json.load(refused)


@contextmanager
def running_service(
    home: Path,
    model: Path,
    engine_options: tuple[str, ...] = (),
    *,
    options: tuple[str, ...] = (),
    ready: bool = True,
) -> Iterator[Running]:
    """`up` on a fake engine with these options; ends with the block."""
    number = len(list(home.glob("said-*")))
    said = home / f"said-{number}.txt"
    engine = fake_server(home / f"bin-{number}", *engine_options)
    command = [sys.executable, "-m", "workhorse", "up", str(model), "--engine", str(engine)]
    with said.open("wb") as out:
        process = subprocess.Popen(
            [*command, "--port", "0", "--skip-golden", "--no-measure", *options],
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, "WORKHORSE_HOME": str(home), "WORKHORSE_LANG": "en"},
        )
    service = Running(process, home, said)
    try:
        if ready:
            service.url = service.wait_for(r"(http://127\.0\.0\.1:\d+)/v1 ")[1]
        yield service
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=PATIENCE_S)
        finally:
            process.kill()
            process.wait()
