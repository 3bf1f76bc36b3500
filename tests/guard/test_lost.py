"""An engine or a card that is lost while others serve on, and engines that share memory."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from guard_scenes import Play, answered, card, cpu_plan, engine, gpu_plan, xid

from workhorse.records import CardReading


@pytest.mark.parametrize("state", ["given_up", "out_of_service"])
def test_a_lost_engine_is_told_at_once_with_its_card_and_who_is_left(state: str) -> None:
    play = Play(gpu_plan(device="Tesla V100-PCIE-16GB")).run(2)
    gone = engine(state=state, restarts=7, pid=None)
    play.step(engines=(gone, engine(on="GPU 1", model_name="horse (GPU 1)")))
    assert play.raised == ["live.engine-lost"]
    finding = play.now["live.engine-lost"].finding
    assert "horse on GPU 0 (Tesla V100-PCIE-16GB) is out of service" in finding.seen.en
    assert "1 other engine serves on" in finding.seen.en and "另有 1 个" in finding.seen.zh
    assert finding.level == "warning"
    play.run(15)
    assert play.now == {}, "it was started again"
    play.step(engines=(gone,))
    assert play.now["live.engine-lost"].finding.level == "blocker"


TWO_CARDS = (card(), card(index=1, uuid="GPU-2", pci_address="0000:3b:00.0"))


def condemned(play: Play, times: int, cards: Sequence[CardReading]) -> list[int]:
    """The cards that so many readings condemned, in the order in which it happened."""
    found: list[int] = []
    for _ in range(times):
        play.step(cards=tuple(cards))
        found += sorted(play.judge.condemned)
    return found


def test_a_card_that_alone_stays_silent_is_condemned() -> None:
    play = Play(gpu_plan()).run(3, cards=TWO_CARDS)
    # The driver counts those that are left anew.
    left = (replace(TWO_CARDS[1], index=0),)
    assert condemned(play, 3, left) == []
    assert condemned(play, 30, left) == [0], "told once: what is started there later may stay"
    assert play.raised == ["live.card-silent"]


def test_a_driver_that_answers_for_no_card_condemns_none() -> None:
    """Its package was renewed under the service: what computes goes on computing."""
    play = Play(gpu_plan()).run(3, cards=TWO_CARDS)
    assert condemned(play, 20, ()) == [] and set(play.raised) == {"live.card-silent"}
    assert condemned(play, 1, TWO_CARDS[1:]) == [], "it comes back card by card"
    assert condemned(play, 30, TWO_CARDS) == []


def test_a_fatal_xid_condemns_its_card_alone_however_the_driver_counts_by_then() -> None:
    third = card(index=2, uuid="GPU-3", pci_address="0000:5e:00.0")
    play = Play(gpu_plan(3, gpu_indexes=(0, 1, 2))).run(3, cards=(*TWO_CARDS, third))
    left = (replace(TWO_CARDS[1], index=0), replace(third, index=1))
    play.run(2, cards=left)
    play.step(cards=left, events=(xid(48, third.pci_address),))
    assert play.judge.condemned == {2}
    play.step(cards=left)
    assert play.judge.condemned == frozenset()
    play.step(cards=left, events=(xid(48, third.pci_address),))
    assert play.judge.condemned == {2}, "again, after it was started again"


def test_engines_that_share_memory_are_judged_one_at_a_time() -> None:
    """Each was measured alone: with both at work each is slower, and neither is sick."""
    other = engine(on="CPU 2-3", model_name="horse (CPU 2-3)", generating=0)
    plans = {"horse": cpu_plan(), other.model_name: cpu_plan()}

    def raised(generating: int) -> list[str]:
        play = Play()
        for index in range(30):
            slow = engine(decode_tokens_per_s=20.0 if index > 12 else 100.0)
            at_s = play.at_s = play.at_s + 5
            both = tuple(answered(e, at_s) for e in (slow, replace(other, generating=generating)))
            play.news.extend(play.judge.add(play.reading(engines=both), plans))
        return play.raised

    assert raised(generating=1) == []
    assert raised(generating=0) == ["live.decode-collapsed"]
