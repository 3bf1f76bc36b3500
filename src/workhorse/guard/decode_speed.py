"""Decode speed against the baseline, with what else changed when it fell. Pure."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from workhorse.guard.baseline import Baseline, Expected
from workhorse.guard.causes import Cause, Healthy, causes, crowded, healthy_now
from workhorse.guard.sign import READY, Sign, View, alarm_finding
from workhorse.records import AnswerSpeed, EngineReading, Finding, Plan
from workhorse.text import Text
from workhorse.units import show_rate, show_share

# Where the others' prompts take more of the time than this, the figure says nothing of decode.
MOST_DISTURBED = 0.9


@dataclass(frozen=True, slots=True)
class Judged:
    """One answer beside what was expected at its depth and with its streams."""

    answer: AnswerSpeed
    tokens_per_s: float  # as it were without the others' prompts
    expected: Expected

    @property
    def share(self) -> float:
        """Of the expected speed."""
        return self.tokens_per_s / self.expected.tokens_per_s


class DecodeSpeed:
    """Watches one engine's decode speed; learns from it while all is well."""

    def __init__(self, baseline: Baseline) -> None:
        self.baseline = baseline
        self._seen_s: float | None = None
        self._healthy = Healthy()

    def look(
        self, view: View, engine: EngineReading, plan: Plan, *, suspected: bool
    ) -> Iterator[Sign]:
        """The sign of new answers; none when no answer came since the last look.

        `suspected`: something may be wrong with this engine or its cards, so learn nothing.
        """
        if engine.state != READY:
            return
        answers = self._new(engine)
        judged = sorted(self._judged(answers), key=lambda one: one.share)
        # One slow answer among several is its client's: the middle one speaks.
        middle = judged[len(judged) // 2] if judged else None
        bad = middle is not None and middle.tokens_per_s < _least(view, middle.expected)
        found = () if not bad else causes(view, engine, plan, self._healthy)
        if answers and not bad and not suspected and not crowded(view.now, engine):
            for answer in answers:
                speed = undisturbed(answer)
                if speed is not None:
                    self.baseline.learn(speed, answer.depth_tokens, streams_of(answer))
            self._healthy = healthy_now(view)
        if middle is not None:
            yield Sign(
                "live.decode-collapsed",
                engine.model_name,
                bad,
                lambda: collapse(engine, middle, found),
            )

    def _new(self, engine: EngineReading) -> tuple[AnswerSpeed, ...]:
        """The answers that came since the last look."""
        seen = self._seen_s
        found = tuple(one for one in engine.answers if seen is None or one.at_s > seen)
        if found:
            self._seen_s = max(one.at_s for one in found)
        return found

    def _judged(self, answers: Iterable[AnswerSpeed]) -> Iterator[Judged]:
        for answer in answers:
            speed = undisturbed(answer)
            expected = self.baseline.expect(answer.depth_tokens, streams_of(answer))
            if speed is not None and expected is not None:
                yield Judged(answer, speed, expected)


def _least(view: View, expected: Expected) -> float:
    return min(expected.low_tokens_per_s, view.limits.decode_share * expected.tokens_per_s)


def streams_of(answer: AnswerSpeed) -> int:
    """How many were decoded at once; one that came and went counts in full."""
    return max(1, math.ceil((answer.streams or 1.0) - 0.25))


def undisturbed(answer: AnswerSpeed) -> float | None:
    """Decode speed without the time in which the engine read the others' prompts.

    An engine reads prompts between two steps of decode, so that this is the others' time in
    prefill over the own time in decode. None where it is most of the time.
    """
    share, others = answer.prefill_share or 0.0, max(1.0, answer.streams or 1.0) - 1
    if share >= 1:
        return None if others else answer.decode_tokens_per_s
    lost = others * share / (1 - share)
    return None if lost > MOST_DISTURBED else answer.decode_tokens_per_s / (1 - lost)


def collapse(engine: EngineReading, judged: Judged, found: tuple[Cause, ...]) -> Finding:
    """The finding: the figures, what changed at the same time, and what to do about that."""
    speed, expected, lost = judged.tokens_per_s, judged.expected, 1 - judged.share
    depth, streams = judged.answer.depth_tokens, streams_of(judged.answer)
    at = f" at depth {depth}" if depth is not None else ""
    at_zh = f"（深度 {depth}）" if depth is not None else ""
    beside = f" with {streams} streams" if streams > 1 else ""
    beside_zh = f"、{streams} 路并发" if streams > 1 else ""
    same_time = f" At the same time: {found[0].seen.en}." if found else ""
    same_time_zh = f"同时：{found[0].seen.zh}。" if found else ""
    now, usual = show_rate(speed), show_rate(expected.tokens_per_s)
    return alarm_finding(
        "live.decode-collapsed",
        Text(
            f"Decode of {engine.model_name} fell to {now}{at}{beside}; {usual} is expected "
            f"({show_share(lost)} lost).{same_time}",
            f"{engine.model_name} 的解码降到 {now}{at_zh}{beside_zh}；应为 {usual}"
            f"（损失 {show_share(lost)}）。{same_time_zh}",
        ),
        evidence=(
            f"decode {speed:.3g} tok/s, expected {expected.tokens_per_s:.3g}, at least "
            f"{expected.low_tokens_per_s:.3g} ({expected.basis}); depth {depth}, "
            f"streams {streams}",
            *(f"{cause.code.removeprefix('slow.')}: {cause.evidence}" for cause in found),
        ),
        share_lost=round(lost, 3),
        sure="likely" if found or expected.basis != "estimated" else "possible",
        cause=found[0].code if found else None,
        cpus=found[0].cpus if found else "",
        pid=engine.pid or "PID",
    )
