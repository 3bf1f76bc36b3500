"""What the command line and the settings ask for together."""

import argparse
from pathlib import Path

import pytest

from workhorse.cli.arguments import cards
from workhorse.errors import AppError
from workhorse.plan.wish import Wish
from workhorse.settings import ModelSettings, Settings
from workhorse.up.asks import asks_of, checked
from workhorse.up.decide import Ask

ONE = ModelSettings(
    model="one.gguf", context=2048, slots=2, purpose="long", headroom_percent=10.0, engine="mine"
)
TWO = ModelSettings(model="owner/name", quant="Q8_0")


def test_each_model_of_the_settings_gets_an_engine() -> None:
    one, two = asks_of(Ask(skip_golden=True), Settings(model=(ONE, TWO)))
    assert (one.model, one.engine) == ("one.gguf", Path("mine"))
    assert one.wish == Wish(context_tokens=2048, slots=2, purpose="long", headroom=0.1)
    assert (two.model, two.quant, two.wish) == ("owner/name", "Q8_0", Wish())
    assert one.skip_golden and two.skip_golden


def test_the_command_line_goes_first() -> None:
    named = Ask(model="other.gguf")
    assert asks_of(named, Settings(model=(ONE, TWO))) == (named,)
    asked = Ask(wish=Wish(slots=7, headroom=0.5), engine=Path("asked"), quant="Q4_0")
    (one,) = asks_of(asked, Settings(model=(ONE,)))
    assert (one.wish.slots, one.wish.headroom, one.wish.context_tokens) == (7, 0.5, 2048)
    assert (one.engine, one.quant) == (Path("asked"), "Q4_0")
    assert asks_of(asked, Settings()) == (asked,)


def test_cards_and_engines_come_from_either() -> None:
    settings = Settings(model=(ModelSettings(gpus=(0, 1), engines=2, split="layer"),))
    (one,) = asks_of(Ask(), settings)
    assert (one.gpus, one.engines, one.split) == ((0, 1), 2, "layer")
    (one,) = asks_of(Ask(gpus="all", engines=3), settings)
    assert (one.gpus, one.engines) == ("all", 3)


@pytest.mark.parametrize(
    ("word", "meant"), [("2", 2), ("all", "all"), ("1,0", (0, 1)), ("1,", (1,)), ("0, 3", (0, 3))]
)
def test_cards_on_the_command_line(word: str, meant: object) -> None:
    assert cards(word) == meant


@pytest.mark.parametrize("word", ["0", "-1", ",", "0,0", "a,b", "0,-1", "", "some"])
def test_cards_that_cannot_be_meant(word: str) -> None:
    with pytest.raises((ValueError, argparse.ArgumentTypeError)):
        cards(word)


def test_a_file_beside_the_settings_is_meant_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "one.gguf").touch()
    one, two = asks_of(Ask(config=tmp_path / "w.toml"), Settings(model=(ONE, TWO)))
    assert one.model == str(tmp_path / "one.gguf")
    assert one.engine == Path("mine")  # an installed build
    assert two.model == "owner/name"


def test_the_projector_of_the_command_line_goes_before_the_settings(tmp_path: Path) -> None:
    (tmp_path / "mmproj.gguf").touch()
    config = tmp_path / "w.toml"

    def projector(said: str | None, asked: str | None = None) -> str | None:
        settings = Settings(model=(ModelSettings(mmproj=said),))
        (one,) = asks_of(Ask(config=config, mmproj=asked), settings)
        return one.mmproj

    assert projector("mmproj.gguf") == str(tmp_path / "mmproj.gguf")
    assert projector("mmproj.gguf", "none") == "none"
    (tmp_path / "none").touch()
    assert projector("none") == "none"
    assert projector(None) is None


def test_what_cannot_be_served_is_refused_before_anything_starts(tmp_path: Path) -> None:
    assert checked(Ask()) == Ask()
    with pytest.raises(AppError):
        checked(Ask(model="owner/name"))
    (tmp_path / "one-Q4_0.gguf").touch()
    found = checked(Ask(model=str(tmp_path), quant="Q4_0"))
    assert (found.model, found.quant) == (tmp_path / "one-Q4_0.gguf", None)
