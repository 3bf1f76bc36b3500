"""Archives from anybody: nothing lands outside, nothing half, and damage is said."""

import io
import tarfile
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workhorse.engines.supply import unpack as unpacking
from workhorse.engines.supply.source import unpack_source
from workhorse.engines.supply.unpack import unpack
from workhorse.errors import AppError
from workhorse.knowledge.engine_sources import llamacpp_source

SOURCE = llamacpp_source()


def tar_of(path: Path, members: list[tarfile.TarInfo | tuple[str, bytes]]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for member in members:
            if isinstance(member, tuple):
                entry = tarfile.TarInfo(member[0])
                entry.size = len(member[1])
                archive.addfile(entry, io.BytesIO(member[1]))
            else:
                archive.addfile(member)
    return path


def link(name: str, to: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, to
    return entry


def everything(path: str) -> str:
    return path


@pytest.mark.parametrize("path", ["../evil", "/evil", "a/../../evil", "a/./b", "..", "a\\b"])
@pytest.mark.parametrize("kind", ["tar.gz", "zip"])
def test_a_path_that_leads_out(tmp_path: Path, path: str, kind: str) -> None:
    archive = tmp_path / f"a.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(archive, "w") as zipped:
            zipped.writestr(path, b"x")
    else:
        tar_of(archive, [(path, b"x")])
    with pytest.raises(AppError, match="leads out"):
        unpack(archive, tmp_path / "out" / "deep", everything)
    assert not list(tmp_path.rglob("evil"))


def test_links_and_devices_are_left_out(tmp_path: Path) -> None:
    archive = tar_of(
        tmp_path / "a.tar.gz",
        [
            link("shadow", "/etc/shadow"),
            link("hard", "/etc/passwd", tarfile.LNKTYPE),
            link("device", "", tarfile.CHRTYPE),
            link("up", ".."),
            ("plain", b"x"),
        ],
    )
    assert unpack(archive, tmp_path / "out", everything) == 1
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["plain"]


def test_a_file_under_a_link_lands_in_a_folder(tmp_path: Path) -> None:
    """A link is not made, so a path through it stays inside."""
    archive = tar_of(tmp_path / "a.tar.gz", [link("up", ".."), ("up/evil", b"x")])
    unpack(archive, tmp_path / "out", everything)
    assert (tmp_path / "out" / "up" / "evil").is_file()
    assert not (tmp_path / "evil").exists()


def test_a_zip_with_a_link(tmp_path: Path) -> None:
    entry = zipfile.ZipInfo("link")
    entry.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as zipped:
        zipped.writestr(entry, "/etc/passwd")
    assert unpack(tmp_path / "a.zip", tmp_path / "out", everything) == 0


def test_a_name_that_comes_twice(tmp_path: Path) -> None:
    archive = tar_of(tmp_path / "a.tar.gz", [("a", b"x"), ("a", b"y")])
    with pytest.raises(AppError, match="twice"):
        unpack(archive, tmp_path / "out", everything)


def test_an_archive_that_is_far_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tar_of(tmp_path / "a.tar.gz", [(f"f{n}", b"x" * 100) for n in range(20)])
    monkeypatch.setattr(unpacking, "BYTES_MAX", 1000)
    with pytest.raises(AppError, match="too large"):
        unpack(archive, tmp_path / "out", everything)
    monkeypatch.setattr(unpacking, "BYTES_MAX", 10_000)
    monkeypatch.setattr(unpacking, "FILES_MAX", 5)
    with pytest.raises(AppError, match="too large"):
        unpack(archive, tmp_path / "out2", everything)


GOOD = io.BytesIO()
with tarfile.open(fileobj=GOOD, mode="w:gz") as made:
    for number in range(4):
        info = tarfile.TarInfo(f"p/f{number}")
        info.size = 1000
        made.addfile(info, io.BytesIO(bytes(range(250)) * 4))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_a_damaged_archive_is_refused_or_read(tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(GOOD.getvalue())
    at = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        del content[at:]
    else:
        content[at] ^= data.draw(st.integers(1, 255))
    archive = tmp_path / "a.tar.gz"
    archive.write_bytes(content)
    out = tmp_path / f"out{len(list(tmp_path.iterdir()))}"
    with suppress(AppError):
        unpack(archive, out, everything)
    assert all(path.is_relative_to(out) for path in out.rglob("*"))


def test_only_the_engines_tree_is_taken(tmp_path: Path) -> None:
    archive = tar_of(
        tmp_path / "p-1.tar.gz",
        [
            ("p-1/setup.py", b"x"),
            ("p-1/vendor/llama.cpp/CMakeLists.txt", b"cmake"),
            ("p-1/vendor/llama.cpp/src/a.cpp", b"a"),
            ("p-1/vendor/llama.cpp2/b.cpp", b"b"),
            ("../../vendor/llama.cpp/c.cpp", b"c"),
        ],
    )
    tree = tmp_path / "tree"
    unpack_source(archive, SOURCE, tree)
    found = sorted(path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file())
    assert found == ["CMakeLists.txt", "src/a.cpp"]


def test_a_source_archive_without_the_engine(tmp_path: Path) -> None:
    archive = tar_of(tmp_path / "p-1.tar.gz", [("p-1/setup.py", b"x")])
    with pytest.raises(AppError, match="has no engine's source"):
        unpack_source(archive, SOURCE, tmp_path / "tree")


def test_a_tree_that_leads_out(tmp_path: Path) -> None:
    archive = tar_of(tmp_path / "p.tar.gz", [("p/vendor/llama.cpp/../../../evil", b"x")])
    with pytest.raises(AppError, match="leads out"):
        unpack_source(archive, SOURCE, tmp_path / "tree")
