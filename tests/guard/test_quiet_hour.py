"""Readings of a real service, healthy among much other work, judged again: nothing is wrong.

Recorded by benchmarks/guard_quiet_hour.py on two CPUs that other programs kept busy, with the
service before them in line: the first line is the plan, each further one a reading.
"""

import lzma
import statistics
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from guard_scenes import PERIOD_S

from workhorse.codec import from_json
from workhorse.guard.judge import Judge
from workhorse.records import Plan, Reading

RECORDED = Path(__file__).parent / "quiet_service.jsonl.xz"
HOUR_S = 3600.0


@cache
def recorded() -> tuple[Plan, tuple[Reading, ...]]:
    plan, *readings = lzma.decompress(RECORDED.read_bytes()).decode().splitlines()
    return (
        from_json(Plan, plan, what=RECORDED.name),
        tuple(from_json(Reading, line, what=RECORDED.name) for line in readings),
    )


def an_hour(readings: tuple[Reading, ...], factor: float = 1.0, after_s: float = 0.0) -> list[str]:
    """The alarms of the readings, again and again for an hour.

    `factor`: answers are so much faster after `after_s` seconds.
    """
    plan, _ = recorded()
    judge, told = Judge(), []
    name = readings[0].engines[0].model_name
    speeds = [a.decode_tokens_per_s for r in readings for a in r.engines[0].answers]
    judge.baseline(name, plan).accept(statistics.median(speeds))
    for index in range(int(HOUR_S / PERIOD_S)):
        at_s = index * PERIOD_S
        turn, place = divmod(index, len(readings))
        one = readings[place]
        (engine,) = one.engines
        answers = tuple(
            replace(
                answer,
                at_s=answer.at_s + 1e6 * turn,
                decode_tokens_per_s=answer.decode_tokens_per_s
                * (factor if at_s >= after_s else 1.0),
            )
            for answer in engine.answers
        )
        shifted = replace(one, at_unix_s=1e9 + at_s, engines=(replace(engine, answers=answers),))
        told += [n.alarm.finding.code for n in judge.add(shifted, {name: plan})]
    return told


def test_a_healthy_service_among_other_work_is_no_alarm_in_an_hour() -> None:
    plan, readings = recorded()
    assert len(readings) > 60 and plan.cpus
    speeds = [a.decode_tokens_per_s for r in readings for a in r.engines[0].answers]
    assert max(speeds) > 1.5 * min(speeds), "there is noise in it"
    assert an_hour(readings) == []


@pytest.mark.parametrize("factor", [0.1, 0.3])
def test_the_same_readings_with_a_collapse_in_them_are_one(factor: float) -> None:
    assert an_hour(recorded()[1], factor, after_s=1800.0) == ["live.decode-collapsed"]
