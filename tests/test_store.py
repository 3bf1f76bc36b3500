"""What is kept of measurements, and a store that is broken."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from workhorse import store as store_module
from workhorse.codec import from_json
from workhorse.errors import AppError
from workhorse.plan.speed import Experience, Setup
from workhorse.records import Attribution, Conditions, Estimate, Forecast, Measurement, Run, Verdict
from workhorse.store import LEARN_FROM_LATEST, SCHEMA, Store
from workhorse.text import Text

SETUP = Setup("llama.cpp 1", "huge", 2)


def measurement() -> Measurement:
    run = Run(0, 768, 0, 200, (0.5, 0.6), 0.6)
    return Measurement("standard", 768, 200, 1, (run,), Conditions("2026-11-30T00:00:00+00:00",
        None, None, "http://127.0.0.1:1", "0"))  # fmt: skip


def test_what_was_kept_is_found_newest_first(tmp_path: Path) -> None:
    store = Store(tmp_path / "deep" / "store.sqlite")
    assert store.experiences() == ()
    for speed in range(LEARN_FROM_LATEST + 5):
        store.add(Experience("m", "q4_0", SETUP, 100.0, float(speed)), measurement())
    kept = store.experiences()
    assert len(kept) == LEARN_FROM_LATEST
    assert kept[0] == Experience("m", "q4_0", SETUP, 100.0, float(LEARN_FROM_LATEST + 4))


def test_the_promise_is_kept_beside_what_came(tmp_path: Path) -> None:
    store = Store(tmp_path / "store.sqlite")
    seen = Experience("m", "q4_0", SETUP, 100.0, 90.0, 640.0, 80.0, 125.0)
    promise = Estimate(100.0, 80.0, 125.0, "tok/s", "estimated", Text("test", "测试"))
    store.add(seen, measurement(), Forecast(promise, 100.0, promise, 10**9, promise))
    assert store.experiences() == (seen,)
    with closing(sqlite3.connect(store.path)) as connection:
        (document,) = connection.execute("SELECT forecast FROM measurement").fetchone()
    assert from_json(Forecast, document, what="forecast").decode_tokens_per_s == promise


def test_what_does_not_teach_can_be_read_back(tmp_path: Path) -> None:
    store = Store(tmp_path / "store.sqlite")
    seen = Experience("m", "q4_0", SETUP, 100.0, 190.0)
    store.add(seen, measurement(), teaches=False)
    assert store.experiences() == ()
    assert store.run("up-1") == (measurement(),)


def test_a_store_of_an_earlier_version_still_teaches(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(SCHEMA)  # the columns of the first version
        connection.execute(
            "INSERT INTO measurement (taken_at, model_name, quantisation, engine, pages, threads, "
            "predicted_tokens_per_s, measured_tokens_per_s, document) "
            "VALUES ('2026-11-30', 'm', 'q4_0', 'llama.cpp 1', 'huge', 2, 100.0, 90.0, '{}')"
        )
    old = Experience("m", "q4_0", SETUP, 100.0, 90.0)
    assert Store(path).experiences() == (old,)
    new = Experience("m", "q4_0", SETUP, 100.0, 95.0, None, 80.0, 125.0)
    Store(path).add(new, measurement())
    assert Store(path).experiences() == (new, old)


def test_looking_does_not_make_a_store(tmp_path: Path) -> None:
    Store(tmp_path / "store.sqlite").experiences()
    assert not (tmp_path / "store.sqlite").exists()


def test_a_damaged_store_is_named(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(AppError, match=r"store\.sqlite cannot be used"):
        Store(path).experiences()
    assert path.read_bytes().startswith(b"not a database")


def taken(second: int) -> Measurement:
    one = measurement()
    when = f"2026-11-30T00:00:{second:02}+00:00"
    return replace(one, conditions=replace(one.conditions, when=when))


def test_runs_of_the_bench_are_listed_and_read_back(tmp_path: Path) -> None:
    store = Store(tmp_path / "deep" / "store.sqlite")
    assert store.runs() == ()
    first = store.keep_bench([taken(1), taken(2)], model_name="m", label="before")
    store.add(Experience("m", "q4_0", SETUP, 100.0, 90.0), taken(3))
    second = store.keep_bench([taken(4)])
    assert [(run.name, run.kind) for run in store.runs()] == [
        (str(second), "bench"),
        ("up-1", "up"),
        (str(first), "bench"),
    ]
    assert store.runs()[-1].label == "before"
    assert store.runs()[-1].model_name == "m"
    assert store.run(str(first)) == (taken(1), taken(2))
    assert store.run("up-1") == (taken(3),)
    with pytest.raises(ValueError, match="at least one"):
        store.keep_bench([])


def test_an_attribution_is_kept_beside_the_runs(tmp_path: Path) -> None:
    store = Store(tmp_path / "store.sqlite")
    when = "2026-11-30T00:00:09+00:00"
    found = Attribution(when, "http://x", "m", "0", 0.1, 0.09, 0.2, None, (), (), Verdict())
    store.keep_bench([taken(1)])
    assert store.keep_attribution(found, label="after") == 1
    assert [(run.name, run.label) for run in store.runs()] == [("explain-1", "after"), ("1", None)]
    assert store.attribution("explain-1") == found
    for name, read in (("1", store.attribution), ("explain-1", store.run)):
        with pytest.raises(AppError, match="has no run"):
            read(name)


def test_the_store_forgets_the_oldest_and_reuses_no_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "store.sqlite")
    monkeypatch.setattr(store_module, "RUNS_KEPT", 2)
    assert [store.keep_bench([taken(second)]) for second in (1, 2, 3)] == [1, 2, 3]
    assert [run.name for run in store.runs()] == ["3", "2"]
    monkeypatch.setattr(store_module, "RUNS_KEPT_BYTES", 10)
    assert store.keep_bench([taken(4)]) == 4  # larger than what is kept, and still there
    assert [run.name for run in store.runs()] == ["4"]


@pytest.mark.parametrize("name", ["", "7", "up-7", "-1", "1; DROP TABLE bench_run", "9" * 40])
def test_a_run_that_is_not_there_is_named(tmp_path: Path, name: str) -> None:
    store = Store(tmp_path / "store.sqlite")
    for _ in range(2):  # without a store and with one
        with pytest.raises(AppError) as missing:
            store.run(name)
        assert missing.value.exit_code == 2
        store.keep_bench([measurement()])


@pytest.mark.parametrize("document", ["", "{", "[1]", '[{"scenario": "standard"}]', "[" * 9000])
def test_a_run_in_another_form_is_an_error_with_its_name(tmp_path: Path, document: str) -> None:
    store = Store(tmp_path / "store.sqlite")
    store.keep_bench([measurement()])
    with closing(sqlite3.connect(store.path)) as connection, connection:
        connection.execute("UPDATE bench_run SET document = ?", (document,))
    assert len(store.runs()) == 1
    with pytest.raises(AppError, match="run 1 in"):
        store.run("1")
