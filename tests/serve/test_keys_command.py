"""`workhorse keys` as a user types it."""

import json
from pathlib import Path
from typing import Any

import pytest

from workhorse.cli import main
from workhorse.config import places
from workhorse.errors import EXIT_GOOD, EXIT_NO, EXIT_USAGE
from workhorse.serve.key_store import KeyStore
from workhorse.serve.keys import Key

MANY_S = 4_000_000_000.0  # in the year 2096


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKHORSE_HOME", str(tmp_path))


def keys(*words: str) -> int:
    return main(["keys", *words])


def listed(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert keys("list", "--json") == EXIT_GOOD
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


def test_a_key_is_shown_once_and_opens(capsys: pytest.CaptureFixture[str]) -> None:
    options = "--rpm 60 --tpm 9000 --concurrency 2 --expires 2w --priority batch --models a b"
    assert keys("add", "ann", *options.split()) == EXIT_GOOD
    said = capsys.readouterr()
    secret = said.out.strip()
    assert "only time" in said.err
    opened = KeyStore(places().service).ring().judge(secret, 0)
    assert isinstance(opened, Key)
    assert (opened.name, opened.rpm, opened.tpm, opened.concurrency) == ("ann", 60, 9000, 2)
    assert (opened.models, opened.priority) == (("a", "b"), "batch")
    assert keys("list") == EXIT_GOOD
    shown = capsys.readouterr().out
    assert "ann" in shown
    assert "60 rpm" in shown
    assert secret not in shown + json.dumps(listed(capsys))


def test_a_revoked_key_is_listed_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    keys("add", "ann")
    assert keys("revoke", "ann") == EXIT_GOOD
    (one,) = listed(capsys)
    assert (one["name"], one["state"]) == ("ann", "revoked")
    assert keys("revoke", "ann") == EXIT_NO
    assert "No key in force" in capsys.readouterr().err


def test_all_keys_can_be_deleted(capsys: pytest.CaptureFixture[str]) -> None:
    keys("add", "ann")
    keys("add", "bob")
    assert keys("revoke", "--all") == EXIT_GOOD
    assert listed(capsys) == []


@pytest.mark.parametrize(
    "words",
    [
        "add",
        "revoke",
        "list ann",
        "list --rpm 3",
        "revoke ann --expires 3d",
        "add ann --all",
        "revoke ann --all",
    ],
)
def test_what_does_not_belong_together_is_refused(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert keys(*words.split()) == EXIT_USAGE
    assert "--help" in capsys.readouterr().err
    assert listed(capsys) == []


@pytest.mark.parametrize(
    "words",
    [
        ("add", "two words"),
        ("add", ""),
        ("add", "a" * 65),
        ("add", "ann", "--expires", "0h"),
        ("add", "ann", "--expires", "2020-01-01"),
        ("add", "ann", "--expires", "soon"),
        ("add", "ann", "--expires", "99999w9"),
        ("add", "ann", "--rpm", "0"),
        ("add", "ann", "--priority", "first"),
    ],
)
def test_values_that_make_no_sense(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        keys(*words)
    assert refused.value.code == EXIT_USAGE
    assert listed(capsys) == []


def test_a_last_day_is_good_to_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    assert keys("add", "ann", "--expires", "2096-10-01") == EXIT_GOOD
    (one,) = listed(capsys)
    assert abs(one["expires_unix_s"] - MANY_S) < 3 * 86400
    assert keys("list") == EXIT_GOOD
    assert "2096-10-02 00:00" in capsys.readouterr().out
