"""What is kept of measurements, and a store that is broken."""

from pathlib import Path

import pytest

from workhorse.errors import AppError
from workhorse.plan.speed import Experience, Setup
from workhorse.records import Conditions, Measurement, Run
from workhorse.store import LEARN_FROM_LATEST, Store

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


def test_looking_does_not_make_a_store(tmp_path: Path) -> None:
    Store(tmp_path / "store.sqlite").experiences()
    assert not (tmp_path / "store.sqlite").exists()


def test_a_damaged_store_is_named(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(AppError, match=r"store\.sqlite cannot be used"):
        Store(path).experiences()
    assert path.read_bytes().startswith(b"not a database")
