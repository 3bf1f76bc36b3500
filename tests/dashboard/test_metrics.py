"""The metrics: named as the field names them, true, and all that the board for Grafana asks for."""

import json
import random
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from scenes import HOT, MODEL, Owner, plan_for, reading_at

from workhorse.records import Alarm, Reading
from workhorse.serve.backend import Served, capacity_of
from workhorse.serve.dashboard.routes import page_files
from workhorse.serve.figures import TokenCount
from workhorse.serve.metrics import Metrics

# vLLM, docs/design/metrics.md (2026-11): the names that boards and alerts are written for.
OF_VLLM = {
    "num_requests_running",
    "num_requests_waiting",
    "prompt_tokens_total",
    "generation_tokens_total",
    "time_to_first_token_seconds_bucket",
    "inter_token_latency_seconds_bucket",
    "e2e_request_latency_seconds_bucket",
    "request_queue_time_seconds_bucket",
}


def reading() -> Reading:
    """One in which everything is known."""
    whole = reading_at(1_800_000_000, plan_for("machine_b")[1], random.Random(1))
    engine = replace(
        whole.engines[0], decode_tokens_per_s=20.0, swapped_bytes=0, cpu_share=0.5, generating=1
    )
    card = replace(
        whole.cards[0],
        throttled_by=("sw_power_cap",),
        corrected_errors=2,
        uncorrected_errors=0,
        power_w=99.5,
    )
    return replace(whole, engines=(engine,), cards=(card,))


def count(prompt: int, generated: int, speed: float | None) -> TokenCount:
    return TokenCount(prompt=prompt, cached=0, generated=generated, decode_tokens_per_s=speed)


@pytest.fixture
def metrics() -> Metrics:
    plan = plan_for("machine_b")[1]
    served = [Served(MODEL, Owner("http://x"), capacity_of(plan))] * 2
    metrics = Metrics(
        in_flight=lambda: 3,
        served=lambda: served,
        reading=reading,
        alarms=lambda: (Alarm(HOT, 1.0, None, "GPU 0"), Alarm(HOT, 1.0, 2.0, "GPU 1")),
    )
    metrics.count_request("/v1/chat/completions", 200)
    metrics.count_tokens([count(100, 11, 50.0), count(10, 1, None)])
    metrics.time_to_first_token_s.observe(0.3)
    metrics.request_queue_time_s.observe(0.0)
    metrics.e2e_request_latency_s.observe(2.0)
    return metrics


def samples(metrics: Metrics) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(metrics.page().decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_they_have_the_fields_names(metrics: Metrics) -> None:
    names = samples(metrics).keys()
    assert all(name.startswith("workhorse_") for name in names)
    assert {f"workhorse_{name}" for name in OF_VLLM} <= names


def test_two_engines_of_one_model_are_one_sample(metrics: Metrics) -> None:
    """Prometheus refuses a page that has a sample twice."""
    found = samples(metrics)
    for name, all_of_it in found.items():
        labels = [tuple(sorted(sample.items())) for sample, _ in all_of_it]
        assert len(labels) == len(set(labels)), name
    assert found["workhorse_engine_state"] == [({"model": MODEL, "state": "ready"}, 2.0)]
    assert found["workhorse_slots"] == [({"model": MODEL}, 8.0)]


def test_token_gaps_count_every_token_of_an_answer(metrics: Metrics) -> None:
    found = samples(metrics)
    assert found["workhorse_inter_token_latency_seconds_count"] == [({}, 10.0)]
    assert found["workhorse_inter_token_latency_seconds_sum"][0][1] == pytest.approx(10 / 50)
    upto = {
        labels["le"]: value
        for labels, value in found["workhorse_inter_token_latency_seconds_bucket"]
    }
    assert (upto["0.01"], upto["0.02"], upto["+Inf"]) == (0.0, 10.0, 10.0)


def test_only_alarms_in_force_and_only_what_is_known(metrics: Metrics) -> None:
    found = samples(metrics)
    assert [labels["subject"] for labels, _ in found["workhorse_alarm_active"]] == ["GPU 0"]
    assert found["workhorse_gpu_throttled"][0][0]["reason"] == "sw_power_cap"
    silent = Metrics(in_flight=lambda: 0, served=list)
    assert "workhorse_memory_total_bytes" not in samples(silent)


def expressions(board: Any) -> list[str]:
    if isinstance(board, dict):
        own = [board["expr"]] if "expr" in board else []
        return own + [e for value in board.values() for e in expressions(value)]
    return [e for value in board for e in expressions(value)] if isinstance(board, list) else []


def test_the_board_asks_for_nothing_that_is_not_there(metrics: Metrics) -> None:
    board = json.loads(page_files()["grafana.json"])
    asked = {name for e in expressions(board) for name in re.findall(r"workhorse_\w+", e)}
    assert len(asked) > 25
    assert asked - samples(metrics).keys() == set()
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))


needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="no promtool here (Debian: prometheus)"
)


@needs_promtool
def test_promtool_finds_nothing_wrong(metrics: Metrics) -> None:
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=metrics.page(), capture_output=True, timeout=300
    )
    assert (done.returncode, done.stderr.decode()) == (0, "")


@needs_promtool
def test_the_boards_expressions_can_be_read(tmp_path: Path) -> None:
    """As recording rules, with Grafana's variables filled in."""
    board = json.loads(page_files()["grafana.json"])
    rules = [
        {"record": f"board:{number}", "expr": e.replace("$__rate_interval", "5m")}
        for number, e in enumerate(expressions(board))
    ]
    file = tmp_path / "rules.json"  # YAML holds JSON
    file.write_text(json.dumps({"groups": [{"name": "board", "rules": rules}]}))
    done = subprocess.run(
        ["promtool", "check", "rules", str(file)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
