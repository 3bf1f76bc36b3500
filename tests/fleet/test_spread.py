"""A model over several machines on paper: which layers where, how fast, whether it is worth it."""

from dataclasses import replace

import pytest
from spread_boxes import RPC, WISH, box, large

import builders
from workhorse.engines.llamacpp import settings
from workhorse.engines.llamacpp_log import read_report
from workhorse.engines.verify import judge_offload
from workhorse.errors import AppError
from workhorse.fleet.spread import STEP_S, Helper, Link, Spread, link_seconds, spread_over
from workhorse.fleet.spread_words import Alternative, advice
from workhorse.plan.wish import Wish
from workhorse.records import Machine, Model
from workhorse.units import GB, GIB

CUDA_RPC = replace(RPC, gpu_architectures=("sm_70",))
ETHERNET = Link(117e6, 0.2e-3)


def spread(
    model: Model,
    main: Machine,
    *others: Machine,
    link: Link = ETHERNET,
    cards: bool = False,
    wish: Wish = WISH,
) -> Spread:
    helpers = [Helper(f"id{n}", f"n{n}", one, link) for n, one in enumerate(others, 2)]
    return spread_over(model, main, CUDA_RPC if cards else RPC, helpers, wish)


def test_each_machine_holds_what_it_has_room_for() -> None:
    model = large()
    found = spread(model, box(10), box(10))
    assert [share.name for share in found.shares] == ["n2"]
    weights: dict[str, int] = {}
    for line in found.plan.budget:
        if line.item == "weights":
            weights[line.device] = weights.get(line.device, 0) + line.n_bytes
    assert set(weights) == {"RAM", "n2 RAM"}
    assert sum(weights.values()) == pytest.approx(model.file_bytes, rel=0.01)
    for device, n_bytes in weights.items():
        assert n_bytes < 10 * GIB, device
    assert found.shares[0].n_bytes == weights["n2 RAM"]
    layers = [one for one in found.plan.placement if one.group == "layers"]
    spans = [(one.device, one.first_layer, one.last_layer) for one in layers]
    assert spans[0][:2] == ("RAM", 0)
    assert spans[-1] == ("n2 RAM", (spans[0][2] or 0) + 1, 39)


def test_the_output_stays_on_the_main_machine() -> None:
    found = spread(large(), box(10), box(10))
    assert [one.device for one in found.plan.placement if one.group == "output"] == ["RAM"]
    plan = replace(found.plan, rpc=("10.0.0.2:50052",))
    words = settings(plan, 8080, "127.0.0.1")
    assert words[words.index("--rpc") + 1] == "10.0.0.2:50052"
    assert words[words.index("--override-tensor") + 1] == r"^(output|token_embd)\.weight$=CPU"
    assert words[words.index("--n-gpu-layers") + 1] == str(plan.gpu_layers)
    assert not {"--rpc", "--override-tensor"} & set(settings(found.plan, 8080, "127.0.0.1"))


def test_several_helpers_get_shares_in_the_order_of_the_engine() -> None:
    found = spread(large(), box(7), box(7), box(7))
    assert [share.name for share in found.shares] == ["n2", "n3"]
    assert len(found.plan.layer_split) == 2
    plan = replace(found.plan, rpc=("10.0.0.2:1", "10.0.0.3:1"))
    words = settings(plan, 8080, "127.0.0.1")
    assert words[words.index("--rpc") + 1] == "10.0.0.2:1,10.0.0.3:1"
    assert words[words.index("--tensor-split") + 1] == ",".join(map(str, found.plan.layer_split))


def test_cards_of_helpers_come_before_the_own_ones() -> None:
    def with_card() -> Machine:
        return builders.machine(gpus=(builders.gpu(memory_bytes=9 * GIB),))

    found = spread(large(), with_card(), with_card(), cards=True)
    devices = [one.device for one in found.plan.placement if one.group == "layers"]
    assert devices == ["n2 GPU 0", "GPU 0"]
    assert found.shares[0].cards == (0,)
    assert found.plan.gpu_indexes == (0,)
    plan = replace(found.plan, rpc=("10.0.0.2:1",))
    assert "--override-tensor" not in settings(plan, 8080, "127.0.0.1"), "the output is on a card"


def test_machines_add_up_their_memory_and_not_their_speed() -> None:
    """Two boxes take as long as one that had room for all of it, and the way between them."""
    whole = spread(large(), box(60), box(60), link=Link(1e12, 0.0))
    split = spread(large(), box(10), box(10), link=Link(1e12, 0.0))
    assert speed(split) == pytest.approx(speed(whole), rel=0.05)
    slow = spread(large(), box(10), box(10), link=Link(1e6, 5e-3))
    assert speed(slow) < speed(split)


def speed(found: Spread) -> float:
    decode = found.forecast.decode_tokens_per_s
    assert decode is not None
    assert decode.low < decode.value < decode.high
    return decode.value


def test_the_link_takes_a_round_trip_and_the_activations() -> None:
    model = large()
    assert link_seconds(model, Link(1e12, 0.01), 1) == pytest.approx(STEP_S + 0.01, rel=0.01)
    one, eight = (link_seconds(model, Link(1e6, 0.0), n) - STEP_S for n in (1, 8))
    assert one > 2 * 4 * model.embedding_size / 1e6
    assert 7 * one < eight < 8 * one
    found = spread(model, box(10), box(10), link=Link(1e6, 0.01))
    assert found.link_s == pytest.approx(link_seconds(model, Link(1e6, 0.01), 1))
    terms = [term for term in found.forecast.terms if term.device == "n2"]
    assert [term.seconds for term in terms] == [found.link_s]
    assert found.load_s == pytest.approx(found.shares[0].n_bytes / 1e6)


def test_a_slow_link_makes_prompts_slow() -> None:
    quick, slow = (
        spread(large(), box(10), box(10), link=Link(rate, 0.0)).forecast.prefill_tokens_per_s
        for rate in (10 * GB, 1e5)
    )
    assert slow.value < quick.value
    assert slow.value < 1e5 / (2 * 4 * 4096) * 1.01


def test_what_it_is_compared_with() -> None:
    found = spread(large(), box(10), box(10))
    own = found.forecast.decode_tokens_per_s
    assert own is not None
    words = advice(own, [Alternative("m-Q4", "n1", 3 * own.value, 4.8)])
    assert "m-Q4 on n1 alone writes 3.0 times as fast" in words.en
    assert "3.0 倍" in words.zh
    assert "No slower than m-Q4" in advice(own, [Alternative("m-Q4", "n1", own.value / 2, 4.8)]).en
    assert "no smaller file" in advice(own, []).en
    assert "probe --measure" in advice(None, []).en


def test_it_says_why() -> None:
    reason = spread(large(), box(10), box(10)).plan.reasons[0]
    assert reason.setting == "machines"
    assert "one after the other" in reason.because.en


def test_machines_without_a_known_bandwidth_get_no_promise() -> None:
    def dark() -> Machine:
        return builders.machine(ram_bytes=10 * GIB, bandwidths=())

    found = spread(large(), dark(), dark())
    assert found.forecast.decode_tokens_per_s is None
    assert found.plan.gpu_layers > 0


def test_too_large_for_all_of_them() -> None:
    with pytest.raises(AppError, match=r"2 machines together have room for 8\.00 GiB"):
        spread(large(), box(4), box(4))


def test_an_engine_that_knows_no_other_machines() -> None:
    with pytest.raises(AppError, match="cannot share a model with other machines"):
        spread_over(large(), box(10), builders.EMBEDDED, [], WISH)


def test_what_the_engine_reports_is_judged() -> None:
    plan = replace(spread(large(), box(10), box(10)).plan, rpc=("10.0.0.2:50052",))
    moved = f"load_tensors: offloaded {plan.gpu_layers}/{plan.layers} layers to GPU"
    there = "load_tensors: RPC0[10.0.0.2:50052] model buffer size =  6000.00 MiB"
    here = "load_tensors:   CPU_Mapped model buffer size =  6000.00 MiB"
    assert judge_offload(plan, read_report([moved, here, there])) == ()
    (finding,) = judge_offload(plan, read_report([moved, here]))
    assert finding.level == "blocker"
