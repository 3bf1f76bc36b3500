"""`workhorse up` as a process, for as long as a test asks it."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

DEADLINE_S = 300.0


@contextmanager
def served(
    model: str, said: Path, *words: str, env: Mapping[str, str] = os.environ
) -> Iterator[str]:
    """The address of the served model; what the service says goes into the file `said`."""
    command = [sys.executable, "-m", "workhorse", "up", model, "--port", "0", "--no-measure"]
    with said.open("wb") as out:
        process = subprocess.Popen(
            [*command, "--lang", "en", *words], stdout=out, stderr=subprocess.STDOUT, env=env
        )
    try:
        yield _address(process, said)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=DEADLINE_S)
        finally:
            process.kill()
            process.wait()


def _address(process: subprocess.Popen[bytes], said: Path) -> str:
    """Where the service is, once it says that it is ready."""
    until_s = time.monotonic() + DEADLINE_S
    while process.poll() is None and time.monotonic() < until_s:
        if found := re.search(r"(http://127\.0\.0\.1:\d+)/v1 ", said.read_text()):
            return found[1]
        time.sleep(0.05)
    raise AssertionError(said.read_text())
