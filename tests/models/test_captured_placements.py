"""Where published models go on captured machines, as one table to read.

WORKHORSE_WRITE_GOLDENS=1 writes it anew; read the difference before you commit it.
"""

import json
import os
from pathlib import Path

import pytest
from published_shapes import PUBLISHED

from workhorse.machine.probe import probe
from workhorse.models.gguf import read_gguf
from workhorse.plan.cuts import Cut, Sizes
from workhorse.plan.memory import Layout, device_bytes
from workhorse.plan.planner import make_plan
from workhorse.plan.what_if import assumed_build
from workhorse.plan.wish import Wish
from workhorse.units import GIB, MIB

TESTS = Path(__file__).parents[1]
GOLDEN = TESTS / "plan" / "goldens" / "placements.json"
MACHINES = ("machine_a", "machine_b", "p40_box", "eight_v100", "t4")
MODELS = (
    "Llama-3.1-8B", "Qwen3.5-27B", "Qwen3.5-35B-A3B", "Mixtral-8x7B", "GLM-4.5-Air",
    "Qwen3-Next-80B-A3B", "Llama-3.3-70B",
)  # fmt: skip


@pytest.mark.parametrize("machine", MACHINES)
def test_published_models_on_captured_machines(machine: str, tmp_path: Path) -> None:
    host = probe(TESTS / "captures" / f"{machine}.json")
    build = assumed_build(host)
    assert build is not None
    found = {}
    for name in MODELS:
        model = read_gguf(PUBLISHED[name].header().write(tmp_path / f"{name}.gguf"))
        plan = make_plan(host, model, build, Wish())
        found[name] = {
            "fits": not plan.verdict.blocked,
            "cards": list(plan.gpu_indexes),
            "layers": list(plan.layer_split),
            "experts in RAM": plan.expert_layers_in_ram,
            "settings": f"{plan.slots} × {plan.context_tokens} {plan.kv_type_k}",
            "nodes": list(plan.memory_nodes or ()),
            "findings": sorted(
                f.code for f in plan.verdict.findings if f.level in ("warning", "blocker")
            ),
        }
        for gpu in host.gpus:
            used, total = device_bytes(plan.budget, f"GPU {gpu.index}"), gpu.memory_total_bytes
            assert total is not None and used <= 0.8 * total
        assert set(plan.gpu_indexes) <= {gpu.index for gpu in host.gpus}
        assert set(plan.memory_nodes or ()) <= {node.index for node in host.nodes}
        available = host.memory.available_bytes or 512 * GIB
        assert plan.verdict.blocked or device_bytes(plan.budget, "RAM") <= available
    goldens = json.loads(GOLDEN.read_text(encoding="utf-8")) if GOLDEN.exists() else {}
    if os.environ.get("WORKHORSE_WRITE_GOLDENS"):
        goldens[machine] = found
        GOLDEN.write_text(json.dumps(goldens, indent=1, ensure_ascii=False) + "\n", "utf-8")
    assert found == goldens[machine]


def test_layers_on_a_card_are_counted_as_the_engine_counts_them(tmp_path: Path) -> None:
    # llama-server 0.5.0 (0c1e570) on one H200, Qwen2.5 7B, `-ngl 10 -c 4096`: `offloaded 10/29
    # layers`, KV 72 MiB on the card and 152 MiB beside it, compute 183.44 MiB (2026-11).
    model = read_gguf(PUBLISHED["Qwen2.5-7B"].header().write(tmp_path / "seven.gguf"))
    sizes, layout = Sizes(model), Layout(4096, 1)
    cut = Cut((10,), model.layers, 0, False)
    lines = {(x.device, x.item): x.n_bytes for x in sizes.lines(layout, cut, ["GPU 0"])}
    assert (lines[("GPU 0", "kv")], lines[("RAM", "kv")]) == (72 * MIB, 152 * MIB)
    assert lines[("GPU 0", "compute")] == pytest.approx(183.44 * MIB, rel=0.15)
    whole = {
        (x.device, x.item): x.n_bytes
        for x in sizes.lines(layout, Cut((29,), model.layers, 0, False), ["GPU 0"])
    }
    assert whole[("GPU 0", "compute")] == pytest.approx(136.01 * MIB, rel=0.1)
