"""A fleet of two unlike machines, for real: Ray, HAProxy, two engines, the program's own commands.

The machines are namespaces of this one (benchmarks/fleet_rig.py); the second has another processor
and less memory by what it says of itself, so that it is another kind and gets a plan of its own.
"""

import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from fleet_rig import Host, Lab, refusal, wait_until  # noqa: E402
from fleet_service import Fleet, load  # noqa: E402

PATIENCE_S = 600.0
ENGINE = "workhorse.engines.fake --ignore"
TOKENS = 12


@pytest.fixture
def lab() -> Iterator[Lab]:
    """Hosts on a switch of their own."""
    if reason := refusal():
        pytest.skip(f"no namespaces can be made here: {reason}")
    with Lab() as made:
        yield made


def older(host: Host) -> None:
    """Let it look like an old box with 3 GB of memory: another kind, with a plan of its own."""
    cpu = Path("/proc/cpuinfo").read_text()
    host.lay_over("/proc/cpuinfo", re.sub(r"(model name\s*: ).*", r"\1Intel Xeon E5-2620 v4", cpu))
    memory = re.sub(r"(MemTotal: +)\d+", r"\g<1>3000000", Path("/proc/meminfo").read_text())
    host.lay_over(
        "/proc/meminfo", re.sub(r"(Mem(?:Free|Available): +)\d+", r"\g<1>2500000", memory)
    )


def chats(client: Host, fleet: Fleet) -> list[tuple[str, int, str]]:
    """Six chats, half of them streamed: how each ended, its tokens, the words of an error."""
    words = ["--rate", "6", "--seconds", "1", "--tokens", str(TOKENS), "--patience-s", "600"]
    answers = load(client, "rate", fleet, *words)
    return [(one["outcome"], one["tokens"], one["words"]) for one in answers]


WHOLE = [("whole", TOKENS, "")] * 6


@pytest.mark.real
@pytest.mark.timeout(1800)
def test_two_unlike_nodes_serve_lose_an_engine_and_leave(lab: Lab) -> None:
    fleet = Fleet(lab, engine="--gap-ms 5", nodes=0)
    other = fleet.new_node("other")
    older(other)
    fleet.join(other)
    fleet.nodes.append(other)
    client = lab.host("client")

    fleet.up("--context", "1024")
    fleet.wait_replicas(2)
    kinds = {one["kind"] for one in fleet.status()["replicas"]}
    assert len(kinds) == 2, kinds

    assert chats(client, fleet) == WHOLE

    (engine,) = other.pids(ENGINE)
    os.kill(engine, signal.SIGKILL)
    wait_until(lambda: other.pids(ENGINE) not in ([], [engine]), PATIENCE_S, "another engine")
    fleet.wait_replicas(2)
    assert chats(client, fleet) == WHOLE

    fleet.down()
    for host in (fleet.head, other):
        wait_until(lambda host=host: len(host.pids("")) == 1, PATIENCE_S, f"{host.name} is empty")
