"""The fleet's token: who may read it, what is made from it."""

from pathlib import Path

import pytest

from workhorse.errors import AppError
from workhorse.fleet.secret import new_token, read_token, replica_key, write_token


def test_a_token_comes_back_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    token, path = new_token(), tmp_path / "deep" / "token"
    write_token(path, token)
    assert read_token(path) == token
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert list(path.parent.iterdir()) == [path]


def test_the_key_of_replicas_is_the_same_everywhere_and_tells_nothing_of_the_token() -> None:
    token = new_token()
    assert replica_key(token) == replica_key(token) != replica_key(new_token())
    assert token not in replica_key(token)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o620, 0o604])
def test_a_token_that_others_can_reach_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "token"
    path.write_text(new_token())
    path.chmod(mode)
    with pytest.raises(AppError) as told:
        read_token(path)
    assert f"{mode:o}" in told.value.what.en
    assert f"chmod 600 {path}" in told.value.next_step.en


@pytest.mark.parametrize("content", [b"", b"short", b"a" * 600, b"two words " * 5, b"\xff" * 64])
def test_what_is_no_token_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(AppError, match="holds no token"):
        read_token(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(AppError, match="cannot be read") as told:
        read_token(tmp_path / "none")
    assert str(tmp_path / "none") in told.value.what.zh
