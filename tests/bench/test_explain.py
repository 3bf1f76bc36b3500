"""`workhorse explain` against services whose times are told, and as its user meets it."""

import asyncio
import json
from dataclasses import replace
from math import isclose
from pathlib import Path
from typing import Literal

import pytest
from plain_service import PlainService, serving

from running_fake import FakeEngine
from workhorse.bench import attribution_service
from workhorse.bench.attribution_job import Experiment, explain
from workhorse.bench.attribution_service import (
    ToldPlan,
    engine_at,
    known_of,
    told_ceiling,
)
from workhorse.cli import main
from workhorse.cli.explain import bar
from workhorse.codec import from_json
from workhorse.config import places
from workhorse.errors import AppError
from workhorse.records import Attribution, SpeedTerm, Term
from workhorse.store import Store
from workhorse.text import Text, same

from runs_to_report import plan  # isort: skip

# Two rounds are needed; a round is lost whose answer comes in one read to who waited for a turn.
SHORT = ["--rounds", "8", "--output-tokens", "12", "--prompt-tokens", "64"]
LOOKS = 20  # who reads wrong does each time; who has to wait for a turn does not


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKHORSE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("WORKHORSE_API_KEY", raising=False)


def silent(done: int, total: int) -> None:
    assert 0 < done <= total


def by_code(found: Attribution) -> dict[str, Term]:
    return {term.code: term for term in found.terms}


async def test_a_told_delay_is_found(fake_engine: FakeEngine, tmp_path: Path) -> None:
    url = fake_engine("--gap-ms", "20", "--slots", "2", "--batch-slowdown", "0.5")
    ceiling = told_ceiling(ToldPlan("x", attribution_service.Figure(100, 100, 100, same("x"))))
    experiment = Experiment(64, 12, 3)
    seen: list[object] = []
    for _ in range(LOOKS):
        try:
            found = await explain(url, experiment, places(), on_progress=silent, ceiling=ceiling)
        except AppError as error:  # too many rounds were lost
            seen.append(error)
            continue
        terms = by_code(found)
        assert set(terms) == {"memory", "attention", "sampling", "rest", "delivery", "pauses"}
        # The fake engine's clock says what it was told.
        assert all(isclose(one[0].engine_token_s or 0, 0.020, rel_tol=0.01) for one in found.rounds
                   if one[0].variant == "whole")  # fmt: skip
        assert sum(term.seconds for term in found.terms) == pytest.approx(found.token_s)
        assert found.samples[-1].at_s > 0
        own, _ = terms["rest"].bounds
        if (
            len(found.rounds) == 3
            and isclose(terms["rest"].seconds, 0.010, rel_tol=0.05)
            and abs(terms["sampling"].seconds) < 0.001
            and own.high_s >= 0.009
        ):
            return
        seen.append((terms, len(found.rounds)))
    pytest.fail(f"{seen}")


class Gap(asyncio.Event):
    """What a plain service waits for between two pieces: 5 ms."""

    async def wait(self) -> Literal[True]:
        await asyncio.sleep(0.005)
        return True


async def test_a_service_without_an_engines_clock() -> None:
    async with serving(PlainService(hold=Gap())) as url:
        found = await explain(url, Experiment(64, 12, 2), places(), on_progress=silent)
    assert set(by_code(found)) <= {"attention", "rest", "pauses"}
    assert found.ceiling_tokens_per_s is None
    assert "reading memory" in by_code(found)["rest"].how.en


async def test_failing_requests_end_in_one_error(fake_engine: FakeEngine) -> None:
    url = fake_engine("--fail-after-tokens", "6", "--slots", "1")
    with pytest.raises(AppError, match="does not serve"):
        await explain(url, Experiment(64, 12, 2), places(), on_progress=silent)
    url = fake_engine("--fail-after-tokens", "10", "--slots", "1")
    with pytest.raises(AppError, match="two are needed"):
        await explain(url, Experiment(64, 12, 2), places(), on_progress=silent)


def test_a_table_with_bars_and_a_kept_record(
    fake_engine: FakeEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url, saved = fake_engine("--gap-ms", "5"), tmp_path / "found.json"
    command = ["explain", url, *SHORT, "--ceiling", "400", "--save", str(saved)]
    assert main([*command, "--lang", "en"]) == 0
    out, err = capsys.readouterr()
    assert "rest of the step, joined" in out
    assert "█" in out
    assert "Kept as explain-1." in err
    kept = Store(places().store).attribution("explain-1")
    assert from_json(Attribution, saved.read_text(), what="file") == kept
    assert main([*command[:-2], "--json", "--lang", "zh"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["ceiling_tokens_per_s"]["value"] == 400
    assert main([*command[:-2], "--lang", "zh"]) == 0
    assert "其余（合并）" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [["--ceiling", "0"], ["--ceiling", "nan"], ["--rounds", "0"]])
def test_options_that_make_no_sense(wrong: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["explain", "http://127.0.0.1:9", *wrong])
    assert ended.value.code == 2


def test_one_round_is_refused_with_the_next_step(
    fake_engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", fake_engine(), *SHORT, "--rounds", "1", "--lang", "en"]) == 1
    assert "--rounds" in capsys.readouterr().err


def test_the_engines_port_and_key_are_its_own_words(tmp_path: Path) -> None:
    folder = tmp_path / "42"
    folder.mkdir()
    (folder / "cmdline").write_bytes(b"llama-server\0--port\x0040001\0")
    (folder / "environ").write_bytes(b"A=1\0LLAMA_API_KEY=abc=d\0")
    engine = engine_at(42, "m", tmp_path)
    assert engine is not None
    assert engine.url == "http://127.0.0.1:40001"
    assert engine.headers == {"Authorization": "Bearer abc=d"}
    assert "abc" not in repr(engine)
    (folder / "cmdline").write_bytes(b"llama-server\0--port\0x\0")
    assert engine_at(42, "m", tmp_path) is None
    assert engine_at(43, "m", tmp_path) is None
    assert engine_at(None, "m", tmp_path) is None


def test_a_plan_whose_file_has_gone_still_tells_its_terms() -> None:
    term = SpeedTerm("RAM", Text("layers", "各层开销"), 0.002, same("x"))
    read = replace(term, what=Text("memory read", "读取内存"))
    known = plan()
    known = replace(known, forecast=replace(known.forecast, terms=(term, read)))
    ceiling = known.forecast.ceiling_tokens_per_s
    assert ceiling is not None
    found = known_of(known, ceiling, 800)
    assert found.kv_s is None
    assert found.expected == ((term.what, 0.002),)


@pytest.mark.parametrize("figures", [(0, 0, 0), (-1, 2, 3), (3, 4, 5), (float("nan"), 1, 1)])
def test_a_ceiling_that_is_none_is_not_taken(figures: tuple[float, float, float]) -> None:
    told = attribution_service.Figure(*figures, same(""))
    assert told_ceiling(ToldPlan("m", told)) is None
    assert told_ceiling(None) is None


@pytest.mark.parametrize(
    ("metrics", "answered"),
    [
        ("", 0),
        (
            'workhorse_requests_total{route="/v1/completions",status="200"} 3.0\n'
            'workhorse_requests_total{route="/metrics",status="200"} 5.0\n'
            'workhorse_requests_total{route="/v1/chat/completions",status="499"} 1.0\n',
            4,
        ),
        ("{{{ \x00 not metrics", None),
        ('workhorse_requests_total{route="/v1/completions"} many', None),
    ],
)
def test_requests_of_others_are_counted_by_the_gateway(metrics: str, answered: int | None) -> None:
    assert attribution_service.answered_of(metrics) == answered


@pytest.mark.parametrize(
    ("start", "seconds", "drawn"),
    [
        (0.0, 0.5, "█" * 13),
        (0.5, 0.25, " " * 13 + "█" * 6 + "▌"),
        (0.5, 0.0, " " * 13),
        (0.5, -0.25, " " * 6 + "░" * 6),
        (0.9, 5.0, " " * 23 + "██▋"),
        (5.0, -9.0, "░" * 26),
    ],
)
def test_a_piece_of_the_bar_stands_in_its_place(start: float, seconds: float, drawn: str) -> None:
    assert bar(start, seconds, 1.0) == drawn
