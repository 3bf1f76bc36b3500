"""The plan of a fleet of different boxes: another file, slots and engine for each kind.

WORKHORSE_WRITE_GOLDENS=1 writes the goldens anew; read the difference before you commit it.
"""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from captured_fleet import SIZES, found, machine_of, node_of, plans_of

from workhorse.cli.fleet_plan_tables import print_fleet_plan
from workhorse.codec import from_json, to_json
from workhorse.config import Places
from workhorse.errors import AppError
from workhorse.fleet import plan_here as planning
from workhorse.fleet.fleet_plan import FleetPlan, NodePlans
from workhorse.fleet.kinds import Choosing, NodeFound, choose
from workhorse.fleet.node_facts import VERSION
from workhorse.fleet.plan_here import PlanRequest, WantedModel, plan_here, remembered
from workhorse.fleet.spec import WeightsSource
from workhorse.plan.wish import Wish
from workhorse.run.live_processes import birthplace, read_process
from workhorse.run.run_file import ServiceFile, path_of, write_service_file
from workhorse.text import Text

GOLDENS = Path(__file__).parent / "goldens"
BOXES = ("machine_a", "machine_b", "p40_box", "cpu_box", "avx_only")


@pytest.fixture
def where(tmp_path: Path) -> Places:
    return Places(tmp_path)


def in_short(plan: FleetPlan) -> dict[str, Any]:
    """What a person would look at, without speeds: their constants learn from each new row."""
    return {
        "kinds": [
            {
                "kind": kind.kind,
                "nodes": kind.nodes,
                "file": kind.option.name,
                "fit": kind.option.fit,
                "not": [one.option for one in kind.rejected],
            }
            for kind in plan.kinds
        ],
        "replicas": [
            {
                "name": one.name,
                "kind": one.kind,
                "needs": dict(one.needs),
                "engine": one.plan.engine.version,
                "model": one.plan.model_path,
                "slots": one.plan.slots,
                "context_tokens": one.plan.context_tokens,
                "device": one.plan.device,
                "gpus": one.plan.gpu_indexes,
                "memory_nodes": one.plan.memory_nodes,
            }
            for one in plan.replicas
        ],
        "not_used": [[one.node, one.why.en, one.why.zh] for one in plan.not_used],
    }


@pytest.mark.parametrize("purpose", ["chat", "batch"])
def test_the_plan_of_a_fleet_of_different_boxes(purpose: Any) -> None:
    wish = Wish(purpose=purpose)
    nodes = [found(name, name, n, wish) for n, name in enumerate(BOXES, 1)]
    plan = choose(nodes, Choosing("fourteen", wish))
    golden = GOLDENS / f"different_boxes_{purpose}.json"
    told = json.loads(json.dumps(in_short(plan)))
    if os.environ.get("WORKHORSE_WRITE_GOLDENS"):
        golden.write_text(json.dumps(told, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    assert told == json.loads(golden.read_text(encoding="utf-8"))
    assert from_json(FleetPlan, to_json(plan), what="plan") == plan


def test_a_kind_gets_another_file_slots_and_engine_than_another() -> None:
    nodes = [found(name, name, n) for n, name in enumerate(BOXES, 1)]
    plan = choose(nodes, Choosing("fourteen"))
    by_node = {one.name.rsplit("-", 1)[0]: one.plan for one in plan.replicas}
    v100, p40, cpu = by_node["machine-a"], by_node["p40-box"], by_node["cpu-box"]
    assert len({one.model_path for one in (v100, p40, cpu)}) > 1
    assert len({one.engine.version for one in (v100, p40, cpu)}) == 3
    assert v100.slots > cpu.slots
    assert [one.node for one in plan.not_used] == ["avx_only"]


def test_equal_boxes_serve_the_same_file_and_one_that_cannot_rests() -> None:
    plans = plans_of("machine_b")
    best = choose([NodeFound(node_of("a", "machine_b"), plans)], Choosing("m")).kinds[0].option
    lacking = NodePlans(tuple(one for one in plans.options if one.file != best.file))
    nodes = [
        NodeFound(node_of("a", "machine_b", 1), plans),
        NodeFound(node_of("b", "machine_b", 2), lacking),
        NodeFound(node_of("c", "machine_b", 3), plans),
    ]
    plan = choose(nodes, Choosing("m"))
    assert [one.name for one in plan.replicas] == ["a-gpu0", "c-gpu0"]
    assert plan.kinds[0].nodes == ("a", "c")
    (resting,) = plan.not_used
    assert resting.node == "b"
    assert best.name in resting.why.en


def test_nodes_that_cannot_serve_say_why() -> None:
    plans = plans_of("machine_b")
    node = node_of("n", "machine_b")
    other = {**node.labels, VERSION: "0.0.9"}
    cases = {
        "gone": NodeFound(replace(node, alive=False), None),
        "drained": NodeFound(replace(node, draining=True), plans),
        "0.0.9": NodeFound(replace(node, labels=other), plans),
        "cannot be asked": NodeFound(node, None, Text("It cannot be asked now.", "暂时无法查询。")),
        "no such file": NodeFound(node, NodePlans((), (Text("no such file", "没有文件"),))),
    }
    for words, one in cases.items():
        plan = choose([one], Choosing("m"))
        assert plan.replicas == ()
        assert words in plan.not_used[0].why.en
        assert plan.not_used[0].why.zh != plan.not_used[0].why.en
        assert plan.total_tokens_per_s is None


def test_only_so_many_replicas_start_as_are_asked_for_the_fastest_first() -> None:
    nodes = [found("slow", "cpu_box", 1), found("fast", "machine_b", 2)]
    plan = choose(nodes, Choosing("m", replicas=1))
    assert [one.name for one in plan.replicas] == ["fast-gpu0"]
    assert {one.name.split("-")[0] for one in plan.spare} == {"slow"}


def test_a_box_that_nobody_would_wait_for_serves_documents_alone() -> None:
    for purpose, used in (("chat", False), ("batch", True)):
        wish = Wish(purpose=purpose, slots=24)  # type: ignore[arg-type]
        plans = plans_of("cpu_box", (3,), wish)  # 58 GB in main memory
        plan = choose([NodeFound(node_of("c", "cpu_box"), plans)], Choosing("m", wish))
        assert bool(plan.replicas) == used
        assert bool(plan.not_used) != used


def test_what_lies_in_main_memory_claims_the_memory_too() -> None:
    (option,) = plans_of("machine_a", (1,)).options  # 16 GB card, 15.7 GB of weights
    (engine,) = option.engines
    assert option.fit == "partly"
    assert engine.needs == {"gpu_0": 1.0} | {
        f"numa_{node}": 1.0 for node in engine.plan.memory_nodes or (0, 1)
    }
    (whole,) = plans_of("machine_b", (1,)).options
    assert whole.engines[0].needs == {"gpu_0": 1.0}


def test_each_card_that_holds_the_model_gets_an_engine() -> None:
    (option,) = plans_of("eight_v100", (2,)).options
    assert sorted(one.place.name for one in option.engines) == [f"gpu{n}" for n in range(8)]
    cpus = [set(one.plan.cpus) for one in option.engines]
    assert sum(map(len, cpus)) == len(set.union(*cpus))  # no CPU is two engines'


def test_replicas_are_named_by_their_node_whatever_that_is_called() -> None:
    plans = plans_of("machine_b", (2,))
    names = ["Rack 1/Box_7", "rack-1-box-7", "机房一", "x" * 63]
    nodes = [NodeFound(node_of(name, "machine_b", n), plans) for n, name in enumerate(names, 1)]
    plan = choose(nodes, Choosing("m"))
    routes = [one.route for one in plan.replicas]
    assert len(set(routes)) == len(names)
    assert all(route.isascii() and " " not in route for route in routes)


def test_a_replica_is_told_what_its_node_fetches() -> None:
    one = WeightsSource("m.gguf", "0" * 64, 1, ("http://10.0.0.1/weights/0",))
    part = replace(one, file_name="m-2.gguf")
    plans = plans_of("machine_b", (2,))
    nodes = [NodeFound(node_of("n", "machine_b"), plans)]
    (spec,) = choose(nodes, Choosing("m", weights=((one, part),))).replicas
    assert (spec.weights, spec.beside) == (one, (part,))


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_plan_is_shown_in_both_languages(
    language: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [found(name, name, n) for n, name in enumerate(BOXES, 1)]
    plan = choose(nodes, Choosing("fourteen"))
    print_fleet_plan(plan, language)
    shown = "".join(capsys.readouterr().out.split())
    for spec in plan.replicas:
        assert spec.name in shown
    assert "".join(plan.not_used[0].why.in_language(language).split())[:20] in shown


# --- on the node ---------------------------------------------------------------------------------


def test_a_file_that_is_neither_here_nor_sent_is_told(where: Places) -> None:
    plans = plan_here(PlanRequest((WantedModel(SIZES[2]),)), where)
    assert plans.options == ()
    assert "Fourteen-14B-Q4_K_M.gguf is not on this node" in plans.refused[0].en


def test_a_file_without_a_plan_takes_no_other_from_the_node(
    where: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = planning.engines_for

    def broken(ground: Any, model: Any, *rest: Any) -> Any:
        if model is SIZES[0]:
            raise AppError(Text("broken", "损坏"), Text("mend it", "修复"))
        return real(ground, model, *rest)

    monkeypatch.setattr(planning, "engines_for", broken)
    models = tuple(map(WantedModel, SIZES[:3]))
    plans = plan_here(PlanRequest(models, machine=machine_of("machine_b")), where)
    assert [one.file for one in plans.options] == [1, 2]
    assert [one.en for one in plans.refused] == ["broken"]


def test_a_node_plans_the_same_while_its_replicas_run(
    where: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = tmp_path / "m.gguf"
    weights.write_bytes(b"")
    model = replace(SIZES[2], path=str(weights))
    request = PlanRequest((WantedModel(model),))
    seen: list[object] = []
    machines = [machine_of(name) for name in ("machine_b", "p40_box", "machine_a")]

    def look_around(ask: Any, _where: Any, instead_of: Any = None, wanted: Any = None) -> Any:
        seen.append(instead_of)
        engine = planning.assumed_engine(machines[0])
        return planning.Ground(machines[len(seen) - 1], engine, ())

    monkeypatch.setattr(planning, "look_around", look_around)
    first = plan_here(request, where)
    me = read_process(os.getpid())
    assert me is not None
    file = ServiceFile(birthplace(), me, "127.0.0.1", os.getpid(), 0.0, "m", "t")
    write_service_file(where.run / "replicas", file)
    assert plan_here(request, where) == first  # not looked at again
    assert seen == [None]
    # Another model replaces those that run: it is planned as if they had gone.
    other = plan_here(replace(request, wish=Wish(slots=2)), where)
    assert seen[1] is not None
    assert [one.plan.device for one in other.options[0].engines] == ["Tesla V100-SXM2-32GB"]
    kept = remembered(where)
    assert kept is not None
    assert kept.machine == machines[0]
    path_of(where.run / "replicas", os.getpid()).unlink()
    again = plan_here(request, where)
    assert len(seen) == 3
    assert again != first


def test_a_memory_that_cannot_be_read_is_none(where: Places) -> None:
    path = planning.memory_of(where)
    path.parent.mkdir(parents=True)
    for text in ("", "{", '{"birthplace": 1}', "\0"):
        path.write_text(text)
        assert remembered(where) is None
