"""Nodes of a fleet with Ray itself: who gets in, which ports are open, what is left afterwards."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from workhorse.fleet.ray_start import Ports, open_ports
from workhorse.fleet.secret import new_token

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from fleet_rig import Host, Lab, refusal, wait_until

PATIENCE_S = 600.0
FLEET = [sys.executable, "-m", "workhorse", "fleet"]
HOME = "/tmp/home/workhorse"
LOOPBACK = ("0100007F", "00000000000000000000000001000000")
# As seen from the head: who is there, work on the other one, and an error that comes back whole.
CLIENT = """
import json, os
from pathlib import Path
from workhorse.config import places
from workhorse.errors import AppError
from workhorse.fleet.connect import connect
from workhorse.fleet.member import this_member
from workhorse.fleet.secret import read_token
cluster = connect(this_member(places()))
one, two = cluster.nodes()
told = {"names": [one.name, two.name], "heads": [one.head, two.head], "kinds": [one.kind, two.kind]}
told["resources"] = sorted(name for name in two.resources if name.startswith(("gpu_", "numa_")))
told["host"] = cluster.on_node(two, os.uname).nodename
try:
    cluster.on_node(two, read_token, Path("/none"))
except AppError as error:
    told["error"] = [error.what.en, error.what.zh, error.next_step.en]
cluster.set_draining(two.id, True)
told["draining"] = [node.draining for node in cluster.nodes()]
cluster.close()
print(json.dumps(told))
"""


@pytest.fixture
def lab() -> Iterator[Lab]:
    if reason := refusal():
        pytest.skip(f"no namespaces can be made here: {reason}")
    with Lab() as made:
        yield made


def document(host: Host, *words: str) -> dict[str, Any]:
    done = host.run([*FLEET, *words, "--json"])
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def listening(host: Host) -> set[int]:
    """The TCP ports on which somebody listens on this host, for others too."""
    found = set()
    for table in ("tcp", "tcp6"):
        for line in host.run(["cat", f"/proc/net/{table}"]).stdout.splitlines()[1:]:
            address, state = line.split()[1], line.split()[3]
            if state == "0A" and address.rpartition(":")[0] not in LOOPBACK:
                found.add(int(address.rpartition(":")[2], 16))
    return found


def unlisted(ports: set[int], *, head: bool) -> set[int]:
    ranges = [(o.first, o.last) for o in open_ports(Ports()) if head or not o.head_only]
    return {port for port in ports if not any(first <= port <= last for first, last in ranges)}


@pytest.mark.real
@pytest.mark.timeout(1800)
def test_two_nodes_from_the_first_token_to_the_last_process(lab: Lab) -> None:
    head, two, foreign = lab.host("one"), lab.host("two"), lab.host("foreign")
    document(head, "init")
    two.write("/tmp/token", head.read(f"{HOME}/fleet/token"))
    document(two, "join", head.address, "--token-file", "/tmp/token")

    foreign.write("/tmp/token", new_token())
    refused = foreign.run([*FLEET, "join", head.address, "--token-file", "/tmp/token"])
    assert refused.returncode == 3
    assert "refuses this token" in refused.stderr

    done = head.run([sys.executable, "-c", CLIENT])
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["names"] == ["one", "two"]
    assert told["heads"] == [True, False]
    assert told["kinds"][0] == told["kinds"][1] != "unknown"
    assert "numa_0" in told["resources"]
    assert told["host"] == "two"
    assert "/none" in told["error"][0]
    assert "/none" in told["error"][1]
    assert told["draining"] == [False, True]

    for host, is_head in ((head, True), (two, False)):
        ports = listening(host)
        assert len(ports) >= 6
        assert unlisted(ports, head=is_head) == set()

    for host in (two, head):
        assert document(host, "leave")["ending"] == "ended"
        wait_until(lambda host=host: len(host.pids("")) == 1, PATIENCE_S, f"{host.name} is empty")
        assert host.run(["sh", "-c", "ls -d /tmp/workhorse-*"]).returncode != 0
