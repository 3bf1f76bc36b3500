"""Whole plans for captured machines, compared with what was looked at and found right.

WORKHORSE_WRITE_GOLDENS=1 writes them anew; read the difference before you commit it.
"""

import os
from dataclasses import replace
from pathlib import Path

import pytest

import builders
from workhorse.codec import from_json, to_json
from workhorse.machine.probe import probe
from workhorse.plan.planner import make_plan
from workhorse.plan.what_if import assumed_build
from workhorse.plan.wish import Wish
from workhorse.records import Plan

CAPTURES = Path(__file__).parents[1] / "captures"
GOLDENS = Path(__file__).parent / "goldens"

# Qwen2.5 7B's shape in F16, 15.2 GB: it fits the 32 GB card and not the 16 GB one with room left.
SEVEN_B = replace(
    builders.model(
        layers=28,
        embedding=3584,
        feed_forward=18944 * 3,  # gate, up and down as one tensor
        heads=28,
        kv_heads=4,
        head_size=128,
        vocabulary=152064,
    ),
    path="/models/Seven-7B-F16.gguf",
    name="Seven 7B",
)


@pytest.mark.parametrize(
    "machine", ["machine_a", "machine_b", "avx_only", "h200", "p40_box", "eight_v100"]
)
@pytest.mark.parametrize("build", ["embedded", "cuda"])
def test_the_plan_for_a_captured_machine(machine: str, build: str) -> None:
    host = probe(CAPTURES / f"{machine}.json")
    engine = builders.EMBEDDED if build == "embedded" else assumed_build(host) or builders.CUDA
    plan = make_plan(host, SEVEN_B, engine, Wish())
    golden = GOLDENS / f"{machine}_{build}.json"
    if os.environ.get("WORKHORSE_WRITE_GOLDENS"):
        golden.write_text(to_json(plan) + "\n", encoding="utf-8")
    expected = from_json(Plan, golden.read_bytes(), what=golden.name)
    assert replace(plan, forecast=expected.forecast) == expected
    # The constants learn from each new row; test_speed*.py hold them.
    decode, seen = plan.forecast.decode_tokens_per_s, expected.forecast.decode_tokens_per_s
    assert (decode is None) == (seen is None)
    assert decode is None or seen is None or decode.value == pytest.approx(seen.value, rel=0.3)
