"""Builds from elsewhere: a folder, an archive, an address; what does not match stays out."""

import functools
import hashlib
import http.server
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from builds_made import ANSWERS, made_build, packed

from workhorse.engines.supply.builds import Build, Builds
from workhorse.engines.supply.install import install_build, is_address
from workhorse.engines.supply.manifest import Manifest, read_manifest, write_manifest
from workhorse.errors import EXIT_USAGE, AppError
from workhorse.models.fetch import no_progress
from workhorse.text import same


@pytest.fixture
def builds(tmp_path: Path) -> Builds:
    return Builds(tmp_path / "engines")


@pytest.fixture
def made(tmp_path: Path) -> Path:
    made_build(tmp_path / "made")
    return tmp_path / "made"


def install(builds: Builds, origin: str | Path, **options: str) -> Build:
    return install_build(
        str(origin),
        builds,
        accepts,
        progress=no_progress,
        **options,  # type: ignore[arg-type]
    )


def accepts(folder: Path, manifest: Manifest) -> None:
    assert (folder / manifest.program).is_file()


def nothing_left(builds: Builds) -> bool:
    return {path.name for path in builds.folder.iterdir()} <= {".lock"}


@pytest.mark.parametrize("kind", ["folder", "made.tar.gz", "made.zip"])
def test_what_was_made_elsewhere(builds: Builds, made: Path, tmp_path: Path, kind: str) -> None:
    origin = made if kind == "folder" else packed(made, tmp_path / kind)
    build = install(builds, origin)
    assert build.manifest == read_manifest(made)
    assert build.program.read_text() == ANSWERS
    assert build.program.stat().st_mode & 0o111
    assert builds.names() == ["made"]


def test_under_another_name(builds: Builds, made: Path) -> None:
    install(builds, made)
    assert install(builds, made, name="second").manifest.name == "second"
    assert builds.names() == ["made", "second"]
    with pytest.raises(AppError, match="already"):
        install(builds, made)
    with pytest.raises(AppError, match="cannot be called"):
        install(builds, made, name="../x")


@pytest.mark.parametrize("kind", ["folder", "made.tar.gz"])
def test_files_that_do_not_match(builds: Builds, made: Path, tmp_path: Path, kind: str) -> None:
    program = made / "bin" / "llama-server"
    program.write_text(program.read_text().replace("4711", "4712"))
    with pytest.raises(AppError, match="bin/llama-server"):
        install(builds, made if kind == "folder" else packed(made, tmp_path / kind))
    assert nothing_left(builds)


def test_a_record_that_says_something_else_than_the_files(builds: Builds, made: Path) -> None:
    write_manifest(made, replace(read_manifest(made), sass=("sm_70",)))
    with pytest.raises(AppError, match="something else than the files hold"):
        install(builds, made)
    assert nothing_left(builds)


def test_what_the_record_does_not_list_is_not_taken(
    builds: Builds, made: Path, tmp_path: Path
) -> None:
    (made / "proof.json").write_text("{}")
    (made / "bin" / "extra").write_text("x")
    for number, origin in enumerate((made, packed(made, tmp_path / "a.tar.gz"))):
        build = install(builds, origin, name=f"b{number}")
        names = {path.name for path in build.folder.rglob("*") if path.is_file()}
        assert names == {"manifest.json", "llama-server", "llama.cpp.txt"}


def test_a_file_that_is_a_link_out_of_the_folder(
    builds: Builds, made: Path, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_bytes((made / "bin" / "llama-server").read_bytes())
    (made / "bin" / "llama-server").unlink()
    (made / "bin" / "llama-server").symlink_to(tmp_path / "secret")
    with pytest.raises(AppError, match="has no bin/llama-server"):
        install(builds, made)
    assert nothing_left(builds)


def test_one_that_does_not_run_leaves_the_old_one(builds: Builds, made: Path) -> None:
    install(builds, made, name="old")

    def refuses(folder: Path, manifest: Manifest) -> None:
        raise AppError(same("no answer"), same("none"))

    with pytest.raises(AppError, match="no answer"):
        install_build(str(made), builds, refuses, progress=no_progress)
    assert builds.names() == ["old"]
    assert not list(builds.folder.glob(".part-*"))


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04broken", b"\x1f\x8bbroken"])
def test_what_is_no_archive(builds: Builds, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.tar.gz").write_bytes(content)
    with pytest.raises(AppError):
        install(builds, tmp_path / "a.tar.gz")
    assert nothing_left(builds)


def test_an_archive_without_a_record(builds: Builds, made: Path, tmp_path: Path) -> None:
    (made / "manifest.json").unlink()
    with pytest.raises(AppError, match=r"has no manifest\.json"):
        install(builds, packed(made, tmp_path / "a.tar.gz"))
    with pytest.raises(AppError, match=r"has no manifest\.json"):
        install(builds, made)


def test_what_is_not_there(builds: Builds, tmp_path: Path) -> None:
    with pytest.raises(AppError, match="does not exist") as refused:
        install(builds, tmp_path / "none.tar.gz")
    assert refused.value.exit_code == EXIT_USAGE


def test_an_archive_with_the_wrong_hash(builds: Builds, made: Path, tmp_path: Path) -> None:
    archive = packed(made, tmp_path / "a.tar.gz")
    with pytest.raises(AppError, match="has the SHA-256"):
        install(builds, archive, sha256="0" * 64)
    right = hashlib.sha256(archive.read_bytes()).hexdigest()
    install(builds, archive, sha256=right.upper())
    assert builds.names() == ["made"]


@pytest.fixture
def address(tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where a server on loopback gives the archive."""
    monkeypatch.setenv("no_proxy", "*")
    served = tmp_path / "served"
    served.mkdir()
    packed(made, served / "made.tar.gz")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    wanted = functools.partial(Quiet, directory=str(served))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), wanted) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/made.tar.gz"
        server.shutdown()
        thread.join()


def test_from_an_address(builds: Builds, address: str, tmp_path: Path) -> None:
    right = hashlib.sha256((tmp_path / "served" / "made.tar.gz").read_bytes()).hexdigest()
    install(builds, address, sha256=right)
    assert builds.names() == ["made"]
    assert sorted(path.name for path in builds.folder.iterdir()) == [".lock", "made"]


def test_an_address_whose_archive_is_another_one(builds: Builds, address: str) -> None:
    with pytest.raises(AppError, match="expected 0000"):
        install(builds, address, sha256="0" * 64)
    assert builds.names() == []


def test_an_address_that_gives_nothing(builds: Builds, address: str) -> None:
    with pytest.raises(AppError, match="HTTP 404"):
        install(builds, f"{address}.none", sha256="0" * 64)
    with pytest.raises(AppError, match="needs the archive's SHA-256") as refused:
        install(builds, address)
    assert refused.value.exit_code == EXIT_USAGE


def test_a_download_that_broke_off_goes_on(builds: Builds, address: str, tmp_path: Path) -> None:
    content = (tmp_path / "served" / "made.tar.gz").read_bytes()
    part = builds.folder / ".download" / "made.tar.gz.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(content[:100])
    install(builds, address, sha256=hashlib.sha256(content).hexdigest())
    assert builds.names() == ["made"]


def test_what_is_an_address() -> None:
    assert is_address("https://a/b.tar.gz") and is_address("file:///b.tar.gz")
    assert not is_address("b.tar.gz") and not is_address("/b") and not is_address("ftp://a/b")
