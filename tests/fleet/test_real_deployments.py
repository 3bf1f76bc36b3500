"""Replicas as Ray Serve has them, for real: refused, without a place, removed while they answer."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from fleet_rig import Lab, refusal

DRIVER = Path(__file__).with_name("deployments_on_ray.py")


@pytest.mark.real
@pytest.mark.timeout(1800)
def test_replicas_are_put_refused_and_removed_in_order() -> None:
    if reason := refusal():
        pytest.skip(f"no namespaces can be made here: {reason}")
    with Lab() as lab:
        head = lab.host("head")
        program = [sys.executable, "-m", "workhorse", "fleet"]
        made = head.run([*program, "init", "--address", head.address])
        assert made.returncode == 0, made.stderr
        done = head.run([sys.executable, str(DRIVER)], timeout_s=1500)
        assert done.returncode == 0, done.stderr
        seen = json.loads(done.stdout.splitlines()[-1])
        left = head.run([*program, "leave"])
        assert left.returncode == 0, left.stderr
    en, zh, speaker = seen["why"]
    assert "failed to open GGUF file" in en
    assert zh
    assert speaker == "engine"
    assert seen["facts"]["state"] == "ready"
    assert seen["facts"]["slots"] == 2
    assert seen["taken over"] is True
    assert seen["tokens"] == seen["asked for"]
    assert seen["after"] == 404
