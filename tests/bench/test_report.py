"""Stored runs as a report: its parts, runs that are broken, words that would be markup."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from runs_to_report import attribution, broken, ladder, lengths, measured, plan

from workhorse.bench.report import page as page_module
from workhorse.bench.report import plots
from workhorse.bench.report.case import Case, labelled
from workhorse.bench.report.changes import Changed, changes
from workhorse.bench.report.document import Curves, Document, Promises, Roofline, Waterfall
from workhorse.bench.report.markdown import markdown
from workhorse.bench.report.page import page
from workhorse.bench.report.sources import CASES_MAX, of_measurements, read_cases
from workhorse.bench.report.story import report
from workhorse.cli import main
from workhorse.codec import to_json
from workhorse.config import places
from workhorse.errors import AppError
from workhorse.records import Measurement
from workhorse.store import Store
from workhorse.text import Language, Text

EVIL = '<script>alert("1")</script> | $x_2$ `a` [b](javascript:c)\n# d \x00\x1b[31m'


def case(name: str, *measurements: Measurement, label: str | None = None) -> Case:
    return of_measurements(name, measurements, label, None)


def full() -> Document:
    cases = (
        case("1", measured(), *ladder(), *lengths(), label="before"),
        case("2", measured(decode=30.0), *ladder(30.0), label="after"),
        Case("explain-1", "after", "", None, "a 7B", attribution=attribution()),
    )
    return report(cases, when="2026-11-30 12:00 UTC", version="0.1.0")


def test_the_tables_say_what_was_measured() -> None:
    told = markdown(full(), "en")
    head, rows = told.split("## Figures\n\n")[1].split("\n\n")[0].split("\n--", 1)[0], told
    assert head.startswith("| run, one stream | decode tok/s | against the first |")
    assert "| before · 1 |" not in rows
    assert "| before | 20.0 (19.8–20.2) | — | 50 % |" in rows
    assert "| after · 2 | 30.0 (29.7–30.3) | +50% | 75 % |" in rows
    assert "decode, one stream | 25.0 (20.0–31.2) | 20.0 (19.8–20.2) | -20% | inside |" in rows
    assert "| the rest | 24.00 | 22.00 – 26.00 | 48 % | 20.4 | tried |" in rows
    for heading in ("What is compared", "Predicted against measured", "Conditions"):
        assert f"\n## {heading}\n" in told
    chinese = markdown(full(), "zh")
    assert "## 主要数据" in chinese
    assert "rest项" in chinese


def test_every_plot_has_what_it_needs() -> None:
    parts = [part for section in full().sections for part in section.parts]
    (roof,) = (part for part in parts if isinstance(part, Roofline))
    assert [(r.label, r.ceiling, r.compute and round(r.compute)) for r in roof.roofs] == [
        ("before", 40.0, 394),
        ("after · 2", 40.0, 320),
    ]
    # The plan has four slots: of eight streams four wait, and a step serves four.
    beyond = case("3", *ladder(), measured("ladder", streams=8, prompt=256, output=64))
    (roof,) = (
        part
        for section in report((beyond,), when="", version="").sections
        for part in section.parts
        if isinstance(part, Roofline)
    )
    assert [p.x for p in roof.roofs[0].points] == [1, 2, 4]
    curves = [part for part in parts if isinstance(part, Curves)]
    assert [[p.x for p in one.series[0].points] for one in curves] == [
        [1, 2, 4],
        [128, 1024],
        [512, 4096],
    ]
    assert sum(len(part.promises) for part in parts if isinstance(part, Promises)) == 4
    assert sum(isinstance(part, Waterfall) for part in parts) == 1


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_page_needs_nothing_from_elsewhere(language: Language) -> None:
    pytest.importorskip("matplotlib")
    text = page(full(), language)
    assert text.count("<svg ") == 6
    assert page(full(), language) == text  # the same runs, the same file
    without_names = re.sub(r'xmlns(:\w+)?="[^"]*"', "", text)
    for reference in re.findall(r"""(?:href|src|action|data)\s*=\s*["']([^"']*)""", without_names):
        assert reference.startswith("#"), reference
    for word in ("@import", "<script", "<link", "<iframe", "<image", "url(h", "url('h"):
        assert word not in without_names
    assert re.findall(r"url\(([^)#])", without_names) == []


def test_words_that_would_be_markup_are_words() -> None:
    pytest.importorskip("matplotlib")
    evil = replace(measured(), scenario=EVIL)
    evil = replace(evil, conditions=replace(evil.conditions, plan=plan(EVIL), url=EVIL))
    cases = (case(EVIL, evil, *ladder(), label=EVIL), case("2", measured(), label=EVIL))
    document = report(cases, when="now", version="0")
    text = page(document, "en")
    assert "<script" not in text
    assert "alert(&quot;1&quot;)" in text
    assert "\x00" not in text
    assert "\x1b" not in text
    told = markdown(document, "en")
    assert "\\<script\\>" in told
    assert "\n# d" not in told
    assert not re.search(r"(?<!\\)[<`]|(?<!\\)\[b", told)
    widths = {line.replace("\\|", "").count("|") for line in told.split("\n")[6:8]}
    assert widths == {7}


def test_runs_without_figures_are_told_and_break_nothing() -> None:
    pytest.importorskip("matplotlib")
    odd = replace(measured(), runs=())
    back = replace(measured().runs[0], arrivals_s=(3.0, 2.0, 1.0), end_s=-1.0, output_tokens=3)
    cases = (
        case("1", broken(measured()), label="failed"),
        case("2", odd, label="empty"),
        case("3", replace(measured(), runs=(back,)), label="backwards"),
        case("4", measured(with_plan=False), label="no plan"),
    )
    for one in (*((single,) for single in cases), cases, ()):
        document = report(one, when="now", version="0")
        assert page(document, "en").endswith("</html>\n")
        assert markdown(document, "zh").startswith("# ")
    told = markdown(report(cases, when="now", version="0"), "en")
    assert "failed: This run holds no figures" in told
    assert "empty: This run holds no figures" in told


def test_without_a_chinese_font_the_plots_are_english(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(plots, "chinese_font", lambda: None)
    text = page(full(), "zh")
    assert "streams at a time" in text
    assert "主要数据" in text


def test_without_matplotlib_the_page_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "can_draw", lambda: False)
    text = page(full(), "en")
    assert "matplotlib is not installed" in text
    assert "<svg" not in text
    assert "decode tok/s" in text


def test_the_same_run_twice_has_two_labels() -> None:
    one = case("1", measured(), label="x")
    assert [found.label for found in labelled([one, one, one])] == ["x · 1", "x · 1 (2)",
                                                                    "x · 1 (3)"]  # fmt: skip


def test_what_a_tuner_changed_is_a_table() -> None:
    rows = [
        Changed(1, "threads", "14", Text("accepted", "采纳"), True, 1.082, (1.05, 1.11), 1.1, 8,
                Text("better", "更快")),
        Changed(2, "kv", "q8_0", Text("crashed", "崩溃"), False, None, None, None, 0,
                Text("it fell over", "崩溃了")),
    ]  # fmt: skip
    document = report((), when="now", version="0", changes=changes(rows))
    told = markdown(document, "en")
    assert "| 1 ✓ | threads = 14 | +8.2 % | +5.0 % – +11.0 % | +10.0 % | 8 | accepted |" in told
    assert "| 2 | kv = q8\\_0 | — | — | — | 0 | crashed | it fell over |" in told
    assert changes([]) is None


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("WORKHORSE_HOME", str(tmp_path / "home"))
    return Store(places().store)


def test_the_newest_run_and_attribution_by_default(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "--lang", "en"]) == 1
    assert "holds no runs yet" in capsys.readouterr().err
    store.keep_bench([measured(decode=10.0)], label="old")
    store.keep_bench([measured(decode=11.0)], label="new")
    store.keep_attribution(attribution())
    assert main(["report", "--lang", "en"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "| new |" in out
    assert "| old |" not in out
    assert "Where a token's time goes" in out
    assert main(["report", "--list", "--lang", "en"]) == 0
    assert {"1", "2", "explain-1"} <= {line.split()[0] for line in
                                       capsys.readouterr().out.splitlines()
                                       if line.split()}  # fmt: skip
    assert main(["report", "1", "explain-1", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert first["measurements"][0]["figures"]["decode_tokens_per_s"]["median"] == pytest.approx(10)
    assert second["attribution"]["terms"][0]["code"] == "memory"


def test_files_and_what_cannot_be_read(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, found = tmp_path / "good.json", tmp_path / "found.json"
    good.write_text(to_json([measured()]))
    found.write_text(to_json(attribution()))
    nan = tmp_path / "nan.json"
    nan.write_text(good.read_text().replace('"end_s": ', '"end_s": NaN, "x": ', 1))
    old = tmp_path / "old.json"
    old.write_text(to_json([{"scenario": "standard", "version": 0}]))
    (tmp_path / "none.json").write_text("[]")
    bad = [str(nan), str(old), str(tmp_path / "none.json"), str(tmp_path), "77", "no\0file"]
    out = tmp_path / "r.md"
    assert (
        main(["report", str(good), *bad, str(found), "--markdown", str(out), "--lang", "en"]) == 0
    )
    told = out.read_text()
    assert "2 runs" in told
    assert "## Not in this report" in told
    assert capsys.readouterr().err.count("  → ") == len(bad)
    assert main(["report", *bad, "--lang", "en"]) == 2
    assert main(["report", str(good), "--html", str(tmp_path), "--lang", "en"]) == 1
    assert "cannot be written" in capsys.readouterr().err
    with pytest.raises(AppError, match="too many"):
        read_cases(["1"] * (CASES_MAX + 1), store)
