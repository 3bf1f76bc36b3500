"""Which nodes hold a model together and what the replica is told, with the nodes as stand-ins."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from spread_boxes import RPC, WISH, box, large

import pooled
from workhorse.codec import from_json, to_json
from workhorse.errors import AppError
from workhorse.fleet.fleet_plan import FleetPlan
from workhorse.fleet.kinds import NodeFound
from workhorse.fleet.link import Answering, measure
from workhorse.fleet.node_facts import Node
from workhorse.fleet.plan_here import PlanRequest, WantedModel
from workhorse.fleet.rpc_server import RpcBuild
from workhorse.fleet.spec import ReplicaSpec, WeightsSource
from workhorse.fleet.spread import Link
from workhorse.fleet.spread_up import SpreadGround, Spreading, ground_here, spread_plan, too_large
from workhorse.records import Machine
from workhorse.text import Text

BUILD = RpcBuild("a" * 64, "b" * 64, "/engines/one/bin")
WEIGHTS = (WeightsSource("m.gguf", "ab" * 32, 5, ("http://10.0.0.1:8090/weights/" + "ab" * 32,)),)
WANTED = WantedModel(large(), None, WEIGHTS)


def node(name: str, *, alive: bool = True) -> Node:
    return Node(f"id-{name}", name, f"10.0.0.{name[1:]}", name == "n1", alive, False, {}, {})


@dataclass
class Nodes:
    """What each node brings, and what was said and asked."""

    grounds: dict[str, SpreadGround | AppError]
    said: list[str] = field(default_factory=list)
    links: list[tuple[str, str, str]] = field(default_factory=list)
    open_probes: set[str] = field(default_factory=set)

    def on_node(self, node: Node, function: Callable[..., Any], *args: Any, **more: Any) -> Any:
        if function is ground_here:
            ground = self.grounds[node.name]
            if isinstance(ground, AppError):
                raise ground
            return ground
        assert function is measure
        self.links.append((node.name, args[0].host, more["own"]))
        return Link(117e6, 0.2e-3)

    def stage(self, words: Text) -> None:
        self.said.append(words.en)

    def progress(self, done: int, total: int | None) -> None: ...

    def probing(self, node_id: str) -> tuple[Answering, str]:
        self.open_probes.add(node_id)
        return Answering(node_id, 1, "w"), node_id

    def plan(self, *names: Node) -> FleetPlan:
        how = Spreading(self, self.probing, self.open_probes.discard, self)
        alone = FleetPlan("m", (), (), ())
        request = PlanRequest((WANTED,), WISH)
        plan, _ = asyncio.run(spread_plan(how, names, WANTED, request, alone))
        return plan


def ground(machine: Machine, build: RpcBuild = BUILD) -> SpreadGround:
    return SpreadGround(machine, RPC, build)


def test_the_roomiest_node_leads_and_as_few_others_help_as_can() -> None:
    nodes = Nodes({"n1": ground(box(8)), "n2": ground(box(10)), "n3": ground(box(8))})
    plan = nodes.plan(node("n1"), node("n2"), node("n3"))
    (spec,) = plan.replicas
    assert spec.name == "n2-spread"
    assert spec.node_id == "id-n2"
    assert [(one.name, one.needs) for one in spec.helpers] == [("n1", {"numa_0": 1.0})]
    assert spec.needs == {"numa_0": 1.0}
    assert spec.weights == WEIGHTS[0]
    assert spec.plan.rpc == (), "where the helpers listen is known when they do"
    assert nodes.links == [("n2", "id-n1", "10.0.0.2")]
    assert nodes.open_probes == set()
    assert from_json(ReplicaSpec, to_json(spec), what="spec") == spec


def test_it_is_said_loudly_before_anything_listens() -> None:
    nodes = Nodes({"n1": ground(box(10)), "n2": ground(box(10))})
    nodes.plan(node("n1"), node("n2"))
    assert nodes.said[0].startswith("WARNING: --trust-link: the nodes' RPC ports ask for no key.")


def test_a_node_with_another_build_does_not_help() -> None:
    other = ground(box(10), replace(BUILD, rpc_sha256="c" * 64))
    nodes = Nodes({"n1": ground(box(10)), "n2": other})
    with pytest.raises(
        AppError, match=r"No other node has the engine build of n1.*n2 have another"
    ):
        nodes.plan(node("n1"), node("n2"))
    nodes = Nodes({"n1": ground(box(10)), "n2": other, "n3": ground(box(10))})
    (spec,) = nodes.plan(node("n1"), node("n2"), node("n3")).replicas
    assert [one.name for one in spec.helpers] == ["n3"]


def test_nodes_that_cannot_are_told() -> None:
    cannot = AppError(Text("no RPC here", "无"), Text("build one", "构建"))
    nodes = Nodes({"n1": ground(box(10)), "n2": cannot, "n3": ground(box(10))})
    nodes.plan(node("n1"), node("n2"), node("n3"), node("n4", alive=False))
    assert "n2: no RPC here" in nodes.said
    with pytest.raises(AppError, match="no RPC here"):
        Nodes({"n1": cannot, "n2": cannot}).plan(node("n1"), node("n2"))
    with pytest.raises(AppError, match="No other node has the engine build of n1"):
        Nodes({"n1": ground(box(60))}).plan(node("n1"))


def test_what_all_of_them_together_cannot_hold() -> None:
    nodes = Nodes({"n1": ground(box(4)), "n2": ground(box(4))})
    with pytest.raises(AppError, match="2 machines together have room for"):
        nodes.plan(node("n1"), node("n2"))


def test_a_checkpoint_is_not_spread_by_itself() -> None:
    stored = WantedModel(large(), pooled.stored(), WEIGHTS)
    how = Spreading(Nodes({}), Nodes({}).probing, lambda _: None, Nodes({}))
    request, alone = PlanRequest((stored,), WISH), FleetPlan("m", (), (), ())
    with pytest.raises(AppError, match="with vLLM alone"):
        asyncio.run(spread_plan(how, [node("n1")], stored, request, alone))


def test_only_what_no_node_runs_is_spread() -> None:
    assert too_large([WANTED], [NodeFound(node("n1"), None)]) == WANTED
    assert too_large([], []) is None
