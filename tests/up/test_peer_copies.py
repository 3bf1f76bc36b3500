"""Before a model is put over several cards, copies between them are tried."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import builders
from workhorse.engines.supply.pick import Picked
from workhorse.machine.probe import probe
from workhorse.plan.what_if import assumed_build
from workhorse.records import Gpu, GpuLink, Model, PeerCopy
from workhorse.text import Text, same
from workhorse.up.decide import Ask, Ground, Question
from workhorse.up.projector import Seen
from workhorse.up.several import several_of, with_tried_copies

TWO = Path(__file__).parents[1] / "captures" / "two_v100.json"
Links = tuple[tuple[GpuLink, ...], tuple[Text, ...]]


def model(share: float) -> Model:
    """A 7B's shape: of all of it one card has not the room."""
    return builders.model(
        layers=28, embedding=3584, feed_forward=int(56832 * share), heads=28, kv_heads=4,
        head_size=128, vocabulary=152064,
    )  # fmt: skip


def question(share: float = 1.0, ask: Ask | None = None) -> Question:
    here = probe(TWO)
    build = assumed_build(here)
    assert build is not None
    return Question(ask or Ask(), Ground(here, Picked(build), ()), Seen(model(share)), None)


@pytest.mark.parametrize(("copy", "gpus"), [
    (PeerCopy(False, True, 9e9, 15e-6), ((0, 1),)),
    (PeerCopy(False, False), ((0,),)),
])  # fmt: skip
def test_cards_between_which_copies_are_lost_do_not_share_a_model(
    copy: PeerCopy, gpus: tuple[tuple[int, ...], ...]
) -> None:
    def measure(cards: Sequence[Gpu], links: Sequence[GpuLink]) -> Links:
        assert [card.index for card in cards] == [0, 1]
        return tuple(replace(link, copies=(copy,)) for link in links), (same("told"),)

    asked = question()
    found = several_of(asked)
    assert found.gpus == ((0, 1),)
    tried = with_tried_copies(asked, found, measure)
    assert several_of(tried).gpus == gpus
    assert tried.ground.machine.doubts[-1].en == "told"


@pytest.mark.parametrize(("share", "ask"), [
    (0.3, Ask()),  # one card holds it
    (1.0, Ask(machine_root=TWO)),  # the cards are not here
])  # fmt: skip
def test_nothing_is_tried_where_nothing_would_be_copied(share: float, ask: Ask) -> None:
    def refuse(cards: Sequence[Gpu], links: Sequence[GpuLink]) -> Links:
        raise AssertionError("tried")

    asked = question(share, ask)
    assert with_tried_copies(asked, several_of(asked), refuse) is asked
