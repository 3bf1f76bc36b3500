"""Before a model is put over several cards, copies between them are tried."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import builders
from workhorse.engines.supply.pick import Picked
from workhorse.machine.probe import probe
from workhorse.plan.what_if import assumed_build
from workhorse.plan.wish import Wish
from workhorse.records import Gpu, GpuLink, Model, PeerCopy
from workhorse.text import Text, same
from workhorse.up.decide import Ask, Ground, Question
from workhorse.up.projector import Seen
from workhorse.up.several import several_of, with_all_tried, with_tried_copies

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


def test_the_cards_that_are_taken_instead_are_tried_as_well() -> None:
    eight = probe(TWO.with_name("eight_v100.json"))
    build = assumed_build(eight)
    assert build is not None
    big = builders.model(
        layers=80, embedding=8192, feed_forward=24944, heads=64, kv_heads=8, head_size=128,
        vocabulary=128256,
    )  # fmt: skip
    ask = Ask(wish=Wish(slots=1, context_tokens=4096))
    asked = Question(ask, Ground(eight, Picked(build), ()), Seen(big), None)
    tried: list[tuple[int, int]] = []

    def measure(_cards: Sequence[Gpu], links: Sequence[GpuLink]) -> Links:
        tried.extend((link.first, link.second) for link in links)
        copies = {(0, 2): PeerCopy(False, False)}
        good = PeerCopy(False, True, 9e9, 15e-6)
        return tuple(
            replace(link, copies=(copies.get((link.first, link.second), good),)) for link in links
        ), ()

    settled, found = with_all_tried(asked, several_of(asked), measure)
    assert tried[0] == (0, 2) and len(tried) == len(set(tried)) > 1
    assert found.gpus[0] in tried[1:], "what is taken was tried"
    assert settled.tried == set(tried)


def test_what_could_not_be_tried_is_not_tried_for_ever() -> None:
    asked = question()
    settled, found = with_all_tried(
        asked, several_of(asked), lambda _cards, links: (tuple(links), ())
    )
    assert found.gpus == ((0, 1),) and settled.tried == {(0, 1)}
