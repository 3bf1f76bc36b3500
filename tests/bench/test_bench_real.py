"""The protocol against the real engine with the real model."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from running_fake import wait_until_healthy
from workhorse.bench.doubts import doubts
from workhorse.bench.load import measure
from workhorse.bench.scenario import Scenario
from workhorse.bench.stats import summarise
from workhorse.config import HOST
from workhorse.engines.openmp import ensure_openmp
from workhorse.records import Conditions
from workhorse.run.process import free_port

SETTINGS = (
    "--alias real --ctx-size 2048 --parallel 2 --threads 2 --threads-batch 2 --batch-size 512 "
    "--ubatch-size 512 --load-mode none --flash-attn on --cache-type-k f16 --cache-type-v f16 "
    "--n-gpu-layers 0 --fit off --cache-ram 0 --verbosity 3"
)

# An answer so short may come in one read to a process that had to wait for its turn: no speed.
LOOKS = 20

pytestmark = pytest.mark.real


@pytest.fixture
def real_engine(real_model: Path, tmp_path: Path) -> Iterator[str]:
    port = free_port(HOST)
    command = [sys.executable, "-m", "workhorse.engines.embedded", "--model", str(real_model)]
    command += ["--port", str(port), *SETTINGS.split()]
    libgomp = {"LD_LIBRARY_PATH": str(ensure_openmp() or "")}
    environment = os.environ | {"GOMP_SPINCOUNT": "1000"} | libgomp
    log = tmp_path / "engine.log"
    with (
        log.open("w") as out,
        subprocess.Popen(command, env=environment, stdout=out, stderr=out, text=True) as engine,
    ):
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until_healthy(url, engine)
            yield url
        finally:
            engine.kill()


async def test_prompts_have_exactly_the_asked_length(real_engine: str) -> None:
    scenario = Scenario("real", prompt_tokens=99, output_tokens=6, streams=2, repeats=1)
    conditions = Conditions("2026-11-30T00:00:00+00:00", None, None, real_engine, "0")
    for _ in range(LOOKS):
        runs = await measure(real_engine, scenario, on_progress=lambda _: None)
        assert {run.error for run in runs} == {None}
        assert {(run.prompt_tokens, run.output_tokens) for run in runs} == {(99, 6)}
        assert {run.cached_tokens for run in runs} == {0}
        measurement = scenario.measurement(runs, conditions)
        summary = summarise(measurement)
        if summary.decode_tokens_per_s is not None:
            break
    assert summary.decode_tokens_per_s is not None
    assert summary.prefill_tokens_per_s is not None
    assert summary.total_tokens_per_s is not None
    codes = {finding.code for finding in doubts(measurement).findings}
    assert not codes & {"bench-errors", "bench-prompt-length", "bench-short-answer"}
