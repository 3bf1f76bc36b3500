"""The bench against what an engine really did, by the engine's own notes.

Both read the machine's one monotonic clock, so cause comes before effect: no piece of text arrives
before the engine sent it, no request reaches the engine before it was sent. How late the machine
brings them is its own affair: benchmarks/bench_truth.py says how near the figures are.
"""

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from running_fake import wait_until_healthy
from workhorse.bench.load import Progress, load_session, measure_service
from workhorse.bench.scenario import Scenario
from workhorse.bench.service import find_service
from workhorse.config import HOST
from workhorse.records import Run
from workhorse.run.process import free_port

ENGINE = Path(__file__).parents[2] / "benchmarks/noting_fake.py"
TOKENS = 30
ROUNDING_S = 1e-6  # of sums and differences of times since the machine started


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


def noted(notes: Path, began_s: float) -> list[dict[str, Any]]:
    """What the engine noted of each stream after the warm-up, by the same clock."""
    lines = [json.loads(line) for line in notes.read_text().splitlines()]
    return [one for one in lines if one["stream"] and one["arrived_s"] >= began_s]


def in_turn(causes_s: Iterable[float], effects_s: Iterable[float]) -> bool:
    """Whether by each effect there had been as many causes."""
    both = zip(sorted(causes_s), sorted(effects_s), strict=True)
    return all(cause_s <= effect_s + ROUNDING_S for cause_s, effect_s in both)


def is_told_in_turn(runs: Sequence[Run], began_s: float, answers: Sequence[dict[str, Any]]) -> bool:
    """Whether requests were sent before they came, and pieces came after they were sent."""
    sent_s = [began_s + (run.sent_s or 0) for run in runs]
    came_s = [at + piece for at, run in zip(sent_s, runs, strict=True) for piece in run.arrivals_s]
    ended_s = [at + run.end_s for at, run in zip(sent_s, runs, strict=True)]
    return (
        in_turn(sent_s, (one["arrived_s"] for one in answers))
        and in_turn((at for one in answers for at in one["sent_s"]), came_s)
        and in_turn((one["sent_s"][-1] for one in answers), ended_s)
    )


@pytest.mark.parametrize("streams", [1, 16])
async def test_nothing_is_reported_before_the_engine_did_it(streams: int, tmp_path: Path) -> None:
    notes = tmp_path / "notes.jsonl"
    scenario = Scenario("truth", 64, TOKENS, streams, repeats=2)
    with noting_engine(notes, "--slots", str(streams), "--ttft-ms", "50", "--gap-ms", "5") as url:
        runs, began_s = await measured(url, scenario)
    assert {(run.error, run.prompt_tokens, run.output_tokens) for run in runs} == {
        (None, 64, TOKENS)
    }
    answers = noted(notes, began_s)
    assert len(answers) == len(runs) == 2 * streams
    assert {len(one["sent_s"]) for one in answers} == {len(run.arrivals_s) for run in runs}
    assert is_told_in_turn(runs, began_s, answers)
    for run in runs:
        assert list(run.arrivals_s) == sorted(run.arrivals_s)
        assert run.arrivals_s[-1] <= run.end_s


def test_a_clock_that_is_off_is_seen() -> None:
    """A bench whose clock begins too late or that is ahead of the engine."""
    answer = {"arrived_s": 10.0, "sent_s": [10.5 + i / 10 for i in range(TOKENS)]}
    right = Run(0, 64, 0, TOKENS, tuple(0.55 + i / 10 for i in range(TOKENS)), 3.6, sent_s=5.0)
    assert is_told_in_turn([right], 5.0, [answer])
    for wrong in (
        replace(right, sent_s=5.1),
        replace(right, sent_s=4.8),
        replace(right, arrivals_s=(*right.arrivals_s[:-1], 3.3)),
        replace(right, end_s=3.3),
    ):
        assert not is_told_in_turn([wrong], 5.0, [answer])
