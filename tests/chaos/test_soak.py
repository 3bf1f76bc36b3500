"""The soak of benchmarks/soak.py, for seconds instead of an hour."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).resolve().parents[2] / "benchmarks" / "soak.py"
SECONDS = os.environ.get("SOAK_SECONDS", "22")


@pytest.mark.real
@pytest.mark.timeout(900)
def test_nothing_grows_leaks_or_is_answered_wrong() -> None:
    done = subprocess.run(
        [sys.executable, str(SOAK), "--seconds", SECONDS, "--any-latency"],
        capture_output=True,
        text=True,
        timeout=float(SECONDS) + 400,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "troubles             0" in done.stdout
