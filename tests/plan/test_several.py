"""One engine on several cards, or several engines: which way is taken, and what it rests on.

WORKHORSE_WRITE_GOLDENS=1 writes the goldens anew; read the difference before you commit it.
"""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import builders
from workhorse.codec import from_json, to_json
from workhorse.machine.probe import probe
from workhorse.plan.planner import make_plan
from workhorse.plan.several import Asked, several_plans
from workhorse.plan.several_groups import groups_of
from workhorse.plan.several_users import at_users, shared_out
from workhorse.plan.what_if import assumed_build
from workhorse.plan.wish import Wish
from workhorse.records import (
    EngineBuild,
    GpuLink,
    Machine,
    Model,
    PeerCopy,
    Plan,
    Several,
)
from workhorse.units import GIB

CAPTURES = Path(__file__).parents[1] / "captures"
GOLDENS = Path(__file__).parent / "goldens"


def seven_b(share: float = 1.0) -> Model:
    """Qwen2.5 7B's shape in F16; with a smaller share of the feed-forward weights it fits more."""
    made = builders.model(
        layers=28,
        embedding=3584,
        feed_forward=int(18944 * 3 * share),  # gate, up and down as one tensor
        heads=28,
        kv_heads=4,
        head_size=128,
        vocabulary=152064,
    )
    return replace(made, path="/models/Seven-7B-F16.gguf", name="Seven 7B")


def planner(model: Model, build: EngineBuild) -> Callable[[Machine, Wish], Plan]:
    """What makes the plan of one engine."""
    return lambda machine, wish: make_plan(machine, model, build, wish)


def several(
    machine: Machine,
    model: Model,
    wish: Wish | None = None,
    asked: Asked | None = None,
    build: EngineBuild | None = None,
) -> Several:
    """The ways for this machine with the engine that is assumed for it."""
    build = build or assumed_build(machine) or builders.EMBEDDED
    wish = wish or Wish()
    return several_plans(machine, model, build, wish, planner(model, build), asked=asked)


def outline(found: Several) -> dict[str, Any]:
    """What of it is no forecast: who gets what, and why."""
    return {
        "split": found.split,
        "because": [f"{r.value}: {r.because.en}" for r in found.reasons],
        "engines": [
            {
                "gpus": plan.gpu_indexes,
                "split": plan.split_mode,
                "on each": plan.layer_split,
                "nodes": plan.memory_nodes,
                "cpus": plan.cpus,
                "threads": plan.threads,
            }
            for plan in found.plans
        ],
        "ways": [
            {
                "split": way.split,
                "within": way.within,
                "gpus": way.gpus,
                "context": way.context_tokens,
                "slots": way.slots,
                # Main memory is the prompt cache above all, which tests/plan/test_planner.py has.
                "device_bytes": {d: n for d, n in way.device_bytes.items() if d != "RAM"},
                "transfers": [term.source.en for term in way.transfers],
            }
            for way in found.ways
        ],
        "rejected": [f"{r.option}: {r.because.en}" for r in found.rejected],
    }


@pytest.mark.parametrize(
    ("machine", "wish"),
    [
        ("two_v100", Wish()),
        ("eight_v100", Wish()),
        ("eight_v100", Wish(purpose="batch")),
        ("three_kinds", Wish()),
    ],
)
def test_the_ways_of_a_captured_machine(machine: str, wish: Wish) -> None:
    found = several(probe(CAPTURES / f"{machine}.json"), seven_b(), wish)
    golden = GOLDENS / f"several_{machine}_{wish.purpose or 'chat'}.json"
    speeds = [[speed.total_tokens_per_s.value for speed in way.users] for way in found.ways]
    here = json.loads(json.dumps(outline(found) | {"tokens per s": speeds}))
    if os.environ.get("WORKHORSE_WRITE_GOLDENS"):
        text = json.dumps(here, indent=1, ensure_ascii=False) + "\n"
        golden.write_text(text, encoding="utf-8")
    expected = json.loads(golden.read_text(encoding="utf-8"))
    mine, theirs = here.pop("tokens per s"), expected.pop("tokens per s")
    assert here == expected
    # The constants learn from each new row; test_speed*.py hold them.
    assert mine == [pytest.approx(row, rel=0.3) for row in theirs]


def test_it_is_one_document() -> None:
    found = several(probe(CAPTURES / "three_kinds.json"), seven_b())
    assert from_json(Several, to_json(found), what="several") == found


def test_few_users_get_the_smallest_set_and_many_get_every_card() -> None:
    host = probe(CAPTURES / "eight_v100.json")
    few = several(host, seven_b())
    many = several(host, seven_b(), Wish(purpose="batch"))
    assert (few.split, few.gpus) == ("one", ((0,),))
    assert many.split == "replicas" and many.gpus == tuple((n,) for n in range(8))
    used = [set(plan.cpus) for plan in many.plans]
    assert sum(map(len, used)) == len(set().union(*used))  # none shares a CPU
    assert {plan.memory_nodes for plan in many.plans} == {(0,), (1,)}
    assert all(
        cpu in host.nodes[node].cpus
        for plan in many.plans
        for node in plan.memory_nodes or ()
        for cpu in plan.cpus
    )


def test_named_cards_are_used() -> None:
    host = probe(CAPTURES / "eight_v100.json")
    found = several(host, seven_b(), asked=Asked(gpus=(4, 6)))
    assert found.gpus == ((4,), (6,))
    assert several(host, seven_b(), asked=Asked(gpus=(5,))).gpus == ((5,),)


def test_a_number_of_engines_is_kept_or_said_to_be_impossible() -> None:
    host = probe(CAPTURES / "two_v100.json")
    assert len(several(host, seven_b(0.3), asked=Asked(engines=2)).plans) == 2
    assert len(several(host, seven_b(0.3), asked=Asked(engines=1)).plans) == 1
    three = several(host, seven_b(0.3), asked=Asked(engines=3))
    assert any(r.option == "--engines 3" for r in three.rejected)
    (warning,) = [f for f in three.plan.verdict.findings if f.code == "plan.not-as-asked"]
    assert "--engines 3" in warning.seen.en and "2 engines are started" in warning.seen.en
    assert not three.plan.verdict.blocked  # a card that is missing is no reason not to serve
    two = several(host, seven_b(0.3), asked=Asked(engines=2))
    assert all(f.code != "plan.not-as-asked" for f in two.plan.verdict.findings)


def test_asked_slots_are_divided_among_the_engines() -> None:
    host = probe(CAPTURES / "two_v100.json")
    found = several(host, seven_b(0.3), Wish(slots=9))
    assert [plan.slots for plan in found.plans] == [5, 5]


def test_a_model_larger_than_a_card_is_split_by_layers() -> None:
    host = probe(CAPTURES / "two_v100.json")
    found = several(host, seven_b())
    assert (found.split, found.gpus) == ("layer", ((0, 1),))
    by_mode = {way.split: way for way in found.ways}
    # By tensors half of everything is on each, and nothing but buffers is there twice.
    tensor, layer = by_mode["tensor"], by_mode["layer"]
    assert tensor.device_bytes["GPU 0"] == tensor.device_bytes["GPU 1"]
    assert sum(tensor.device_bytes.values()) == pytest.approx(
        sum(layer.device_bytes.values()), rel=1e-6
    )
    assert tensor.because and "experimental" in tensor.because.en
    assert any("row split" in r.option for r in found.rejected)


def test_experimental_tensor_split_has_to_be_asked_for_on_volta() -> None:
    host = probe(CAPTURES / "two_v100.json")
    found = several(host, seven_b(), asked=Asked(split="tensor"))
    assert found.split == "tensor" and found.plans[0].split_mode == "tensor"
    assert found.plans[0].layer_split == (50, 50)


def with_nvlink(machine: Machine, capability: tuple[int, int]) -> Machine:
    """The same with two links between the first two cards, of this generation."""
    return replace(
        machine,
        gpus=tuple(replace(gpu, compute_capability=capability) for gpu in machine.gpus),
        gpu_links=(GpuLink(0, 1, "NVLINK", 2, True),),
    )


def test_over_nvlink_newer_cards_compute_together_when_one_cannot_hold_the_model() -> None:
    host = with_nvlink(probe(CAPTURES / "two_v100.json"), (8, 0))
    assert several(host, seven_b()).split == "tensor"
    apart = replace(host, gpu_links=(GpuLink(0, 1, "PHB", None, True),))
    assert several(apart, seven_b()).split == "layer"


def test_what_the_engine_cannot_split_is_not_offered() -> None:
    host = with_nvlink(probe(CAPTURES / "two_v100.json"), (8, 0))
    build = assumed_build(host)
    assert build is not None
    for model, engine, said in (
        (replace(seven_b(), architecture="deepseek2"), build, "architecture"),
        (seven_b(), replace(build, forms=()), "cannot split tensors"),
        (replace(seven_b(), attention=(replace(seven_b().attention[0], kv_heads=1),) * 28),
         build, "KV heads"),
    ):  # fmt: skip
        found = several(host, model, build=engine)
        assert found.split == "layer"
        assert any("tensor" in r.option and said in r.because.en for r in found.rejected)


def test_cards_between_which_copies_are_lost_are_not_used_together() -> None:
    host = probe(CAPTURES / "two_v100.json")
    for copy, taken in (
        (PeerCopy(False, False), (0,)),
        (PeerCopy(False, None, failure="hangs"), (0,)),
        (PeerCopy(True, False), (0, 1)),  # layers are handed on through main memory
        (PeerCopy(False, True, 9e9, 15e-6), (0, 1)),
    ):
        links = tuple(replace(link, copies=(copy,)) for link in host.gpu_links)
        found = several(replace(host, gpu_links=links), seven_b())
        assert found.gpus == (taken,)
        lost = [r.option for r in found.rejected if "do not arrive" in r.because.en]
        assert any("tensor" in option for option in lost) == (copy.direct and taken == (0, 1))
        assert bool(lost) == (copy.right is not True)


def seventy_b() -> Model:
    """A 70B's shape of 44 GiB: two V100 of 32 GB hold it, one does not."""
    return builders.model(
        layers=80, embedding=8192, feed_forward=24944, heads=64, kv_heads=8, head_size=128,
        vocabulary=128256,
    )  # fmt: skip


def losing(machine: Machine, *pairs: tuple[int, int], copy: PeerCopy | None = None) -> Machine:
    """The machine with copies between these cards that do not arrive."""
    copies = (copy or PeerCopy(False, False),)
    links = (
        replace(link, copies=copies) if (link.first, link.second) in pairs else link
        for link in machine.gpu_links
    )
    return replace(machine, gpu_links=tuple(links))


def test_no_engine_of_several_gets_cards_between_which_copies_are_lost() -> None:
    host, batch = probe(CAPTURES / "eight_v100.json"), Wish(purpose="batch")
    assert (4, 5) in several(host, seventy_b(), batch).gpus
    assert several(losing(host, (4, 5)), seventy_b(), batch).gpus == (
        (0, 2), (1, 3), (4, 6), (5, 7)
    )  # fmt: skip
    # No other card for it: the other engines serve.
    apart = losing(host, *((4, other) for other in range(5, 8)))
    found = several(apart, seventy_b(), batch, Asked(gpus=(0, 2, 4, 5)))
    assert (4, 5) not in found.gpus


def test_other_cards_take_a_model_when_the_first_ones_lose_copies() -> None:
    host = probe(CAPTURES / "eight_v100.json")
    found = several(losing(host, (0, 2), (0, 3)), seventy_b())
    cards = found.plan.gpu_indexes
    assert len(cards) > 1 and found.plan.gpu_layers == 81, "not one card and main memory"
    assert not {0, 2} <= set(cards) and not {0, 3} <= set(cards)


def test_a_card_that_hung_shares_no_model_with_cards_that_were_not_tried() -> None:
    host = probe(CAPTURES / "eight_v100.json")
    hung = losing(host, (0, 2), copy=PeerCopy(False, None, failure="hangs"))
    found = several(hung, seventy_b())
    assert len(found.plan.gpu_indexes) > 1 and not {0, 2} & set(found.plan.gpu_indexes)


def test_of_like_cards_those_joined_best_share_a_model() -> None:
    host = probe(CAPTURES / "eight_v100.json")  # 0 and 1 have one NVLink, 0 and 2 have two
    few = several(host, seventy_b(), Wish(slots=1, context_tokens=4096))
    assert few.gpus == ((0, 2),)
    tensor = next(way for way in few.ways if way.split == "tensor")
    assert tensor.gpus == ((0, 2),)
    assert "2 NVLinks" in tensor.transfers[0].source.en


def test_a_measured_link_is_what_the_forecast_goes_by() -> None:
    host = probe(CAPTURES / "two_v100.json")
    slow = PeerCopy(False, True, 1e9, 15e-6)
    links = tuple(replace(link, copies=(slow,)) for link in host.gpu_links)
    usual, measured = (
        next(way for way in several(machine, seven_b()).ways if way.split == "tensor")
        for machine in (host, replace(host, gpu_links=links))
    )
    assert "measured here" in measured.transfers[0].source.en
    assert measured.transfers[0].seconds > usual.transfers[0].seconds
    assert measured.prefill_tokens_per_s and usual.prefill_tokens_per_s
    assert measured.prefill_tokens_per_s.value < usual.prefill_tokens_per_s.value / 2


def test_unequal_cards_the_fast_one_serves_and_the_small_ones_are_told() -> None:
    host = probe(CAPTURES / "three_kinds.json")  # 0: V100 16 GB, 1: P100 16 GB, 2: P40 24 GB
    assert several(host, seven_b(0.3)).gpus == ((0,),)
    # Of a model that only the P40 holds alone the two fast cards take half each.
    found = several(host, seven_b())
    assert found.gpus == ((0, 1),)
    assert any("GPU 0" in r.option and "does not fit" in r.because.en for r in found.rejected)
    tensor = next(way for way in found.ways if way.split == "tensor")
    # The faster card gets the larger part, so that neither waits.
    assert tensor.device_bytes["GPU 0"] > tensor.device_bytes["GPU 1"]


def test_a_pair_joined_best_goes_together() -> None:
    """Four cards, a model that needs two: the pairs with NVLink, not the neighbours."""
    cards = tuple(builders.gpu(n, numa_node=n // 2) for n in range(4))
    links = tuple(
        GpuLink(first, second, "NVLINK" if second - first == 2 else "SYS",
                2 if second - first == 2 else None, True)
        for first in range(4) for second in range(first + 1, 4)
    )  # fmt: skip
    host = replace(builders.machine(nodes=2, ram_bytes=128 * GIB, gpus=cards), gpu_links=links)
    found = several(host, seven_b(), Wish(purpose="batch"))
    assert found.split == "replicas" and set(found.gpus) == {(0, 2), (1, 3)}


def test_groups_stay_on_their_node_where_links_allow_it() -> None:
    """Three of each four that NVLink joins, not one of another socket."""
    host = probe(CAPTURES / "eight_v100.json")
    node = {gpu.index: gpu.numa_node for gpu in host.gpus}
    for each, count in ((1, 8), (2, 4), (3, 2), (4, 2), (5, 1), (9, 0)):
        groups = groups_of(host, host.gpus, each)
        assert len(groups) == count and all(len(group) == each for group in groups)
        taken = [card for group in groups for card in group]
        assert len(set(taken)) == len(taken)
        assert each > 4 or all(len({node[card] for card in group}) == 1 for group in groups)


def test_a_cpu_box_runs_one_engine_a_node_where_that_gives_the_best_total() -> None:
    host = builders.machine(nodes=2, cores=8, ram_bytes=128 * GIB)
    # Four streams read the weights together: a second engine gives them hardly more.
    assert len(several(host, seven_b(), build=builders.EMBEDDED).plans) == 1
    found = several(host, seven_b(), Wish(slots=16), build=builders.EMBEDDED)
    assert found.split == "replicas" and found.gpus == ((), ())
    assert [plan.memory_nodes for plan in found.plans] == [(0,), (1,)]
    assert not set(found.plans[0].cpus) & set(found.plans[1].cpus)
    one = several(
        builders.machine(cores=8, ram_bytes=128 * GIB), seven_b(), build=builders.EMBEDDED
    )
    assert len(one.plans) == 1 and one.reasons == ()


def test_a_model_beyond_each_node_stays_one_engine() -> None:
    host = builders.machine(nodes=2, cores=8, ram_bytes=28 * GIB)
    found = several(host, seven_b(), Wish(purpose="batch"), build=builders.EMBEDDED)
    assert len(found.plans) == 1
    assert any("memory node" in r.option for r in found.rejected)


def test_users_go_where_they_gain_most_and_wait_where_no_slot_is_free() -> None:
    host = probe(CAPTURES / "three_kinds.json")
    found = several(host, seven_b(0.3), asked=Asked(gpus=(0, 1, 2)))
    loads = shared_out(found.plans, 4)
    assert loads is not None and loads[0] == max(loads) and sum(loads) == 4
    slots = sum(plan.slots for plan in found.plans)
    full, crowded = at_users(found.plans, slots), at_users(found.plans, 4 * slots)
    assert full is not None and crowded is not None
    assert crowded.total_tokens_per_s.value == pytest.approx(full.total_tokens_per_s.value)
    assert crowded.each_tokens_per_s.value == pytest.approx(full.each_tokens_per_s.value / 4)


def test_between_the_streams_that_were_forecast_more_users_get_more_in_all() -> None:
    host = probe(CAPTURES / "machine_b.json")
    plans = several(host, seven_b(0.3), Wish(slots=24)).plans
    totals = [at_users(plans, n) for n in range(1, 25)]
    values = [speed.total_tokens_per_s.value for speed in totals if speed]
    assert len(values) == 24 and values == sorted(values)
