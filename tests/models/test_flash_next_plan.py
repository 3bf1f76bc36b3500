"""Qwen3.8-Flash-Next on the machine with one V100 of 32 GB and 128 GB of memory.

WORKHORSE_WRITE_GOLDENS=1 writes the golden anew; read the difference before you commit it.
"""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from flash_next import UD_IQ3_XXS, UD_Q4_K_XL, Mix, header

from workhorse.codec import from_json, to_json
from workhorse.engines.llamacpp import launch
from workhorse.machine.probe import probe
from workhorse.models.gguf import read_gguf
from workhorse.plan.cuts import Cut, Sizes
from workhorse.plan.memory import Layout, device_bytes
from workhorse.plan.planner import make_plan
from workhorse.plan.what_if import Parts, assumed_build, composed_machine
from workhorse.plan.wish import Wish
from workhorse.records import Model, Plan
from workhorse.units import GB, GIB

TESTS = Path(__file__).parents[1]
GOLDEN = TESTS / "plan" / "goldens" / "machine_b_flash_next.json"


def model(folder: Path, mix: Mix) -> Model:
    path = header(mix).write(folder / "Qwen3.8-Flash-Next.gguf")
    return replace(read_gguf(path), path="/models/Qwen3.8-Flash-Next-UD-Q4_K_XL.gguf")


@pytest.fixture
def four_bits(tmp_path: Path) -> Model:
    return model(tmp_path, UD_Q4_K_XL)


def test_the_header_has_the_published_size(four_bits: Model, tmp_path: Path) -> None:
    assert four_bits.parameters == pytest.approx(176.9e9, rel=0.001)
    assert four_bits.file_bytes == pytest.approx(111.3 * GB, rel=0.005)
    table = Sizes(four_bits).weights.tables
    assert table == pytest.approx(28.8 * GB, rel=0.001)
    small = model(tmp_path, UD_IQ3_XXS)
    assert small.file_bytes - table == pytest.approx(55 * GB, rel=0.05)


def test_an_owner_of_machine_b_gets_a_plan(four_bits: Model) -> None:
    machine = probe(TESTS / "captures" / "machine_b.json")
    build = assumed_build(machine)
    assert build is not None
    plan = make_plan(machine, four_bits, build, Wish())
    assert not plan.verdict.blocked
    where = {(group.group, group.device): group.memory_nodes for group in plan.placement}
    assert where[("tables", "disk")] is None
    assert where[("experts", "RAM")] == (0, 1)
    assert ("layers", "GPU 0") in where
    assert plan.gpu_layers == plan.layers == 49
    argv = launch(plan, 1).argv
    assert argv[argv.index("--n-cpu-moe") + 1] == str(plan.expert_layers_in_ram)
    assert argv[argv.index("--lazy-mode") + 1] == "on"
    assert argv[argv.index("--load-mode") + 1] == "none"
    if os.environ.get("WORKHORSE_WRITE_GOLDENS"):
        GOLDEN.write_text(to_json(plan) + "\n", encoding="utf-8")
    golden = from_json(Plan, GOLDEN.read_bytes(), what=GOLDEN.name)
    assert replace(plan, forecast=golden.forecast) == golden
    decode, seen = plan.forecast.decode_tokens_per_s, golden.forecast.decode_tokens_per_s
    assert decode is not None and seen is not None
    # The constants learn from each new row; tests/plan/test_speed*.py hold them.
    assert decode.value == pytest.approx(seen.value, rel=0.3)


@pytest.mark.parametrize(
    ("gpu", "counts", "expert_layers", "context_tokens", "batch_tokens", "published_gib", "off"),
    [
        # `-cmoe` and a context of 8k: 7.3 GB; slots and batch are not published.
        ("RTX 3090", (49,), 48, 8192, 512, (7.3,), 0.2),
        # `-ncmoe 24 -ts 2.7,1`: 36 and 13 layers.
        ("RTX 3090", (36, 13), 24, 8192, 512, (22.8, 20.7), 0.05),
        # `-cmoe` at 80k: 11.7 GB; flags of the batch, slots and a display are not published.
        ("RTX 4090", (49,), 48, 81920, 2048, (11.7,), 0.3),
    ],
)
def test_the_memory_of_published_machines(
    four_bits: Model,
    gpu: str,
    counts: tuple[int, ...],
    expert_layers: int,
    context_tokens: int,
    batch_tokens: int,
    published_gib: tuple[float, ...],
    off: float,
) -> None:
    sizes = Sizes(four_bits)
    layout = Layout(context_tokens, 1, micro_batch_tokens=batch_tokens)
    cut = Cut(counts, four_bits.layers, expert_layers, True)
    devices = [f"GPU {n}" for n in range(len(counts))]
    lines = sizes.lines(layout, cut, devices)
    for device, published in zip(devices, published_gib, strict=True):
        assert device_bytes(lines, device) / GIB == pytest.approx(published, rel=off)


def test_two_v100_hold_the_three_bit_file_whole(tmp_path: Path) -> None:
    parts = Parts("Tesla V100-PCIE-32GB", 2, 128 * GIB, 2, "Xeon E5-2690 v4", 14)
    machine = composed_machine(parts)
    build = assumed_build(machine)
    assert build is not None
    # 56 GB are 88 % of the two cards.
    plan = make_plan(machine, model(tmp_path, UD_IQ3_XXS), build, Wish(headroom=0.05, slots=1))
    assert (plan.gpu_indexes, plan.gpu_layers, plan.expert_layers_in_ram) == ((0, 1), 49, 0)
    careful = make_plan(machine, model(tmp_path, UD_IQ3_XXS), build, Wish())
    assert 0 < careful.expert_layers_in_ram < 12
