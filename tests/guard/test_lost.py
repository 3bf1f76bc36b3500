"""An engine or a card that is lost while others serve on, and engines that share memory."""

from dataclasses import replace

import pytest
from guard_scenes import Play, answered, card, cpu_plan, engine, gpu_plan


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


def test_a_card_that_alone_stays_silent_is_condemned() -> None:
    play = Play(gpu_plan()).run(3, cards=TWO_CARDS)
    # The driver counts those that are left anew.
    left = (replace(TWO_CARDS[1], index=0),)
    play.run(3, cards=left)
    assert play.judge.condemned == frozenset()
    play.run(10, cards=left)
    assert play.raised == ["live.card-silent"] and play.judge.condemned == {0}


def test_a_driver_that_answers_for_no_card_condemns_none() -> None:
    """Its package was renewed under the service: what computes goes on computing."""
    play = Play(gpu_plan()).run(3, cards=TWO_CARDS).run(20, cards=())
    assert set(play.raised) == {"live.card-silent"} and play.judge.condemned == frozenset()


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
