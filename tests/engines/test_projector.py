"""Which projector a model gets: the one that is named, the one beside it, none; and bad ones."""

from dataclasses import replace
from pathlib import Path

import pytest
from tiny_checkpoint import write_gguf
from tiny_projector import write_projector

import builders
from workhorse.cli import build_parser
from workhorse.cli.service import up_command
from workhorse.errors import AppError
from workhorse.plan.planner import make_plan
from workhorse.plan.wish import Wish
from workhorse.records import EngineBuild, Model
from workhorse.rehearse.job import plan_for
from workhorse.rehearse.twin import plan_twins
from workhorse.up.engine import Loaded, loaded_by
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
    assert seen.unused is not None
    assert "mmproj-other-F16.gguf" in seen.unused.en
    plan = make_plan(builders.machine(), model, BUILD, Wish())
    assert [f.code for f in seen.noted(plan).verdict.findings] == ["model.projector_unused"]
    assert taken(with_projector(model, BUILD, str(other))) == other.name


def test_one_that_nobody_asked_for_never_stops_a_model(model: Model) -> None:
    beside = Path(model.path).with_name("mmproj.gguf")
    beside.write_bytes(b"no such thing")

    def unused(build: EngineBuild = BUILD) -> str:
        seen = with_projector(model, build, None)
        return seen.unused.en if seen.unused else ""

    assert "mmproj.gguf" in unused()
    write(model, "mmproj.gguf", width=48)
    assert "made for another model" in unused()
    write(model, "mmproj.gguf")
    assert "takes no projector" in unused(builders.EMBEDDED)


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


def test_another_projector_is_another_engine_to_a_reload(model: Model) -> None:
    file = write(model, "mmproj-some.gguf")

    def loads() -> Loaded:
        seeing = with_projector(model, BUILD, None).model
        return loaded_by(make_plan(builders.machine(), seeing, BUILD, Wish()))

    before = loads()
    assert loads() == before
    file.write_bytes(file.read_bytes() + bytes(32))
    assert loads() != before
    file.unlink()
    assert "--mmproj" in before.launch.argv
    assert "--mmproj" not in loads().launch.argv


def test_a_twin_is_rehearsed_without_it(model: Model, tmp_path: Path) -> None:
    write(model, "mmproj-some.gguf")
    plan = make_plan(builders.machine(), with_projector(model, BUILD, None).model, BUILD, Wish())
    assert plan.projector is not None
    twin = plan_twins(model, 1 << 20, None).twins[0]
    assert plan_for(plan, twin, tmp_path / "twin.gguf").projector is None


def test_the_installed_service_is_told_by_its_whole_path(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(model, "mmproj-some.gguf")
    monkeypatch.chdir(file.parent)
    parser = build_parser("en", only="service")
    for said, expected in (("mmproj-some.gguf", str(file)), ("none", "none")):
        args = parser.parse_args(["service", "install", "--mmproj", said])
        words = up_command(args, file.parent)
        assert words[words.index("--mmproj") + 1] == expected
