"""Which CUDA files are compiled, with which words, for which cards."""

from dataclasses import replace
from pathlib import Path

import pytest

from workhorse.engines.supply.cuda_build import code_of
from workhorse.engines.supply.cuda_ninja import PLUGIN, ninja_file, weighted_step
from workhorse.engines.supply.cuda_recipe import (
    ClangPlaces,
    CudaOrder,
    clang_compiler,
    compile_words,
    cuda_order,
    defines,
    units,
)
from workhorse.errors import EXIT_USAGE, AppError
from workhorse.knowledge.cuda_build import architectures, compile_seconds, cuda_options
from workhorse.machine.fatbin import GpuCode
from workhorse.plan.what_if import Parts, composed_machine
from workhorse.records import Machine
from workhorse.units import GIB

PLACES = ClangPlaces("/t/zig", "/t/lib", "/t/clang", "/t/cuda", "/own")
TREE = "ggml/src/ggml-cuda"
NAMES = [
    f"{TREE}/acc.cu",
    f"{TREE}/acc.cuh",
    f"{TREE}/mmq.cu",
    f"{TREE}/template-instances/fattn-mma-f16-instance-ncols1_16-ncols2_4.cu",
    f"{TREE}/template-instances/fattn-vec-instance-f16-f16.cu",
    f"{TREE}/template-instances/fattn-vec-instance-q5_0-q4_0.cu",
    f"{TREE}/template-instances/generate_cu_files.py",
    "ggml/src/ggml-sycl/acc.cu",
]


def machine(*cards: str) -> Machine:
    gpus = [composed_machine(Parts(card, 1, 64 * GIB)).gpus[0] for card in cards]
    return replace(composed_machine(Parts(None, 0, 64 * GIB)), gpus=tuple(gpus))


def order(*words: str, options: tuple[str, ...] = ()) -> CudaOrder:
    return cuda_order(words, options, machine())


def test_what_is_asked() -> None:
    made = order("sm_70", "sm_61", "sm_70", options=("force-mmq",))
    assert [one.name for one in made.architectures] == ["sm_61", "sm_70"]
    assert made.name == "sm_61-sm_70-force-mmq"


def test_auto_is_the_cards_that_are_here() -> None:
    here = machine("Tesla V100-PCIE-16GB", "Tesla P4", "Tesla P4")
    assert cuda_order(["auto"], [], here).name == "sm_61-sm_70"
    assert cuda_order(["auto", "sm_80"], [], here).name == "sm_61-sm_70-sm_80"


def test_auto_takes_the_nearest_older_code_of_the_generation() -> None:
    (gpu,) = machine("Tesla V100-PCIE-16GB").gpus
    for capability, name in (
        ((7, 2), "sm_70"),
        ((8, 7), "sm_86"),
        ((12, 1), "sm_121"),
        ((10, 3), "sm_100"),
    ):
        here = replace(machine(), gpus=(replace(gpu, compute_capability=capability),))
        assert cuda_order(["auto"], [], here).name == name


@pytest.mark.parametrize("capability", [(3, 5), None])
def test_a_card_that_no_code_can_be_made_for(capability: tuple[int, int] | None) -> None:
    (gpu,) = machine("Tesla V100-PCIE-16GB").gpus
    here = replace(machine(), gpus=(replace(gpu, compute_capability=capability),))
    with pytest.raises(AppError, match="No code can be made for Tesla V100") as refused:
        cuda_order(["auto"], [], here)
    assert refused.value.exit_code == EXIT_USAGE


@pytest.mark.parametrize(
    ("words", "options", "said"),
    [
        (["sm_35"], [], "sm_35"),
        (["volta"], [], "volta"),
        (["auto"], [], "No NVIDIA card"),
        (["sm_70"], ["force-mmq", "force-cublas"], "exclude each other"),
    ],
)
def test_what_cannot_be_asked(words: list[str], options: list[str], said: str) -> None:
    with pytest.raises(AppError, match=said) as refused:
        cuda_order(words, options, machine())
    assert refused.value.exit_code == EXIT_USAGE


def test_the_files_of_an_order() -> None:
    made = units(NAMES, order("sm_70"))
    assert made[0].name == "fattn-mma-f16-instance-ncols1_16-ncols2_4", "the longest first"
    assert {unit.name for unit in made[1:]} == {"acc", "mmq", "fattn-vec-instance-f16-f16"}
    every = units(NAMES, order("sm_70", options=("fa-all-quants",)))
    assert {unit.name for unit in every} - {unit.name for unit in made} == {
        "fattn-vec-instance-q5_0-q4_0"
    }
    two = units(NAMES, order("sm_61", "sm_70"))
    assert two[0].seconds == 2 * made[0].seconds


def test_what_ggml_is_told() -> None:
    told = dict(word.partition("=")[::2] for word in defines(order("sm_61", "sm_70")))
    assert told["GGML_CUDA_FA_Q8_0_Q8_0"] == "1"
    assert told["GGML_CUDA_FA_Q5_0_Q4_0"] == "0"
    assert len([name for name in told if name.startswith("GGML_CUDA_FA_")]) == 50
    assert told["GGML_CUDA_FA_QUANTS"] == '"q4_0-q4_0,q8_0-q8_0,bf16-bf16,f16-f16"'
    assert "GGML_CUDA_FORCE_MMQ" not in told
    every = order("sm_70", options=("force-mmq", "fa-all-quants"))
    told = dict(word.partition("=")[::2] for word in defines(every))
    assert "GGML_CUDA_FORCE_MMQ" in told
    assert told["GGML_CUDA_FA_QUANTS"] == '"all"'


def test_the_compilers_words() -> None:
    words = compile_words(order("sm_61", "sm_70"), PLACES, "/tree")
    assert words[:2] == ("/t/zig", "clang")
    for name in ("sm_61", "sm_70"):
        assert f"--cuda-gpu-arch={name}" in words
        assert f"--cuda-include-ptx={name}" in words
    assert "-D__CUDA_ARCH_LIST__=610,700" in words
    # Without it clang's code for attention on Volta multiplies by garbage.
    assert "-fno-strict-aliasing" in words
    # clang's wrappers have to be found before the library that they wrap.
    include = [words[at + 1] for at, word in enumerate(words) if word == "-isystem"]
    assert include[0].endswith("cuda_wrappers")
    assert include.index("/t/clang/include") < include.index("/t/cuda/include")


def test_code_for_one_chip_alone() -> None:
    """ggml's FP4 kernels: ptxas makes them for sm_120a, and not for sm_120."""
    made = order("sm_120")
    assert made.name == "sm_120"
    words = compile_words(made, PLACES, "/tree")
    assert "--cuda-gpu-arch=sm_120a" in words and "-D__CUDA_ARCH_LIST__=1200" in words
    assert code_of(made) == GpuCode(("sm_120a",), ("compute_120a",))


def test_ninjas_file(tmp_path: Path) -> None:
    tree = str(tmp_path / "a folder")
    compiler = clang_compiler(order("sm_70"), PLACES, tree)
    plan = ninja_file(units(NAMES, order("sm_70")), compiler, tree)
    assert f"build acc.o: compile {tmp_path}/a$ folder/{TREE}/acc.cu" in plan
    assert f"build {PLUGIN}: link" in plan
    assert "/t/cuda/lib/libcudart.so.12" in plan
    # A shell and ninja both leave it as it is.
    assert "'-Wl,-rpath,$$ORIGIN/../lib'" in plan


def test_progress_is_told_in_seconds_of_work() -> None:
    made = units(NAMES, order("sm_70"))
    total = round(sum(unit.seconds for unit in made))
    steps = weighted_step(made, ["mmq"])
    assert steps("[1/3] acc.o\n") == (round(compile_seconds("mmq") + compile_seconds("acc")), total)
    assert steps("[2/3] fattn-vec-instance-f16-f16.o\n") is not None
    assert steps(f"[3/3] {made[0].name}.o\n") == (total, total)
    assert steps("acc.cu:1:1: error: no") is None


def test_the_tables_hold_together() -> None:
    numbers = [one.number for one in architectures()]
    assert numbers == sorted(set(numbers))
    assert (architectures()[0].ptx, architectures()[0].capability) == ("compute_50", (5, 0))
    assert cuda_options()[0].name == "default"
