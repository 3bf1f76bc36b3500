"""`boot.py` as a test: a machine of its own, with systemd as its first process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BOOT = Path(__file__).with_name("boot.py")


@pytest.mark.timeout(1200)
@pytest.mark.skipif(
    os.environ.get("WORKHORSE_TEST_SYSTEMD") is None or os.geteuid() != 0,
    reason="takes root and two minutes: WORKHORSE_TEST_SYSTEMD=1",
)
def test_the_unit_where_systemd_is_the_first_process() -> None:
    done = subprocess.run(
        [sys.executable, str(BOOT)], capture_output=True, text=True, timeout=1100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
