"""The bench against what an engine really did, by the engine's own notes."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import pytest

from running_fake import wait_until_healthy
from workhorse.bench.load import Progress, load_session, measure_service
from workhorse.bench.scenario import Scenario
from workhorse.bench.service import find_service
from workhorse.bench.stats import decode_tokens_per_s, ttft_s
from workhorse.config import HOST
from workhorse.records import Run
from workhorse.run.process import free_port

ENGINE = Path(__file__).parents[2] / "benchmarks/noting_fake.py"
ATTEMPTS = 6


@contextmanager
def noting_engine(notes: Path, *options: str) -> Iterator[str]:
    port = free_port(HOST)
    command = [sys.executable, str(ENGINE), str(notes), "--port", str(port), *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as engine:
        try:
            url = f"http://{HOST}:{port}"
            wait_until_healthy(url, engine)
            yield url
        finally:
            engine.kill()


async def measured(url: str, scenario: Scenario) -> tuple[tuple[Run, ...], float]:
    seen: list[Progress] = []
    async with load_session() as client:
        service = await find_service(client, url)
        runs = await measure_service(client, service, scenario, on_progress=seen.append, seed=1)
    assert seen[-1].began_s is not None
    return runs, seen[-1].began_s


def errors(runs: Sequence[Run], began_s: float, notes: Path) -> tuple[float, float]:
    """How far first token and decode are from what the engine did, as shares."""
    lines = [json.loads(line) for line in notes.read_text().splitlines()]
    done = [one["sent_s"] for one in lines if one["stream"] and one["arrived_s"] >= began_s]
    assert len(done) == len(runs)
    speeds = [speed for run in runs if (speed := decode_tokens_per_s(run))]
    decode = median(speeds) * median((s[-1] - s[0]) / (len(s) - 1) for s in done) - 1
    sent_s = [began_s + (run.sent_s or 0) for run in runs]
    first_s = [at_s + (ttft_s(run) or 0) for at_s, run in zip(sent_s, runs, strict=True)]
    late_s = median(first_s) - median(s[0] for s in done)
    return late_s / (median(first_s) - median(sent_s)), decode


# The fake engine keeps its times as well as the machine lets it; its notes say how well. Other
# work can also keep the bench from its turn: one that misreads is wrong each time, one that reads
# well is right as soon as it gets its turns.
@pytest.mark.parametrize("streams", [1, 16])
async def test_reports_what_the_engine_did_within_one_percent(streams: int, tmp_path: Path) -> None:
    scenario = Scenario("truth", 64, 30, streams, repeats=2)
    told = ("--slots", str(streams), "--ttft-ms", "500", "--gap-ms", "30")
    seen = []
    for number in range(ATTEMPTS):
        notes = tmp_path / f"{number}.jsonl"
        with noting_engine(notes, *told) as url:
            runs, began_s = await measured(url, scenario)
        assert {(run.error, run.prompt_tokens, run.output_tokens) for run in runs} == {
            (None, 64, 30)
        }
        seen.append(errors(runs, began_s, notes))
        if all(abs(error) < 0.01 for error in seen[-1]):
            return
    pytest.fail(f"first token and decode were off by {seen}")
