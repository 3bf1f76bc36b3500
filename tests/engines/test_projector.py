"""Which projector a model gets: the one that is named, the one beside it, none; and bad ones."""

from dataclasses import replace
from pathlib import Path

import pytest
from tiny_checkpoint import write_gguf
from tiny_projector import write_projector

import builders
from workhorse.errors import AppError
from workhorse.records import Model
from workhorse.up.projector import NONE, Seen, with_projector

BUILD = replace(builders.EMBEDDED, knows=(*builders.EMBEDDED.knows, "--mmproj"))


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return replace(builders.model(embedding=256), path=str(tmp_path / "some.gguf"))


def write(model: Model, name: str, width: int = 256) -> Path:
    return write_projector(Path(model.path).with_name(name), width)


def taken(seen: Seen) -> str | None:
    found = seen.model.projector
    return None if found is None else Path(found.path).name


def test_the_only_one_beside_the_model_is_taken(model: Model) -> None:
    assert with_projector(model, BUILD, None) == Seen(model)
    write(model, "mmproj-some.gguf")
    assert taken(with_projector(model, BUILD, None)) == "mmproj-some.gguf"
    assert with_projector(model, BUILD, NONE) == Seen(model)
    assert with_projector(replace(model, pooling=True), BUILD, None).model.projector is None
    assert (
        with_projector(replace(model, path="hf:a/b:some.gguf"), BUILD, None).model.projector is None
    )


def test_of_several_types_f16_is_taken_and_others_are_told_of(model: Model) -> None:
    for kind in ("BF16", "F32", "F16"):
        write(model, f"mmproj-some-{kind}.gguf")
    assert taken(with_projector(model, BUILD, None)) == "mmproj-some-F16.gguf"
    other = write(model, "mmproj-other-F16.gguf")
    seen = with_projector(model, BUILD, None)
    assert seen.model == model
    (note,) = seen.rejected
    assert "mmproj-other-F16.gguf" in note.because.en
    assert taken(with_projector(model, BUILD, str(other))) == other.name


def test_one_that_nobody_asked_for_never_stops_a_model(model: Model) -> None:
    beside = Path(model.path).with_name("mmproj.gguf")
    beside.write_bytes(b"no such thing")
    assert [r.option for r in with_projector(model, BUILD, None).rejected] == ["mmproj.gguf"]
    write(model, "mmproj.gguf", width=48)
    (note,) = with_projector(model, BUILD, None).rejected
    assert "made for another model" in note.because.en
    write(model, "mmproj.gguf")
    (note,) = with_projector(model, builders.EMBEDDED, None).rejected
    assert "--mmproj" in note.because.en


def test_what_is_asked_for_and_cannot_be_is_one_clear_error(model: Model, tmp_path: Path) -> None:
    with pytest.raises(AppError, match="No such file"):
        with_projector(model, BUILD, str(tmp_path / "gone.gguf"))
    text = write_gguf(tmp_path / "text.gguf")
    with pytest.raises(AppError, match="not the image or audio part"):
        with_projector(model, BUILD, str(text))
    narrow = write(model, "mmproj-narrow.gguf", width=48)
    with pytest.raises(AppError, match="made for another model"):
        with_projector(model, BUILD, str(narrow))
    good = write(model, "mmproj-good.gguf")
    with pytest.raises(AppError, match="takes no projector"):
        with_projector(model, builders.EMBEDDED, str(good))
    with pytest.raises(AppError, match="takes no projector"):
        with_projector(model, replace(BUILD, engine="vllm"), str(good))
