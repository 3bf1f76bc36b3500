"""Every alarm of the guard: provoked by readings, in words with figures, and over again."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from guard_scenes import (
    GIB,
    MIB,
    START_S,
    Play,
    answered,
    card,
    cpu_plan,
    engine,
    forecast,
    gpu_plan,
    xid,
)

from workhorse.knowledge.alarms import alarm_wordings
from workhorse.knowledge.tables import table
from workhorse.records import AnswerSpeed, KernelEvent, Plan

GUARD = Path(__file__).resolve().parents[2] / "src/workhorse/guard"
Case = tuple[str, Callable[[], Plan], dict[str, Any], str]


def engines(**changes: Any) -> dict[str, Any]:
    return {"engines": (engine(**changes),)}


def cards(**changes: Any) -> dict[str, Any]:
    return {"cards": (card(**changes),)}


HOT = cards(throttled_by=("SW thermal slowdown",), temperature_c=92.0, sm_clock_mhz=700)
# What lasts: the alarm, the plan, the readings, and a piece of what it must say.
LASTING: list[Case] = [
    ("live.decode-collapsed", cpu_plan, engines(decode_tokens_per_s=20.0), "20.0 tok/s"),
    ("live.vram-full", gpu_plan, cards(used_bytes=15 * GIB), "94 % full"),
    ("gpu.too-hot", gpu_plan, HOT, "92 °C"),
    (
        "gpu.power-brake",
        gpu_plan,
        cards(throttled_by=("HW slowdown", "HW power brake slowdown")),
        "HW power brake slowdown",
    ),
    ("gpu.hw-slowdown", gpu_plan, cards(throttled_by=("HW slowdown",)), "HW slowdown"),
    (
        "live.power-cap",
        gpu_plan,
        cards(throttled_by=("SW power cap",), power_limit_w=100.0, sm_clock_mhz=600),
        "100 W; its default is 250 W",
    ),
    ("link.width-lost", gpu_plan, cards(link_width=4), "4 PCIe lanes under load; it has 16"),
    ("link.speed-lost", gpu_plan, cards(link_generation=1), "PCIe 1.0 under load; 3.0"),
    (
        "live.foreign-process",
        gpu_plan,
        cards(foreign_bytes=4 * GIB, foreign_processes=("77 python 4294967296",)),
        "77 python",
    ),
    ("live.card-silent", gpu_plan, {"cards": ()}, "does not answer"),
    ("live.ecc-grew", gpu_plan, cards(corrected_errors=250), "250 memory errors"),
    ("live.layers-on-cpu", gpu_plan, engines(loaded_gpu_layers=2), "2 of 5 layers on GPUs"),
    ("live.layers-on-cpu", gpu_plan, cards(own_bytes=1000), "GPU 0, planned"),
    ("live.layers-on-cpu", gpu_plan, cards(busy_share=0.0), "its CPUs 90 % while it answers"),
    ("live.wrong-cpus", cpu_plan, engines(allowed_cpus=(0,)), "CPU 0, planned 0-3"),
    ("live.swapped", cpu_plan, engines(swapped_bytes=500 * MIB), "500 MiB"),
    (
        "live.weights-evicted",
        lambda: cpu_plan(load_mode="mmap"),
        engines(weights_cached_share=0.4),
        "60 % of the file",
    ),
    (
        "live.wrong-node",
        lambda: cpu_plan(memory_nodes=(0,)),
        engines(pages_on_nodes=(GIB, 3 * GIB)),
        "75 % of the memory",
    ),
    ("live.queue-full", cpu_plan, engines(waiting=16), "16 wait for 4 slots"),
    ("live.disk-full", cpu_plan, {"disk_free_bytes": 100 * MIB}, "100 MiB free"),
    ("live.memory-low", cpu_plan, {"memory_available_bytes": GIB}, "1.00 GiB of 32.0 GiB"),
]


@pytest.mark.parametrize(("code", "plan", "bad", "says"), LASTING)
def test_what_lasts_is_raised_once_in_words_and_is_over_when_it_ends(
    code: str, plan: Callable[[], Plan], bad: dict[str, Any], says: str
) -> None:
    play = Play(plan()).run(20)
    assert play.raised == []
    play.run(5, **bad)
    assert play.raised == [], "a short disturbance is none"
    play.run(40, **bad)
    assert play.raised == [code], "one alarm, told once"
    finding = play.now[code].finding
    assert says in finding.seen.en and finding.seen.zh and finding.remedy.zh and finding.why.zh
    assert finding.evidence and any(c.isdigit() for c in " ".join(finding.evidence))
    assert finding.command is None or "{" not in finding.command.replace("{print", "")
    play.run(15)
    assert play.over == [code] and play.now == {}


def faults(index: int) -> dict[str, Any]:
    return engines(major_faults=100 + 1000 * index)


def test_major_faults_are_counted_by_the_second() -> None:
    play = Play().run(10)
    play.run(10, faults)
    assert play.raised == ["live.weights-evicted"]
    assert "200 times a second" in play.now["live.weights-evicted"].finding.seen.en


def test_faults_of_tables_that_are_read_by_row_are_none() -> None:
    assert Play(cpu_plan(lazy_tables=True)).run(10).run(20, faults).raised == []


def test_a_new_process_brings_its_own_counts() -> None:
    play = Play().run(10)
    play.run(30, lambda i: engines(pid=i, major_faults=100_000 * i))
    assert play.raised == []


def test_an_uncorrected_error_is_told_at_once_and_stays() -> None:
    play = Play(gpu_plan()).run(3)
    play.step(**cards(uncorrected_errors=2))
    assert play.raised == ["gpu.memory-errors"]
    assert "2 memory errors" in play.now["gpu.memory-errors"].finding.seen.en
    play.run(100, **cards(uncorrected_errors=2))
    assert play.over == [] and len(play.raised) == 1


@pytest.mark.parametrize(("number", "address"), [(48, "0000:18:00.0"), (79, "0000:18:00.0")])
def test_a_card_with_a_fatal_xid_is_condemned_for_good(number: int, address: str) -> None:
    play = Play(gpu_plan()).run(2)
    assert play.judge.condemned == frozenset()
    # It fell off the bus: the driver does not list it any more.
    play.step(events=(xid(43), xid(45), xid(number)), cards=())
    assert play.raised == [f"xid.{number}"]
    assert play.judge.condemned == {0}
    finding = play.now[f"xid.{number}"].finding
    assert "taken out of service" in finding.remedy.en and "停止服务" in finding.remedy.zh
    play.run(2000)
    assert f"xid.{number}" in play.now


def test_other_xids_are_told_by_the_table_and_condemn_nothing() -> None:
    play = Play(gpu_plan()).run(2)
    play.step(events=(xid(31),))
    assert play.raised == ["xid.31"] and play.judge.condemned == frozenset()
    assert play.now["xid.31"].finding.level == "note" and play.now["xid.31"].subject == "GPU 0"
    play.run(730)  # an hour later
    assert play.now == {} and play.over == ["xid.31"]


def test_a_program_that_the_kernel_killed_is_told() -> None:
    text = "Out of memory: Killed process (python)"
    play = Play().run(2)
    play.step(events=(KernelEvent("out of memory", None, None, text, times=2),))
    finding = play.now["kernel.killed"].finding
    assert "2 times" in finding.seen.en and finding.evidence == (text,)


def test_anothers_program_that_outgrew_its_own_group_is_no_affair_of_ours() -> None:
    text = "Memory cgroup out of memory: Killed process (job)"
    event = KernelEvent("out of memory", None, None, text, times=1)
    play = Play().run(3)
    play.step(events=(event,))
    assert play.raised == []
    play.step(events=(event,), engines=(engine(restarts=1, state="restarting"),))
    assert play.raised == ["kernel.killed"]


@pytest.mark.parametrize("sample", ["!!!!!!!!", "GGGGGGGG", "nan nan nan "])
def test_garbage_is_an_alarm_when_half_of_the_answers_are(sample: str) -> None:
    play = Play().run(5)
    play.run(
        4,
        lambda i: engines(garbage_streams=i, sane_streams=1, garbage_sample=sample),
    )
    assert play.raised == ["live.garbage"]
    finding = play.now["live.garbage"].finding
    assert sample[:4] in finding.seen.en and finding.share_lost == 1.0
    assert ("NaN" in finding.seen.en) == ("nan" in sample)


def test_a_client_that_asks_for_repetition_is_no_alarm() -> None:
    play = Play().run(
        200, lambda i: engines(garbage_streams=i // 4, sane_streams=i, garbage_sample="ha")
    )
    assert play.raised == []


def test_an_idle_card_saves_power_and_nothing_is_wrong() -> None:
    idle = cards(
        busy_share=0.0,
        link_generation=1,
        sm_clock_mhz=135,
        throttled_by=("idle",),
    )
    play = Play(gpu_plan()).run(60, **idle, engines=(engine(generating=0, cpu_share=0.01),))
    assert play.raised == []


def test_a_card_that_reaches_its_own_power_limit_with_its_clocks_up_is_well() -> None:
    capped = cards(throttled_by=("SW power cap",), power_w=250.0)
    assert Play(gpu_plan()).run(60, **capped).raised == []


def test_a_card_that_no_engine_uses_is_nobodys_business() -> None:
    assert Play(cpu_plan()).run(40, **cards(used_bytes=16 * GIB)).raised == []


# What explains a collapse of decode, when nothing of it has been seen before.
SLOW = {"decode_tokens_per_s": 20.0}
CAUSES: list[tuple[str, Callable[[], Plan], dict[str, Any], str]] = [
    ("others", cpu_plan, {**engines(**SLOW), "other_cpus_busy": 2.0}, "50 % of its CPUs"),
    ("others", cpu_plan, engines(**SLOW, waited_share=0.6), "waited for a CPU 60 % of the time"),
    ("swapped", cpu_plan, engines(**SLOW, swapped_bytes=GIB), "1.00 GiB of the engine"),
    ("wrong-cpus", cpu_plan, engines(**SLOW, allowed_cpus=(0,)), "CPU 0, planned 0-3"),
    ("quota", lambda: cpu_plan(threads=4), engines(**SLOW, quota_cpus=1.0), "gives 1 CPUs"),
    (
        "wrong-node",
        lambda: cpu_plan(memory_nodes=(0,)),
        engines(**SLOW, pages_on_nodes=(0, GIB)),
        "another node",
    ),
    ("hot", gpu_plan, {**engines(**SLOW), **HOT}, "SW thermal slowdown"),
    (
        "power-cap",
        gpu_plan,
        {**engines(**SLOW), **cards(throttled_by=("SW power cap",), sm_clock_mhz=500)},
        "power limit of 250 W",
    ),
    (
        "foreign-process",
        gpu_plan,
        {**engines(**SLOW), **cards(foreign_processes=("77 python 1",), foreign_bytes=1)},
        "77 python",
    ),
    (
        "link",
        lambda: gpu_plan(gpu_layers=3),
        {**engines(**SLOW), **cards(link_width=1)},
        "3.0 x1, before on 3.0 x16",
    ),
    ("layers-on-cpu", gpu_plan, {**engines(**SLOW), **cards(busy_share=0.01)}, "1 % busy"),
    ("cpu-hot", cpu_plan, {**engines(**SLOW), "cpu_throttles": 90}, "for heat 90 times"),
]


@pytest.mark.parametrize(("cause", "plan", "bad", "says"), CAUSES)
def test_a_collapse_says_what_changed_at_the_same_time(
    cause: str, plan: Callable[[], Plan], bad: dict[str, Any], says: str
) -> None:
    play = Play(plan()).run(15, cpu_throttles=0).run(12, **{"cpu_throttles": 0, **bad})
    finding = play.now["live.decode-collapsed"].finding
    assert says in finding.seen.en and "At the same time" in finding.seen.en
    row = alarm_wordings()[f"slow.{cause}"]
    assert (finding.why.en, finding.remedy.zh) == (row.why_en, row.step_zh)
    assert finding.share_lost == pytest.approx(0.8, abs=0.05)


def test_others_that_take_what_the_engine_leaves_are_no_cause() -> None:
    bad = {**engines(**SLOW, waited_share=0.02), "other_cpus_busy": 3.9}
    play = Play().run(15).run(12, **bad)
    assert "At the same time" not in play.now["live.decode-collapsed"].finding.seen.en


def test_a_display_server_that_was_there_all_the_time_is_no_cause() -> None:
    shown = cards(foreign_processes=("9 Xorg 1000",), foreign_bytes=1000)
    play = Play(gpu_plan()).run(15, **shown).run(12, **shown, **engines(**SLOW))
    assert "Xorg" not in play.now["live.decode-collapsed"].finding.seen.en


def test_a_collapse_by_page_faults_says_so() -> None:
    play = Play().run(15)
    play.run(12, lambda i: engines(**SLOW, major_faults=10_000 * i))
    finding = play.now["live.decode-collapsed"].finding
    assert "waits for the disk 2000 times a second" in finding.seen.en


def test_a_collapse_without_any_sign_says_that() -> None:
    play = Play().run(15).run(12, **engines(**SLOW))
    finding = play.now["live.decode-collapsed"].finding
    assert "At the same time" not in finding.seen.en and "workhorse diagnose" in finding.remedy.en


def test_every_row_of_the_table_is_provoked_here() -> None:
    tried = {code for code, *_ in LASTING} | {f"slow.{cause}" for cause, *_ in CAUSES}
    tried |= {"live.garbage", "slow.weights-evicted", "live.engine-lost"}  # the last: test_lost.py
    assert alarm_wordings().keys() - tried == set()


def test_every_limit_is_used() -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in GUARD.glob("*.py"))
    names = [row["name"] for row in table("alarms")["limit"]]
    assert [name for name in names if f'alarm_limit("{name}")' not in code] == []
    assert len(names) == len(set(names))


def test_prompts_of_others_between_the_steps_are_no_collapse() -> None:
    """Two streams of which each reads its prompt in half of its time: decode stands still then."""
    plan = cpu_plan(forecast=forecast(100.0))
    mixed = engines(decode_tokens_per_s=32.0, streams=2, prefill_share=0.33)
    assert Play(plan).run(15).run(60, **mixed).raised == []
    alone = engines(decode_tokens_per_s=32.0, streams=2, prefill_share=0.02)
    assert Play(plan).run(15).run(60, **alone).raised == ["live.decode-collapsed"]


def test_errors_that_sound_memory_makes_in_months_are_none() -> None:
    play = Play(gpu_plan())
    for day in range(60):
        play.at_s = START_S + day * 86_400.0
        play.run(10, cards=(card(corrected_errors=20 * day),))
    assert play.raised == []
    play.run(10, cards=(card(corrected_errors=20 * 59 + 100),))
    assert play.raised == ["live.ecc-grew"]


def test_what_nothing_tells_any_more_is_over() -> None:
    play = Play().run(15).run(12, **engines(**SLOW))
    play.run(400, **engines(decode_tokens_per_s=None))
    assert play.over == ["live.decode-collapsed"] and play.now == {}


def test_what_was_wrong_with_an_engine_that_is_served_no_more_is_over() -> None:
    play = Play().run(15).run(12, **engines(**SLOW))
    assert play.raised == ["live.decode-collapsed"]
    play.step(**engines(model_name="another"))
    assert play.over == ["live.decode-collapsed"] and play.now == {}


def test_a_card_that_was_planned_fuller_is_not_too_full() -> None:
    plan = gpu_plan()
    filled = replace(plan.budget[0], device="GPU 0", n_bytes=15 * GIB)
    for budget, raised in ((plan.budget, ["live.vram-full"]), ((filled,), [])):
        play = Play(replace(plan, budget=budget)).run(10, cards=(card(used_bytes=15 * GIB),))
        assert play.raised == raised


def test_one_slow_answer_among_several_is_its_clients() -> None:
    def mixed(index: int) -> dict[str, Any]:
        speeds = (100.0, 5.0, 95.0)
        answers = tuple(
            AnswerSpeed(3.0 * index + n, speed, 868, 1.0) for n, speed in enumerate(speeds)
        )
        return {"engines": (engine(answers=answers),)}

    play = Play()
    for index in range(60):
        play.at_s += 5
        reading = play.reading(**mixed(index))
        assert play.judge.add(replace(reading, at_unix_s=play.at_s), {"horse": play.plan}) == ()


def test_each_answer_is_held_against_its_own_depth_and_streams() -> None:
    """The medians of several figures belong to no answer: each is judged by itself."""
    mixed = (AnswerSpeed(1.0, 100.0, 868, 1.0), AnswerSpeed(2.0, 40.0, 868, 4.0))
    play = Play()
    for index in range(60):
        play.at_s += 5
        later = tuple(replace(one, at_s=one.at_s + 10 * index) for one in mixed)
        reading = play.reading(engines=(engine(answers=later),))
        assert play.judge.add(replace(reading, at_unix_s=play.at_s), {"horse": play.plan}) == ()
    expected = play.judge.baseline("horse", play.plan).expect(868, 4)
    assert expected is not None and expected.basis == "learned"


def test_the_same_answer_again_is_no_new_evidence() -> None:
    """One slow answer, then nobody asks: the live figure stays what it was."""
    play = Play().run(15)
    reading = play.reading(engines=(answered(engine(**SLOW), 1000.0),))
    for _ in range(50):
        play.at_s += 5
        assert play.judge.add(replace(reading, at_unix_s=play.at_s), {"horse": play.plan}) == ()
