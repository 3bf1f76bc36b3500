"""`workhorse plan` for several cards: the ways, the engines, and what is wrong to ask."""

import json
from pathlib import Path

import pytest

from workhorse.cli import main
from workhorse.codec import from_json
from workhorse.records import Plan, Several

CAPTURES = Path(__file__).parents[1] / "captures"
TWO = ("--machine", str(CAPTURES / "two_v100.json"))
NOT_HERE = ("--gpu", "Tesla V100-PCIE-16GB", "--ram", "128GiB", "--numa", "2", "--cores", "14")


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What `plan` prints, on one line."""
    assert main(["plan", *words]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_the_ways_and_the_engines_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, *TWO, "--for", "batch", "--lang", "en")
    assert "Ways to use the cards" in out and "2 engines GPU 0–1" in out
    assert "Taken. 2 engines, each with all of the model" in out
    assert "1 GPU 0 14 on node 0" in out and "2 GPU 1 14 on node 1" in out
    assert "row split over GPU 0" in out and "gone from llama.cpp's CUDA code" in out
    chinese = said(capsys, *TWO, "--for", "batch", "--lang", "zh")
    assert "显卡使用方式" in chinese and "2 个引擎" in chinese and "采用" in chinese


def test_one_engine_is_a_plan_and_several_are_a_document_of_their_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan", *TWO, "--json"]) == 0
    assert from_json(Plan, capsys.readouterr().out, what="stdout").gpu_indexes == (0,)
    assert main(["plan", *TWO, "--gpus", "all", "--json"]) == 0
    found = from_json(Several, capsys.readouterr().out, what="stdout")
    assert found.gpus == ((0,), (1,))
    assert main(["plan", *TWO, "--gpus", "1,", "--json"]) == 0
    assert from_json(Several, capsys.readouterr().out, what="stdout").gpus == ((1,),)


def test_cards_that_are_not_here_are_planned_for(capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, *NOT_HERE, "--gpus", "2", "--engines", "2", "--lang", "en")
    assert "2 engines GPU 0–1" in out and "As asked." in out
    assert main(["plan", *NOT_HERE, "--gpus", "3", "--for", "batch", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["plans"]) == 3


def test_how_cards_share_the_model_can_be_said(capsys: pytest.CaptureFixture[str]) -> None:
    for split, gpus in (("layer", [[0, 1]]), ("replicas", [[0], [1]]), ("one", [[0]])):
        assert main(["plan", *TWO, "--split", split, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["gpus"] == gpus


@pytest.mark.parametrize(
    ("words", "code", "what"),
    [
        ((*TWO, "--gpus", "0,7"), 3, "GPU 0, GPU 1"),
        ((*TWO, "--gpus", "3"), 3, "GPU 0, GPU 1"),
        ((*TWO, "--gpus", "0,0"), 2, "no list of different cards"),
        ((*TWO, "--gpus", "none"), 2, "none"),
        ((*NOT_HERE, "--gpus", "all"), 2, "--gpus N"),
        ((*NOT_HERE, "--gpus", "0,1"), 2, "--gpus N"),
        ((*TWO, "--engines", "0"), 2, "0"),
    ],
)
def test_what_cannot_be_meant_is_one_clear_error(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, what: str
) -> None:
    try:
        assert main(["plan", *words, "--lang", "en"]) == code
    except SystemExit as left:
        assert left.code == code
    assert what in " ".join(capsys.readouterr().err.split())
