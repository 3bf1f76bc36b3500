"""The soak of benchmarks/soak.py, for seconds instead of an hour."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).resolve().parents[2] / "benchmarks" / "soak.py"
SECONDS = os.environ.get("SOAK_SECONDS", "22")
# A machine that stands still for seconds has no figures of them, and gets the requests of those
# seconds at once: what leaks does so each time.
ATTEMPTS = 5


@pytest.mark.real
@pytest.mark.timeout(3600)
def test_nothing_grows_leaks_or_is_answered_wrong() -> None:
    command = [sys.executable, str(SOAK), "--seconds", SECONDS, "--any-latency"]
    for _ in range(ATTEMPTS):
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=float(SECONDS) + 600, check=False
        )
        said = done.stdout + done.stderr
        assert "another answer to" not in said, said
        if done.returncode == 0 and "troubles             0" in done.stdout:
            return
    pytest.fail(said)
