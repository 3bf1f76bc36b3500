"""LMDeploy: started with TurboMind; its quiet fall-back is a finding and a refusal."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import builders
import pooled
from workhorse.engines.adapter import adapter_named
from workhorse.plan.wish import Wish
from workhorse.units import GIB

LMDEPLOY = adapter_named("lmdeploy")
HERE = Path(__file__).parent


def fallen_back() -> list[str]:
    """Recorded: 0.18.0 told `--backend turbomind`, where TurboMind does not load."""
    return (HERE / "logs/lmdeploy_0.18.0_fallback.log").read_text(encoding="utf-8").splitlines()


def healthy() -> list[str]:
    path = HERE.parent / "diagnose/healthy/lmdeploy_v100.log"
    return path.read_text(encoding="utf-8").splitlines()


def test_every_word_is_an_option_of_its_server() -> None:
    planned = pooled.plan(pooled.lmdeploy(), builders.gpu())
    start = LMDEPLOY.launch(planned, 4711)
    options = [word for word in start.argv[3:] if word.startswith("--")]
    assert set(options) <= set(planned.engine.knows)
    words = " ".join(start.argv)
    assert "serve api_server /models/tiny --backend turbomind" in words
    assert "--dtype float16 --tp 1" in words
    assert "--server-name 127.0.0.1 --server-port 4711" in words
    assert "--enable-prefix-caching" in words
    assert "--quant-policy" not in words
    assert start.health_path == "/health"


def test_the_cache_is_quantised_when_the_room_is_short_and_the_heads_allow_it() -> None:
    card = builders.gpu(memory_bytes=8 * GIB)
    wish = Wish(context_tokens=32768)
    files = pooled.stored("F16", 3 * GIB)
    for size, policy in ((128, True), (64, False)):
        shape = pooled.model(layers=28, head_size=size, kv_heads=4 * 128 // size)
        planned = pooled.plan(pooled.lmdeploy(), card, wish=wish, files=files, shape=shape)
        argv = LMDEPLOY.launch(planned, 1).argv
        assert ("--quant-policy" in argv) is policy, planned.pool


def test_the_fall_back_is_a_blocker_whatever_else_the_log_says() -> None:
    planned = pooled.plan(pooled.lmdeploy(), builders.gpu())
    (found,) = LMDEPLOY.judge(planned, fallen_back())
    assert (found.code, found.level) == ("verify.slow_engine", "blocker")
    assert "Fallback to pytorch engine because turbomind is not built" in found.seen.en


def test_an_engine_that_fell_back_and_died_is_explained_by_the_fall_back() -> None:
    cause = LMDEPLOY.explain(fallen_back())
    assert cause is not None
    assert "PyTorch engine instead of TurboMind" in cause.what.en
    assert cause.next_step is not None
    assert "llama.cpp" in cause.next_step.en


@pytest.mark.parametrize(
    "line",
    [
        "lmdeploy - WARNING - archs.py:38 - Fallback to pytorch engine because '/m' not supported "
        "by turbomind engine.",
        "lmdeploy - INFO - async_engine.py:133 - input backend=pytorch, backend_config=Pytorch(",
    ],
)
def test_each_of_its_ways_to_say_so(line: str) -> None:
    planned = pooled.plan(pooled.lmdeploy(), builders.gpu())
    assert LMDEPLOY.judge(planned, [*healthy(), line])[0].code == "verify.slow_engine"


def test_a_log_that_does_not_speak_of_turbomind_is_refused_too() -> None:
    planned = pooled.plan(pooled.lmdeploy(), builders.gpu())
    for log in ([], [line for line in healthy() if "TurbomindEngineConfig" not in line]):
        (found,) = LMDEPLOY.judge(planned, log)
        assert (found.code, found.level) == ("verify.slow_engine", "blocker")


def test_a_start_of_turbomind_is_read_and_compared() -> None:
    seen = LMDEPLOY.observe(healthy())
    assert (seen.device, seen.dtype) == ("gpu", "float16")
    assert (seen.slots, seen.context_tokens) == (32, 8192)
    planned = pooled.plan(
        pooled.lmdeploy(), builders.gpu(), wish=Wish(context_tokens=8192, slots=32)
    )
    assert LMDEPLOY.judge(planned, healthy()) == ()
    longer = replace(planned, context_tokens=16384)
    assert [f.code for f in LMDEPLOY.judge(longer, healthy())] == ["verify.slots_differ"]


def test_a_model_that_turbomind_does_not_know_is_refused_before_the_start() -> None:
    planned = pooled.plan(pooled.lmdeploy(("LlamaForCausalLM",)), builders.gpu())
    (found,) = [f for f in planned.verdict.findings if f.level == "blocker"]
    assert found.code == "engine.unknown_model_class"
    assert "Qwen3ForCausalLM" in found.seen.en


def test_a_dead_gpu_build_is_explained() -> None:
    log = (HERE.parent / "diagnose/provoked/lmdeploy_no_gpu.log").read_text(encoding="utf-8")
    cause = LMDEPLOY.explain(log.splitlines())
    assert cause is not None
    assert "CPU build" in cause.what.en


def test_it_takes_its_key_without_showing_it(tmp_path: Path) -> None:
    (tmp_path / "told.py").write_text(
        "import os, pathlib, sys\n"
        "print(sys.argv[1:], pathlib.Path('/proc/self/cmdline').read_text(), dict(os.environ))\n"
    )
    build = replace(
        pooled.lmdeploy(), command=(sys.executable, "-m", "told"), knows=("--api-keys",)
    )
    planned = replace(pooled.plan(pooled.lmdeploy(), builders.gpu()), engine=build)
    start = LMDEPLOY.launch(planned, 1)
    assert start.key_variable is not None
    for key, words in (("k3y", ["--api-keys", "k3y"]), ("", [])):
        env = {**os.environ, "PYTHONPATH": str(tmp_path), start.key_variable: key}
        command = [*start.argv[:3], "serve"]
        said = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
        shown = str(["serve", *words])
        assert said.startswith(shown)
        assert "k3y" not in said.removeprefix(shown)
    old = replace(planned, engine=replace(build, knows=()))
    assert LMDEPLOY.launch(old, 1).key_variable is None
    assert LMDEPLOY.launch(old, 1).argv[:3] == build.command
