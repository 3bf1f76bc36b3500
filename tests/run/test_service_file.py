"""The systemd unit: read by systemd itself, judged by its own security check."""

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from workhorse.run.service_file import UnitFacts, unit

FACTS = UnitFacts(
    command=("/usr/bin/true", "up", "/srv/models/model.gguf", "--port", "8080"),
    reload=("/usr/bin/true", "reload", "--port", "8080"),
    port=8080,
    data_folder="/var/lib/workhorse",
    user="daemon",
    home_is_needed=False,
    tmp_is_needed=False,
    cards=False,
    compiles=False,
    caches=(),
    cpus=(),
    memory_nodes=None,
    drain_s=30.0,
    local_only=True,
)
KINDS = {
    "CPU": FACTS,
    "cards": replace(FACTS, cards=True, local_only=False),
    "compiles": replace(FACTS, compiles=True, caches=("/opt/a b/cache",)),
    "pinned": replace(FACTS, cpus=(0, 1, 2, 3, 8), memory_nodes=(0,)),
    "interleaved": replace(FACTS, cpus=(0, 1), memory_nodes=(0, 1)),
    "low port": replace(FACTS, port=80, local_only=False),
    "home": replace(FACTS, home_is_needed=True, data_folder="/home/a b/work%h"),
    "below /tmp": replace(FACTS, tmp_is_needed=True, data_folder="/tmp/data"),
    "user's own": replace(FACTS, user=None),
    "odd words": replace(FACTS, command=("/usr/bin/true", 'a "b" $HOME %n \\ c; d', "")),
}
# As `systemd-analyze security` counts: 0 safe … 10 exposed. A service without a sandbox has 9.6.
MOST_EXPOSED = {"CPU": 3.0, "cards": 4.5}

Analyze = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def analyze() -> Analyze:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed here")
    return lambda *words: subprocess.run(
        [program, *words], capture_output=True, text=True, timeout=300, check=False
    )


def settings(facts: UnitFacts) -> dict[str, str]:
    lines = [line for line in unit(facts).splitlines() if "=" in line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


@pytest.mark.parametrize("kind", KINDS)
def test_systemd_takes_every_unit(kind: str, tmp_path: Path, analyze: Analyze) -> None:
    path = tmp_path / "workhorse.service"
    path.write_text(unit(KINDS[kind]))
    manager = ["--user"] if KINDS[kind].user is None else []
    done = analyze("verify", *manager, "--man=no", "--recursive-errors=no", str(path))
    # A container lacks what systemd needs to run; that says nothing of the unit.
    said = [line for line in done.stderr.splitlines() if "workhorse" in line]
    assert said == []


@pytest.mark.parametrize("kind", MOST_EXPOSED)
def test_what_it_leaves_open_is_little(kind: str, tmp_path: Path, analyze: Analyze) -> None:
    path = tmp_path / "workhorse.service"
    path.write_text(unit(KINDS[kind]))
    done = analyze(
        "security", "--offline=true", f"--threshold={MOST_EXPOSED[kind] * 10:.0f}", str(path)
    )
    assert done.returncode == 0, done.stdout[-300:]


def test_a_card_costs_what_it_needs_and_no_more() -> None:
    plain, cards = settings(KINDS["CPU"]), settings(KINDS["cards"])
    assert plain["PrivateDevices"] == plain["MemoryDenyWriteExecute"] == "yes"
    assert "PrivateDevices" not in cards
    assert cards["MemoryDenyWriteExecute"] == "no"
    assert cards["DevicePolicy"] == "closed"
    assert (plain["CapabilityBoundingSet"], cards["CapabilityBoundingSet"]) == ("", "CAP_SYSLOG")
    assert "nvidia-modprobe" in cards["ExecStartPre"]


def test_what_compiles_may_run_it_and_keep_it() -> None:
    compiling = settings(KINDS["compiles"])
    assert compiling["MemoryDenyWriteExecute"] == "no"
    assert compiling["ReadWritePaths"] == '"-/opt/a b/cache"'
    assert compiling["PrivateDevices"] == "yes"


def test_pins_come_from_the_plan() -> None:
    pinned, spread = settings(KINDS["pinned"]), settings(KINDS["interleaved"])
    assert (pinned["CPUAffinity"], pinned["NUMAPolicy"], pinned["NUMAMask"]) == (
        "0-3 8",
        "bind",
        "0",
    )
    assert (spread["NUMAPolicy"], spread["NUMAMask"]) == ("interleave", "0-1")
    assert not {"CPUAffinity", "NUMAPolicy"} & settings(FACTS).keys()


def test_the_stop_time_fits_the_drain() -> None:
    assert int(settings(replace(FACTS, drain_s=600))["TimeoutStopSec"]) >= 600 + 45


def test_a_users_own_unit_asks_for_nothing_that_is_roots() -> None:
    own = settings(KINDS["user's own"])
    assert own["WantedBy"] == "default.target"
    assert (
        not {
            "User",
            "ProtectSystem",
            "DeviceAllow",
            "CapabilityBoundingSet",
            "OOMScoreAdjust",
            "LimitMEMLOCK",
        }
        & own.keys()
    )
    assert own["NoNewPrivileges"] == "yes"


def test_words_reach_the_program_as_they_are() -> None:
    command = settings(KINDS["odd words"])["ExecStart"]
    assert command == r'/usr/bin/true "a \"b\" $$HOME %%n \\ c; d" ""'


def test_who_listens_to_others_may_answer_them() -> None:
    assert settings(FACTS)["IPAddressDeny"] == "any"
    assert "IPAddressDeny" not in settings(KINDS["low port"])
    assert settings(KINDS["low port"])["AmbientCapabilities"] == "CAP_NET_BIND_SERVICE"
