"""What a replica is told survives the way to its node, and bad names never become routes."""

import pytest

import builders
from workhorse.codec import from_json, to_json
from workhorse.errors import AppError
from workhorse.fleet.spec import ReplicaSpec, WeightsSource, route_of
from workhorse.plan.planner import make_plan
from workhorse.plan.wish import Wish

PLAN = make_plan(builders.machine(), builders.model(), builders.EMBEDDED, Wish())
WEIGHTS = WeightsSource("m.gguf", "ab" * 32, 7_000_000_000, ("http://10.0.0.1:8003/m.gguf",))


def spec(name: str = "chat-1") -> ReplicaSpec:
    return ReplicaSpec(name, "m", PLAN, WEIGHTS, {"gpu_0": 1.0, "numa_1": 0.5}, "p40-e5")


def test_a_spec_travels_whole() -> None:
    there = from_json(ReplicaSpec, to_json(spec()), what="the spec")
    assert there == spec()
    assert there.route == "/r/chat-1"


@pytest.mark.parametrize("name", ["", "-a", "a-", "a/b", "A", "a b", "a" * 64, "..", "a\n", "甲"])
def test_a_name_that_cannot_be_a_route_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="part of a route"):
        spec(name)
    document = to_json(spec()).replace('"chat-1"', f'"{name}"' if name != "a\n" else '"a\\n"')
    with pytest.raises(AppError):
        from_json(ReplicaSpec, document, what="the spec")


def test_routes_of_different_names_are_no_prefixes_with_a_slash() -> None:
    assert not f"{route_of('a-1')}/".startswith(f"{route_of('a')}/")
