"""The judgement before "ready": what passes, and what must not."""

from dataclasses import replace
from typing import Any

import pytest

import builders
from workhorse.engines.llamacpp_log import EngineReport
from workhorse.engines.verify import judge_answer, judge_embedding, judge_log, judge_ranking
from workhorse.plan.planner import make_plan
from workhorse.plan.wish import Wish
from workhorse.records import Plan
from workhorse.units import MIB


def plan(*, on_gpu: bool = False) -> Plan:
    host = builders.machine(gpus=(builders.gpu(),) if on_gpu else ())
    build = builders.CUDA if on_gpu else builders.EMBEDDED
    return make_plan(host, builders.model(), build, Wish())


def answer(content: str, tokens: list[int], evaluated: int = 110) -> dict[str, Any]:
    return {"content": content, "tokens": tokens, "tokens_evaluated": evaluated}


def codes(findings: tuple[Any, ...]) -> list[str]:
    return [finding.code for finding in findings]


def test_text_passes() -> None:
    assert judge_answer(answer(' "Where is the sea?"', list(range(24)))) == ()


def test_chinese_text_passes() -> None:
    assert judge_answer(answer("请问去海边怎么走？", list(range(9)))) == ()


@pytest.mark.parametrize(
    ("content", "tokens", "code"),
    [
        ("", [], "verify.answer_empty"),
        ("  \n ", [1, 2, 3], "verify.answer_empty"),
        ("GGGGGGGG", [38] * 24, "verify.answer_repeats"),
        ("!!!!!!!!a", [0] * 23 + [5], "verify.answer_repeats"),
        ("\ufffd\ufffd\ufffda", [1, 2, 3, 4], "verify.answer_not_text"),
        ("\x01\x02\x03", [1, 2, 3], "verify.answer_not_text"),
    ],
)
def test_nonsense_blocks(content: str, tokens: list[int], code: str) -> None:
    findings = judge_answer(answer(content, tokens))
    assert codes(findings) == [code]
    assert findings[0].level == "blocker"


def test_a_prompt_that_was_cut_proves_nothing() -> None:
    assert codes(judge_answer(answer("fine", [1, 2, 3], evaluated=12))) == ["verify.prompt_cut"]


def test_an_answer_without_fields_blocks() -> None:
    assert codes(judge_answer({})) == ["verify.answer_empty"]


def test_layers_left_on_the_cpu_block() -> None:
    planned = plan(on_gpu=True)
    partial = EngineReport(offloaded_layers=2, layers=5, buffers={("CUDA0", "model"): 2 * MIB})
    findings = judge_log(planned, partial)
    assert "verify.layers_on_cpu" in codes(findings)
    assert "2 of 5" in findings[0].seen.en


def test_an_offload_line_without_gpu_buffers_blocks() -> None:
    # A build with RPC prints `offloaded 5/5 layers to GPU` on a machine without any GPU.
    claimed = EngineReport(offloaded_layers=5, layers=5, buffers={("CPU", "model"): 10 * MIB})
    assert "verify.layers_on_cpu" in codes(judge_log(plan(on_gpu=True), claimed))


def test_a_log_that_says_nothing_is_a_warning() -> None:
    (finding,) = judge_log(plan(on_gpu=True), EngineReport())
    assert (finding.code, finding.level) == ("verify.nothing_reported", "warning")


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"data": []},
        {"data": [{"embedding": []}]},
        {"data": [{"embedding": [0.0, 0.0]}]},
        {"data": [{"embedding": [0.1, float("nan")]}]},
        {"data": [{"embedding": "text"}]},
    ],
)
def test_an_embedding_that_is_no_vector_blocks(answer: dict[str, Any]) -> None:
    assert codes(judge_embedding(answer)) == ["verify.embedding_bad"]


def test_a_vector_passes() -> None:
    assert judge_embedding({"data": [{"embedding": [0.1, -0.2]}]}) == ()


def test_a_full_offload_passes() -> None:
    planned = plan(on_gpu=True)
    assert judge_log(planned, faithful(planned, "CUDA0", offloaded=5)) == ()


def split_plan() -> Plan:
    """Layers over two cards, some experts in main memory, a table on the disk."""
    cards = tuple(builders.gpu(n, memory_bytes=1000 * MIB) for n in (0, 1))
    base = builders.model(
        layers=16, embedding=1024, feed_forward=512, heads=8, kv_heads=2, head_size=128,
        experts=64, experts_used=4,
    )  # fmt: skip
    table = builders.tensor("per_layer_token_embd.weight", 160, 20_000_000)
    model = replace(base, architecture="qwen4exp", tensors=(*base.tensors, table))
    knows = ("--tensor-split", "--n-cpu-moe", "--lazy-mode")
    planned = make_plan(
        builders.machine(gpus=cards), model, replace(builders.CUDA, knows=knows), Wish()
    )
    assert len(planned.gpu_indexes) == 2
    assert planned.expert_layers_in_ram and planned.lazy_tables
    return planned


def test_a_split_as_planned_passes() -> None:
    planned = split_plan()
    names = {"GPU 0": "CUDA0", "GPU 1": "CUDA1", "RAM": "CPU", "disk": "CPU_Mapped"}
    report = EngineReport(offloaded_layers=17, layers=17)
    report.slots, report.slot_context_tokens = planned.slots, planned.context_tokens
    for line in planned.budget:
        kind = {"weights": "model", "tables": "model", "runtime": "", "prompt cache": ""}
        if word := kind.get(line.item, line.item):
            key = (names[line.device], word)
            report.buffers[key] = report.buffers.get(key, 0) + line.n_bytes
    assert judge_log(planned, report) == ()


def test_a_card_that_got_nothing_blocks() -> None:
    report = EngineReport(offloaded_layers=17, layers=17, buffers={("CUDA0", "model"): 9 * MIB})
    findings = judge_log(split_plan(), report)
    assert codes(findings)[0] == "verify.layers_on_cpu"
    assert "on 1 GPUs" in findings[0].seen.en and "on 2" in findings[0].seen.en


@pytest.mark.parametrize(("device", "blocks"), [("Meta(CUDA0,CUDA1)", False), ("CUDA0", True)])
def test_a_tensor_split_has_one_buffer_on_all_cards(device: str, blocks: bool) -> None:
    planned = replace(split_plan(), split_mode="tensor")
    report = EngineReport(offloaded_layers=17, layers=17, buffers={(device, "model"): 9 * MIB})
    assert ("verify.layers_on_cpu" in codes(judge_log(planned, report))) == blocks


def test_a_part_on_the_card_passes_and_less_blocks() -> None:
    cards = (builders.gpu(memory_bytes=1400 * MIB),)
    dense = builders.model(layers=32, embedding=2048, feed_forward=8192, heads=16, head_size=128)
    planned = make_plan(builders.machine(gpus=cards), dense, builders.CUDA, Wish())
    assert 0 < planned.gpu_layers < planned.layers
    buffers = {("CUDA0", "model"): MIB, ("CPU", "model"): MIB}
    for layers, blocks in ((planned.gpu_layers, False), (planned.gpu_layers - 1, True)):
        report = EngineReport(offloaded_layers=layers, layers=33, buffers=dict(buffers))
        assert ("verify.layers_on_cpu" in codes(judge_log(planned, report))) is blocks


def test_a_cpu_start_as_planned_passes() -> None:
    planned = plan()
    assert judge_log(planned, faithful(planned, "CPU")) == ()


def test_a_shorter_context_is_a_warning() -> None:
    planned = plan()
    report = replace(faithful(planned, "CPU"), slot_context_tokens=512)
    assert codes(judge_log(planned, report)) == ["verify.slots_differ"]


def test_memory_beyond_the_budget_is_told() -> None:
    planned = plan()
    report = faithful(planned, "CPU")
    report.buffers[("CPU_REPACK", "model")] = 4000 * MIB
    assert codes(judge_log(planned, report)) == ["verify.memory_differs"]


def faithful(planned: Plan, device: str, offloaded: int | None = None) -> EngineReport:
    kinds = {"weights": "model", "kv": "kv", "compute": "compute", "output": "output"}
    return EngineReport(
        offloaded_layers=offloaded,
        layers=planned.layers,
        slots=planned.slots,
        slot_context_tokens=planned.context_tokens,
        buffers={
            (device, kinds[line.item]): line.n_bytes
            for line in planned.budget
            if line.item in kinds
        },
    )


def scored(*scores: object) -> dict[str, Any]:
    return {"results": [{"index": n, "relevance_score": s} for n, s in enumerate(scores)]}


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"results": None},
        scored(),
        scored(0.5),
        scored(0.5, None),  # what the engine writes for NaN
        scored(0.5, float("inf")),
        scored(0.5, -1e6),
        {"results": ["text", "text"]},
    ],
)
def test_an_order_without_scores_blocks(answer: dict[str, Any]) -> None:
    assert codes(judge_ranking(answer)) == ["verify.ranking_bad"]


def test_an_order_in_any_sequence_passes() -> None:
    answer = scored(-3.5, 2.0)
    assert judge_ranking({"results": answer["results"][::-1]}) == ()
