"""How a node is started: its command line, its environment, its ports."""

import itertools
import json
import shutil
import subprocess
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from workhorse.fleet.ray_start import (
    NodeStart,
    Ports,
    arguments,
    cluster_environment,
    firewall_commands,
    open_ports,
    without_ray,
)
from workhorse.fleet.weights_share import PORTS

ROOT = Path(__file__).resolve().parents[2]
START = NodeStart(
    name="one",
    address="10.0.0.1:6379",
    node_address="10.0.0.2",
    head=False,
    token_file="/data/token",
    temp_dir="/tmp/w",
    ports=Ports(),
    resources={"gpu_0": 1.0, "numa_0": 1.0},
    labels={"workhorse.kind": "box", "workhorse.name": "one"},
)


def options(start: NodeStart) -> dict[str, str]:
    words = [word for word in arguments(start) if word.startswith("--")]
    return {key: value for key, _, value in (word.partition("=") for word in words)}


def test_no_two_ports_of_a_node_are_the_same() -> None:
    numbers: list[int] = []
    for value in asdict(Ports()).values():
        first, last = value if isinstance(value, tuple) else (value, value)
        numbers += range(first, last + 1)
    assert len(numbers) == len(set(numbers))
    assert max(numbers) < 32768  # from there on the kernel gives ports to whoever connects


def test_a_node_joins_and_the_head_does_not() -> None:
    joins, heads = options(START), options(replace(START, head=True))
    assert joins["--address"] == "10.0.0.1:6379"
    assert "--head" not in joins
    assert "--head" in heads
    assert "--address" not in heads
    assert heads["--dashboard-host"] == "127.0.0.1"
    assert json.loads(joins["--resources"]) == {"gpu_0": 1.0, "numa_0": 1.0}
    assert joins["--labels"] == "workhorse.kind=box,workhorse.name=one"
    assert "--block" in joins


def test_every_port_that_is_told_to_ray_is_in_the_list() -> None:
    listed = [(one.first, one.last) for one in open_ports(Ports())]
    inside_only = {"--dashboard-port"}
    for option, value in options(replace(START, head=True)).items():
        if option.endswith("-port") or option == "--port":
            number = int(value)
            there = any(first <= number <= last for first, last in listed)
            assert there == (option not in inside_only and number > 0), option
    for (_, before), (first, _) in itertools.pairwise(sorted(listed)):
        assert before < first


def test_weights_are_given_on_the_ports_that_are_listed() -> None:
    first, last = Ports().weights
    assert tuple(range(first, last + 1)) == PORTS


def test_the_environment_has_the_token_by_its_file_and_nothing_of_the_users_own_ray() -> None:
    environment = cluster_environment("/data/token", "/tmp/w", Ports(proxy_stats=18404))
    assert environment["RAY_AUTH_MODE"] == "token"
    assert environment["RAY_AUTH_TOKEN_PATH"] == "/data/token"
    assert environment["RAY_SERVE_HAPROXY_STATS_PORT"] == "18404"
    assert all(isinstance(value, str) for value in environment.values())
    mine = {"RAY_ADDRESS": "auto", "RAY_AUTH_TOKEN": "secret", "PATH": "/bin"}
    assert without_ray(mine) == {"PATH": "/bin"}


def test_haproxys_sockets_are_short_enough_and_in_our_folder() -> None:
    folder = "/tmp/workhorse-12345678"
    environment = cluster_environment("/t", folder, Ports())
    for name, value in environment.items():
        if "HAPROXY" in name and value.startswith("/"):
            assert value.startswith(folder), name
    path = environment["RAY_SERVE_HAPROXY_SOCKET_PATH"]
    # Ray puts the node's id (56 digits) before the name; HAProxy appends `.<pid>.tmp` for a while.
    whole = path.replace("/admin.sock", f"/{'f' * 56}/admin.sock")
    assert len(f"{whole}.4194304.tmp") <= 107
    assert len(whole) <= 97


def test_the_firewall_names_every_port_that_others_reach() -> None:
    for head in (True, False):
        commands = firewall_commands(Ports(), "10.0.0.0/24", head=head)
        rules = [one for one in commands if "add rule" in one]
        assert len(rules) == 2
        for one in open_ports(Ports()):
            words = str(one.first) if one.first == one.last else f"{one.first}-{one.last}"
            assert all((f" {words}," in r or f" {words} " in r) for r in rules) == (
                head or not one.head_only
            )


@pytest.mark.parametrize("page", ["docs/fleet.md", "docs/fleet.zh.md"])
def test_the_page_lists_every_port(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for one in open_ports(Ports()):
        shown = str(one.first) if one.first == one.last else f"{one.first}–{one.last}"
        assert shown in text, one


def test_nftables_takes_the_commands() -> None:
    nft = shutil.which("nft")
    if nft is None:
        pytest.skip("nft is not installed here")
    script = "\n".join(
        one.removeprefix("nft ").strip("'")
        for one in firewall_commands(Ports(), "10.0.0.0/24", head=True)
    )
    done = subprocess.run([nft, "-c", "-f", "-"], input=script, capture_output=True, text=True)
    if "Operation not permitted" in done.stderr:
        pytest.skip("nft may not look at the tables here")
    assert done.returncode == 0, done.stderr
