"""A bundle as a tar or in pieces: written, checked while packed, refused when it means harm."""

import io
import json
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from small_bundles import said_by

from workhorse.bundle.archive import compare_tar, piece_name, unpack_tar, write_tar
from workhorse.bundle.carried.manifest import MANIFEST, read_manifest
from workhorse.cli import main
from workhorse.errors import AppError

Tar = tarfile.TarFile


def quiet(_done: int, _total: int | None) -> None:
    pass


def pack(bundle: Path, target: Path, piece_bytes: int | None) -> list[Path]:
    """A bundle's folder as a tar, straight from its files."""
    known = read_manifest(bundle)
    paths = {file.path: bundle / file.path for file in known.files}
    return write_tar(paths, lambda files: replace(known, files=files), target, piece_bytes, quiet)[
        0
    ]


@pytest.fixture(scope="module")
def packed(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small bundle as a tar."""
    target = tmp_path_factory.mktemp("tar") / "small.tar"
    assert pack(bundle, target, None) == [target]
    return target


def test_a_tar_holds_the_bundle_and_nothing_of_who_made_it(packed: Path, bundle: Path) -> None:
    manifest, difference = compare_tar(packed, quiet)
    assert not difference
    assert manifest == read_manifest(bundle)
    with tarfile.open(packed) as tar:
        members = tar.getmembers()
    assert members[-1].name == f"small/{MANIFEST}"
    assert {(m.uid, m.gid, m.uname, m.gname, m.mtime) for m in members} == {(0, 0, "", "", 0)}
    assert [path.name for path in packed.parent.iterdir()] == ["small.tar"]


@pytest.mark.parametrize("piece_bytes", [100_000, 1_000_001])
def test_pieces_are_checked_and_put_together(
    packed: Path, bundle: Path, tmp_path: Path, piece_bytes: int
) -> None:
    paths = pack(bundle, tmp_path / "b.tar", piece_bytes)
    assert paths == [piece_name(tmp_path / "b.tar", n + 1) for n in range(len(paths))]
    assert {path.stat().st_size for path in paths[:-1]} == {piece_bytes}
    assert not compare_tar(paths[0], quiet)[1]
    whole = b"".join(path.read_bytes() for path in paths)
    (tmp_path / "whole.tar").write_bytes(whole)
    assert not compare_tar(tmp_path / "whole.tar", quiet)[1]
    paths[1].unlink()
    with pytest.raises(AppError, match=f"The piece {paths[1].name} is missing"):
        compare_tar(paths[0], quiet)


def test_a_tar_is_installed(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prefix = tmp_path / "p"
    assert main(["bundle", "install", str(packed), "--prefix", str(prefix), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "command": f"{prefix}/bin/workhorse",
        "models": [f"{prefix}/models/model.gguf"],
        "engines": [],
    }
    assert said_by(prefix) == "workhorse 1"
    assert sorted(path.name for path in prefix.iterdir()) == ["app", "bin", "models"]
    assert main(["bundle", "verify", str(packed), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"missing": [], "extra": [], "changed": []}


def test_a_tar_that_was_cut_off_is_told_wherever_that_was(packed: Path, tmp_path: Path) -> None:
    content = packed.read_bytes()
    with tarfile.open(packed) as tar:
        starts = [member.offset for member in tar]
    cut = tmp_path / "cut.tar"
    for size in (0, 1, 512, 700, starts[1], starts[-1], starts[-1] + 600, len(content) // 2):
        cut.write_bytes(content[:size])
        assert main(["bundle", "verify", str(cut)]) == 3
        assert main(["bundle", "install", str(cut), "--prefix", str(tmp_path / "p")]) in (2, 3)
    assert list((tmp_path / "p").iterdir()) == []


def test_a_changed_byte_is_found(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with tarfile.open(packed) as tar:
        at = tar.getmember("small/models/model.gguf").offset_data
    changed = tmp_path / "changed.tar"
    content = bytearray(packed.read_bytes())
    content[at] ^= 1
    changed.write_bytes(content)
    assert main(["bundle", "verify", str(changed)]) == 3
    assert capsys.readouterr().out == "changed: models/model.gguf\n"
    assert main(["bundle", "install", str(changed), "--prefix", str(tmp_path / "p")]) == 3
    assert list((tmp_path / "p").iterdir()) == []


def add(tar: Tar, name: str, **fields: object) -> None:
    member = tarfile.TarInfo(name)
    for key, value in fields.items():
        setattr(member, key, value)
    tar.addfile(member, io.BytesIO(b"x" * member.size))


STRANGERS: dict[str, Callable[[Tar], None]] = {
    "a path that climbs": lambda tar: add(tar, "small/../../x", size=1),
    "a path from the root": lambda tar: add(tar, "/etc/x", size=1),
    "no folder": lambda tar: add(tar, "x", size=1),
    "a link": lambda tar: add(tar, "small/l", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
    "a hard link": lambda tar: add(tar, "small/l", type=tarfile.LNKTYPE, linkname="/etc/passwd"),
    "a device": lambda tar: add(tar, "small/d", type=tarfile.CHRTYPE),
    "a pipe": lambda tar: add(tar, "small/p", type=tarfile.FIFOTYPE),
    "a name twice": lambda tar: add(tar, "small/models/model.gguf", size=1),
}


@pytest.mark.parametrize("what", STRANGERS)
def test_what_does_not_belong_is_neither_read_nor_unpacked(
    packed: Path, tmp_path: Path, what: str
) -> None:
    hostile = tmp_path / "hostile.tar"
    (tmp_path / "in").mkdir()
    shutil.copy(packed, hostile)
    with tarfile.open(hostile, "a") as tar:
        STRANGERS[what](tar)
    with pytest.raises(AppError, match="does not belong"):
        compare_tar(hostile, quiet)
    with pytest.raises(AppError, match="does not belong"):
        unpack_tar(hostile, tmp_path / "in" / "b", quiet)
    assert {path.name for path in tmp_path.iterdir()} == {"hostile.tar", "in"}


def test_an_extra_file_is_told(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = tmp_path / "more.tar"
    shutil.copy(packed, more)
    with tarfile.open(more, "a") as tar:
        add(tar, "small/notes.txt", size=3)
    assert main(["bundle", "verify", str(more)]) == 3
    assert capsys.readouterr().out == "extra: notes.txt\n"


def test_too_many_pieces_leave_nothing(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workhorse.bundle.archive.PIECES_MAX", 3)
    with pytest.raises(AppError, match="More than 3 pieces"):
        pack(bundle, tmp_path / "b.tar", 1024)
    assert list(tmp_path.iterdir()) == []
