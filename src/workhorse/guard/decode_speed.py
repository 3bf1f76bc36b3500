"""Decode speed against the baseline, with what else changed when it fell. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from workhorse.guard.baseline import Baseline, Expected
from workhorse.guard.causes import Cause, Healthy, causes, crowded, healthy_now
from workhorse.guard.sign import READY, Sign, View, alarm_finding
from workhorse.records import EngineReading, Finding, Plan
from workhorse.text import Text
from workhorse.units import show_rate, show_share

# Where the others' prompts take more of the time than this, the figure says nothing of decode.
MOST_DISTURBED = 0.9


@dataclass(frozen=True, slots=True)
class Figure:
    """What was decoded lately, as far as it tells one moment from another."""

    decode_tokens_per_s: float
    ttft_s: float | None
    depth_tokens: int | None
    streams: int | None


class DecodeSpeed:
    """Watches one engine's decode speed; learns from it while all is well."""

    def __init__(self, baseline: Baseline) -> None:
        self.baseline = baseline
        self._latest: Figure | None = None
        self._healthy = Healthy()

    def look(
        self, view: View, engine: EngineReading, plan: Plan, *, suspected: bool
    ) -> Iterator[Sign]:
        """The sign of a new figure; none when no answer came since the last one.

        `suspected`: something may be wrong with this engine or its cards, so learn nothing.
        """
        speed = engine.decode_tokens_per_s
        if engine.state != READY or not speed:
            return
        figure = Figure(speed, engine.ttft_s, engine.depth_tokens, engine.streams)
        share = disturbed_share(engine)
        if figure == self._latest or share > MOST_DISTURBED:
            return
        self._latest = figure
        undisturbed = speed / (1 - share)
        expected = self.baseline.expect(engine.depth_tokens, engine.streams)
        bad = expected is not None and undisturbed < self._least(view, expected)
        found = () if not bad else causes(view, engine, plan, self._healthy)
        if not bad and not suspected and not crowded(view.now):
            self.baseline.learn(undisturbed, engine.depth_tokens, engine.streams)
            self._healthy = healthy_now(view)
        if expected is not None:
            yield Sign(
                "live.decode-collapsed",
                engine.model_name,
                bad,
                lambda: collapse(engine, undisturbed, expected, found),
            )

    def _least(self, view: View, expected: Expected) -> float:
        return min(expected.low_tokens_per_s, view.limits.decode_share * expected.tokens_per_s)


def disturbed_share(engine: EngineReading) -> float:
    """Share of the decode time of each stream in which the engine read the others' prompts.

    An engine reads prompts between two steps of decode, so that it is the others' time in prefill
    over the own time in decode.
    """
    share, others = engine.prefill_share or 0.0, max(1, engine.streams or 1) - 1
    return min(1.0, others * share / (1 - share)) if share < 1 else float(others > 0)


def collapse(
    engine: EngineReading, speed: float, expected: Expected, found: tuple[Cause, ...]
) -> Finding:
    """The finding: the figures, what changed at the same time, and what to do about that."""
    lost = 1 - speed / expected.tokens_per_s
    depth, streams = engine.depth_tokens, engine.streams
    at = f" at depth {depth}" if depth is not None else ""
    at_zh = f"（深度 {depth}）" if depth is not None else ""
    beside = f" with {streams} streams" if streams and streams > 1 else ""
    beside_zh = f"、{streams} 路并发" if streams and streams > 1 else ""
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
