"""Engines and models against cards: machine code decides, else rules; else it is not known."""

from dataclasses import replace

import pytest
from software_boxes import A100, T4, V100, a_model, box, codes, engine, one, worse_than_notes

from workhorse.doctor.gpu_code import GpuCode, code_for
from workhorse.doctor.software import judge_software
from workhorse.records import EngineFound, Gpu, Model


@pytest.mark.parametrize(
    ("capability", "sass", "ptx", "expected"),
    [
        ((7, 0), ("sm_60", "sm_70", "sm_80"), (), GpuCode("exact", "sm_70")),
        ((6, 1), ("sm_50", "sm_60"), (), GpuCode("same major", "sm_60")),
        ((6, 0), ("sm_61",), (), GpuCode("none")),
        ((7, 0), ("sm_75",), (), GpuCode("none")),
        ((7, 5), ("sm_70",), (), GpuCode("same major", "sm_70")),
        ((8, 9), ("sm_80", "sm_86"), (), GpuCode("same major", "sm_86")),
        ((8, 0), ("sm_70",), ("compute_70",), GpuCode("ptx", "compute_70")),
        ((7, 0), (), ("compute_50", "compute_61"), GpuCode("ptx", "compute_61")),
        ((7, 0), (), ("compute_75",), GpuCode("none")),
        ((9, 0), ("sm_90a",), (), GpuCode("exact", "sm_90a")),
        ((9, 1), ("sm_90a",), ("compute_90a",), GpuCode("none")),
        ((10, 3), ("sm_100f",), (), GpuCode("same major", "sm_100f")),
        ((12, 0), ("sm_100f",), ("compute_100f",), GpuCode("none")),
        ((10, 3), (), ("compute_100f",), GpuCode("ptx", "compute_100f")),
        ((12, 1), ("sm_120",), None, GpuCode("same major", "sm_120")),
        ((7, 0), ("sm_80",), None, None),
        ((7, 0), None, ("compute_70",), None),
        ((7, 0), None, None, None),
        ((7, 0), ("sm_", "sm_x", "70", "sm_99999"), (), GpuCode("none")),
        ((7, 0), (), (), GpuCode("none")),
    ],
)
def test_which_code_a_card_runs(
    capability: tuple[int, int],
    sass: tuple[str, ...] | None,
    ptx: tuple[str, ...] | None,
    expected: GpuCode | None,
) -> None:
    assert code_for(capability, sass, ptx) == expected


def test_code_for_other_cards_is_told_with_its_symptom() -> None:
    machine = box(V100, engines=(engine("llama.cpp", "b9000", ("sm_75",), ("compute_80",)),))
    finding = one("engine.no-code", machine)
    assert finding.share_lost == 1.0 and finding.evidence == ("sm_75", "compute_80")
    assert "no kernel image is available" in finding.why.zh
    assert "any CUDA arch <= 700" in finding.why.en


def test_ptx_alone_means_a_slow_first_start() -> None:
    machine = box(V100, engines=(engine("llama.cpp", "b9000", (), ("compute_61",)),))
    finding = one("engine.ptx-only", machine)
    assert "compute_61" in finding.seen.en and "70-real" in finding.remedy.zh


def test_machine_code_that_was_read_overrules_what_is_known_of_the_wheel() -> None:
    old = engine("pytorch", "2.12.1")
    assert "pytorch.cuda13-before-turing" in worse_than_notes(box(V100, engines=(old,)))
    rebuilt = replace(old, sass=("sm_70",), ptx=())
    found = codes(box(V100, engines=(rebuilt,)))
    assert "pytorch.cuda13-before-turing" not in found and "engine.code" in found
    legacy = engine("pytorch", "2.12.1+cu126")
    assert worse_than_notes(box(V100, engines=(legacy,))) == set()


def test_code_for_a_card_that_the_engine_refuses_is_no_good_news() -> None:
    refusing = engine("sglang", "0.5.23", ("sm_70", "sm_80"), ())
    found = codes(box(V100, engines=(refusing,)))
    assert "sglang.volta" in found and not {"engine.code", "engine.unknown"} & found


def test_a_cpu_build_is_told_as_one() -> None:
    for cpu_build in (engine("llama.cpp", "b9000", (), ()), engine("pytorch", "2.13.0+cpu")):
        found = codes(box(V100, engines=(cpu_build,)))
        assert "engine.cpu-only" in found
        assert not {"engine.no-code", "pytorch.cuda13-before-turing"} & found


@pytest.mark.parametrize(
    "unknown",
    [
        engine("vllm", None),
        engine("vllm", "main"),
        engine("lmdeploy", "0.99.0"),
        engine("ollama", "7.0.0"),
        engine("llama.cpp", None),
    ],
)
def test_an_unknown_engine_is_called_unknown_and_nothing_is_guessed(unknown: EngineFound) -> None:
    machine = box(V100, engines=(unknown,))
    finding = one("engine.unknown", machine)
    assert finding.level == "note" and finding.command
    assert worse_than_notes(machine) == set()
    assert not any(
        each.level == "good" and "/opt/engine" in each.seen.en for each in judge_software(machine)
    )


def test_formats_that_an_engine_refuses_are_told_together() -> None:
    machine = box(V100, engines=(engine("vllm", "0.19.1"),))
    finding = one("vllm.uses", machine)
    assert finding.level == "note"
    for word in ("AWQ", "FP8", "MXFP4", "GPTQ"):
        assert word in finding.seen.en and word in finding.seen.zh
    assert "Minimum capability: 75. Current capability: 70." in finding.why.zh
    # An engine that does not run at all has no uses.
    assert "vllm.uses" not in codes(box(V100, engines=(engine("vllm", "0.20.0"),)))


def test_the_fp16_cast_of_volta_is_a_warning_for_quantised_weights_only() -> None:
    code = "llama.cpp.volta-fp16-cast"
    finding = one(code, box(V100), a_model("qwen3"))
    assert finding.level == "warning" and "-ub 63" in finding.remedy.en
    assert code not in codes(box(V100), a_model("qwen3", quantisation="f16"))
    assert code not in codes(box(T4), a_model("qwen3"))
    # Without a model it is one of the things to know of the card.
    assert "GGML_CUDA_CUBLAS_COMPUTE_TYPE=f32" in one("llama.cpp.uses", box(V100)).remedy.zh


def test_flash_attention_on_mla_models_is_told_on_volta() -> None:
    assert "llama.cpp.volta-mla" in codes(box(V100), a_model("deepseek2"))
    assert "llama.cpp.volta-mla" not in codes(box(V100), a_model("llama"))
    assert "llama.cpp.volta-mla" not in codes(box(A100), a_model("deepseek2"))


@pytest.mark.parametrize(
    ("gpu", "model", "engines", "expected"),
    [
        (V100, a_model("qwen3", "Qwen3-Embedding-8B"), (), {"fp16.qwen3-embedding-volta"}),
        (V100, a_model("qwen3", "Qwen3-8B"), (), set()),
        (V100, a_model("qwen3", "Qwen3Embeddings"), (), set()),
        (T4, a_model("qwen3", "Qwen3-Embedding-8B"), (), set()),
        (V100, a_model("gpt-oss", "gpt-oss-20b"), (), {"fp16.gpt-oss"}),
        (A100, a_model("gpt-oss", "gpt-oss-20b"), (), set()),
        (T4, a_model("gemma3", "Gemma 3"), (), set()),
        (T4, a_model("gemma3", "Gemma 3"), ("vllm",), {"fp16.vllm-refuses"}),
        (T4, a_model("gemma3", "Gemma 3"), ("pytorch",), {"fp16.gemma3-norm"}),
        (V100, a_model("glm4", "GLM Z1 9B"), (), {"fp16.glm-z1-volta", "fp16.llama.cpp-guards"}),
        (V100, a_model("a-new-one", "New"), ("vllm", "pytorch"), set()),
    ],
)
def test_models_that_overflow(
    gpu: Gpu, model: Model, engines: tuple[str, ...], expected: set[str]
) -> None:
    machine = box(gpu, engines=tuple(engine(name, None) for name in engines))
    found = judge_software(machine, model)
    assert {each.code for each in found if each.code.startswith("fp16.")} == expected


def test_what_llama_cpp_guards_against_is_no_warning() -> None:
    assert one("fp16.llama.cpp-guards", box(V100), a_model("glm4")).level == "note"
