"""The systemd unit of a node: read by systemd itself where it is installed."""

import shutil
import subprocess
from pathlib import Path

import pytest

from workhorse.fleet.unit import NodeUnit, node_unit

FACTS = NodeUnit(
    command=("/usr/bin/true", "fleet", "join", "head", "--token-file", "/a b/tok$en"),
    data_folder="/var/lib/work%h",
    user="daemon",
    cards=True,
)


def test_words_that_systemd_would_read_otherwise_are_escaped() -> None:
    lines = node_unit(FACTS).splitlines()
    assert 'ExecStart=/usr/bin/true fleet join head --token-file "/a b/tok$$en"' in lines
    assert "Environment=WORKHORSE_HOME=/var/lib/work%%h" in lines


def test_a_node_that_was_told_to_leave_is_not_started_again() -> None:
    lines = node_unit(FACTS).splitlines()
    assert "Restart=on-failure" in lines  # `fleet leave` ends it with 0
    assert "KillMode=mixed" in lines
    assert "PrivateTmp=no" in lines


@pytest.mark.parametrize("cards", [True, False])
def test_systemd_takes_the_unit(tmp_path: Path, cards: bool) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed here")
    path = tmp_path / "workhorse-fleet.service"
    path.write_text(node_unit(NodeUnit(FACTS.command, FACTS.data_folder, FACTS.user, cards)))
    words = [program, "verify", "--man=no", "--recursive-errors=no", str(path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    said = [line for line in done.stderr.splitlines() if path.name in line]
    assert said == []
