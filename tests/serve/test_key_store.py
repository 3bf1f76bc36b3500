"""Keys that survive, and what a broken file says."""

import sqlite3
import stat
from pathlib import Path

import pytest

from workhorse.errors import AppError
from workhorse.serve.key_store import KeyStore
from workhorse.serve.keys import Key

NOW_S = 1_800_000_000.0
WHOLE = Key("ann", 60, 90_000, 4, ("small", "large model"), NOW_S + 60, "batch")


@pytest.fixture
def store(tmp_path: Path) -> KeyStore:
    return KeyStore(tmp_path / "new" / "service.sqlite")


def test_without_a_file_there_are_no_keys(store: KeyStore) -> None:
    assert store.kept() == ()
    assert not store.ring()
    assert not store.path.exists(), "looking leaves nothing behind"


@pytest.mark.parametrize("key", [Key("bob"), WHOLE])
def test_a_key_comes_back_as_it_was(store: KeyStore, key: Key) -> None:
    secret = store.add(key, NOW_S)
    assert store.ring().judge(secret, NOW_S) == key


def test_no_secret_is_in_the_file(store: KeyStore) -> None:
    hidden = store.add(Key("bob"), NOW_S).split("-", 2)[2]  # it may hold further dashes
    assert len(hidden) > 20
    files = [path.read_bytes() for path in store.path.parent.iterdir()]
    assert not any(hidden.encode() in data for data in files)


def test_only_its_owner_may_read_the_file(store: KeyStore) -> None:
    store.add(Key("bob"), NOW_S)
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600


def test_a_name_has_one_key_in_force(store: KeyStore) -> None:
    old = store.add(Key("bob"), NOW_S)
    with pytest.raises(AppError, match=r"bob has a key already.*keys revoke bob"):
        store.add(Key("bob", rpm=1), NOW_S)
    store.revoke("bob", NOW_S)
    new = store.add(Key("bob", rpm=1), NOW_S + 1)
    ring = store.ring()
    assert ring.judge(old, NOW_S) == "revoked"
    assert ring.judge(new, NOW_S) == Key("bob", rpm=1)


def test_what_is_not_there_cannot_be_revoked(store: KeyStore) -> None:
    store.add(Key("bob"), NOW_S)
    store.revoke("bob", NOW_S)
    for name in ("bob", "ann", "' OR 1=1 --"):
        with pytest.raises(AppError, match="No key in force"):
            store.revoke(name, NOW_S)


def test_forgotten_keys_are_not_even_revoked(store: KeyStore) -> None:
    secret = store.add(Key("bob"), NOW_S)
    store.add(Key("ann"), NOW_S)
    assert store.forget_all() == 2
    assert not store.ring()
    assert store.ring().judge(secret, NOW_S) == "unknown"


@pytest.mark.parametrize("what", ["garbage", "another table", "a folder"])
def test_a_file_that_is_none_of_ours(store: KeyStore, what: str) -> None:
    store.path.parent.mkdir()
    if what == "a folder":
        store.path.mkdir()
    elif what == "garbage":
        store.path.write_bytes(b"garbage" * 1000)
    else:
        with sqlite3.connect(store.path) as connection:
            connection.execute("CREATE TABLE key (name TEXT)")
        connection.close()
    with pytest.raises(AppError, match="cannot be used"):
        store.kept()
