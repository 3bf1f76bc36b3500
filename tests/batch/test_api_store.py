"""Files and batches on disk: pages, limits, upkeep."""

from pathlib import Path
from typing import Any

import pytest

from workhorse.batch.api_record import Batch, StoredFile, enter
from workhorse.batch.api_store import LEAST_BYTES, ApiStore, new_id
from workhorse.errors import AppError


def added(store: ApiStore, now_unix_s: float, **changed: Any) -> StoredFile:
    told: dict[str, Any] = {
        "id": new_id("file-", now_unix_s),
        "owner": "ann",
        "name": "a.jsonl",
        "purpose": "batch",
        "size_bytes": 3,
        "created_unix_s": now_unix_s,
        "expires_unix_s": now_unix_s + 100.0,
    }
    file = StoredFile(**(told | changed))
    store.path(file.id).write_bytes(b"abc")
    store.add_file(file)
    return file


def batch(now_unix_s: float, **changed: Any) -> Batch:
    return Batch(
        id=new_id("batch_", now_unix_s),
        owner="ann",
        endpoint="/v1/completions",
        input_file_id="f",
        created_unix_s=now_unix_s,
        **changed,
    )


def test_pages_go_on_where_the_last_one_ended_also_when_that_is_gone(tmp_path: Path) -> None:
    store = ApiStore(tmp_path)
    files = [added(store, float(n)) for n in range(5)]
    added(store, 9.0, owner="bob")
    seen, after = [], None
    while True:
        page, more = store.files("ann", after=after, limit=2)
        seen += page
        for one in page:
            store.drop_file(one.id)
        if not more:
            break
        after = page[-1].id
    assert seen == files[::-1]
    assert [one.owner for one in store.files(None, limit=9)[0]] == ["bob"]


def test_order_and_purpose(tmp_path: Path) -> None:
    store = ApiStore(tmp_path)
    first = added(store, 1.0)
    second = added(store, 2.0, purpose="batch_output")
    assert store.files(None, limit=9, oldest_first=True)[0] == [first, second]
    assert store.files(None, limit=9, purpose="batch_output")[0] == [second]
    assert store.files(None, limit=9, oldest_first=True, after=first.id) == ([second], False)


def test_what_files_count_as(tmp_path: Path) -> None:
    store = ApiStore(tmp_path)
    added(store, 1.0, size_bytes=10 * LEAST_BYTES)
    added(store, 2.0, size_bytes=0)
    added(store, 3.0, owner="bob")
    assert store.held_bytes("ann") == (11 * LEAST_BYTES, 12 * LEAST_BYTES)


def test_what_is_old_goes(tmp_path: Path) -> None:
    store = ApiStore(tmp_path)
    old, young = added(store, 0.0), added(store, 60.0)
    running = batch(0.0)
    over = enter(batch(1.0), "failed", 5.0)
    for one in (running, over):
        store.add_batch(one, 99)
    store.sweep(120.0, keep_s=60.0)
    assert store.file(old.id) is None and not store.path(old.id).exists()
    assert store.file(young.id) == young and store.path(young.id).exists()
    assert store.batch(over.id) is None
    assert store.unfinished() == (running,)


def test_what_a_killed_service_left_goes(tmp_path: Path) -> None:
    store = ApiStore(tmp_path)
    file = added(store, 0.0)
    store.path("file-half").write_bytes(b"half")
    store.sweep_unknown()
    assert not store.path("file-half").exists()
    assert store.path(file.id).exists()


def test_nobody_else_may_look_into_the_files(tmp_path: Path) -> None:
    store = ApiStore(tmp_path / "files")
    added(store, 0.0)
    assert (tmp_path / "files" / "content").stat().st_mode & 0o777 == 0o700
    for path in (tmp_path / "files").glob("index*"):
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_change_that_fails_changes_nothing(tmp_path: Path) -> None:
    store = ApiStore(tmp_path)
    file, found = added(store, 0.0), batch(0.0)
    store.add_batch(found, 9)
    with pytest.raises(AppError):  # a file of that id is there already
        store.change(found.id, lambda one: enter(one, "completed", 1.0), [file])
    assert store.batch(found.id) == found


def test_an_owner_has_so_many_unfinished_batches_and_no_more(tmp_path: Path) -> None:
    store = ApiStore(tmp_path)
    assert store.add_batch(batch(0.0), 2) and store.add_batch(batch(1.0), 2)
    refused = batch(2.0)
    assert not store.add_batch(refused, 2)
    assert store.batch(refused.id) is None
    store.change(store.unfinished()[0].id, lambda one: enter(one, "failed", 3.0))
    assert store.add_batch(batch(4.0), 2)
