"""A build's record: written and read the same, and nothing in a foreign one leads astray."""

from dataclasses import replace
from pathlib import Path

import pytest
from builds_made import made_build
from hypothesis import given
from hypothesis import strategies as st

from workhorse.codec import to_json
from workhorse.engines.supply.manifest import (
    BuiltFile,
    check_name,
    is_inside,
    parse_manifest,
    read_manifest,
)
from workhorse.errors import EXIT_USAGE, AppError


def test_what_is_written_is_read(tmp_path: Path) -> None:
    manifest = made_build(tmp_path / "b", sass=("sm_70",), ptx=("compute_70",))
    assert read_manifest(tmp_path / "b") == manifest
    assert manifest.n_bytes == sum(
        path.stat().st_size
        for path in (tmp_path / "b").rglob("*")
        if path.is_file() and path.name != "manifest.json"
    )


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "../x", "bin/../../x", "", ".", "a//b", "a/", "./a", "a\\b", "a\0b", ".."],
)
def test_a_path_that_leads_out(tmp_path: Path, path: str) -> None:
    manifest = made_build(tmp_path / "b")
    assert not is_inside(path)
    evil = replace(manifest, files=(*manifest.files, BuiltFile(path, "0" * 64, 1)))
    with pytest.raises(AppError, match="wrongly"):
        parse_manifest(to_json(evil).encode(), "it")


def test_lists_that_contradict_themselves(tmp_path: Path) -> None:
    manifest = made_build(tmp_path / "b")
    for wrong in (
        replace(manifest, files=(*manifest.files, manifest.files[0])),
        replace(manifest, program="bin/other"),
        replace(manifest, files=(*manifest.files, BuiltFile("manifest.json", "0" * 64, 1))),
        replace(manifest, files=(*manifest.files, BuiltFile("proof.json", "0" * 64, 1))),
    ):
        with pytest.raises(AppError, match="wrongly"):
            parse_manifest(to_json(wrong).encode(), "it")


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "a/b", "a b", "x" * 65, "ü", "-x", "a\n"]
)
def test_a_name_that_no_build_can_have(name: str) -> None:
    with pytest.raises(AppError) as refused:
        check_name(name)
    assert refused.value.exit_code == EXIT_USAGE


def test_a_folder_without_a_record(tmp_path: Path) -> None:
    with pytest.raises(AppError, match=r"has no manifest\.json"):
        read_manifest(tmp_path)


@given(st.binary(max_size=300))
def test_any_bytes(document: bytes) -> None:
    with pytest.raises(AppError):
        parse_manifest(document, "it")


@given(st.data())
def test_a_record_with_one_byte_changed(data: st.DataObject) -> None:
    document = bytearray(DOCUMENT)
    at = data.draw(st.integers(0, len(document) - 1))
    document[at] = data.draw(st.integers(0, 255))
    try:
        read = parse_manifest(bytes(document), "it")
    except AppError:
        return
    assert all(is_inside(file.path) for file in read.files)
    assert check_name(read.name)


DOCUMENT = b"""{"name":"made","engine":"llama.cpp","source":{"package":"p","version":"1",
"sha256":"0","engine_version":"0.5.0","commit":"0c1e"},"files":[{"path":"bin/llama-server","sha256":"00",
"n_bytes":3}],"program":"bin/llama-server","architecture":"x86_64","cpu_variant":"x64",
"needs_flags":["avx2"],"sass":[],"ptx":[],"compiler":"c","options":[],"openmp":false,"glibc":"2.17",
"licences":[],"built_at":"2026-11-30T12:00:00+00:00","minutes":null,"form":1}"""


def test_the_record_that_is_changed_above_is_a_good_one() -> None:
    assert parse_manifest(DOCUMENT, "it").needs_flags == ("avx2",)


def test_a_record_of_another_form() -> None:
    with pytest.raises(AppError, match="is not a Manifest"):
        parse_manifest(DOCUMENT.replace(b'"form":1', b'"form":2'), "it")
