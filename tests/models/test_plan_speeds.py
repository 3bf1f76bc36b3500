"""`workhorse plan` tells every speed it knows, and what it learned here."""

from pathlib import Path

import pytest
from published_shapes import PUBLISHED

from workhorse.cli import main
from workhorse.codec import from_json
from workhorse.config import places
from workhorse.errors import EXIT_GOOD
from workhorse.plan.rehearsed import setup_of
from workhorse.plan.speed import Experience
from workhorse.records import Conditions, Measurement, Plan, Run
from workhorse.store import Store

MACHINE_B = str(Path(__file__).parents[1] / "captures" / "machine_b.json")


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKHORSE_HOME", str(tmp_path / "home"))


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(PUBLISHED["Qwen3.5-27B"].header().write(tmp_path / "Qwen3.5-27B.gguf"))


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["plan", *words]) == EXIT_GOOD
    return capsys.readouterr().out


def test_streams_depths_and_prompts_are_told(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (model, "--machine", MACHINE_B, "--slots", "4", "--context", "8192")
    english = shown(capsys, *words)
    assert "4 streams, in all" in english and "8 streams" not in english
    assert "behind 8192 tokens" in english and "behind 32768 tokens" not in english
    assert "prompt of 2048 tokens" in english
    assert "4 路并发合计" in shown(capsys, *words, "--lang", "zh")


def test_what_was_learned_here_is_explained(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = (model, "--machine", MACHINE_B)
    plan = from_json(Plan, shown(capsys, *words, "--json"), what="plan")
    assert "Measured here" not in shown(capsys, *words, "--explain")
    seen = Experience("other", "q4_k", setup_of(plan), 30.0, 27.0, None, 25.0, 35.0)
    run = Run(0, 768, 0, 200, (0.5, 0.6), 0.6)
    conditions = Conditions("2026-11-30T00:00:00+00:00", None, None, "http://127.0.0.1:1", "0")
    measurement = Measurement("standard", 768, 200, 1, (run,), conditions)
    store = Store(places().store)
    store.add(seen, measurement, plan.forecast)
    told = shown(capsys, *words, "--explain")
    assert "Measured here" in told and "1 of 1 measurements" in told
    store.path.write_bytes(b"no database" * 99)
    assert "Measured here" not in shown(capsys, *words, "--explain")
