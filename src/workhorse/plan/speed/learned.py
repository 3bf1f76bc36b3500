"""What earlier measurements on this machine teach the next forecast."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from workhorse.knowledge.published_speeds import published_version
from workhorse.knowledge.speeds import speed_constants
from workhorse.records import EngineBuild, Estimate, Model
from workhorse.text import Text

# Interval of a forecast that rests on a measurement of the same model here, and on others here.
SAME_MODEL_BAND = 0.15
OTHER_MODEL_BAND = 0.3


@dataclass(frozen=True, slots=True)
class Setup:
    """The settings beside the model that decide speed: what was learned under one holds there."""

    engine: str
    pages: Literal["small", "huge"]
    threads: int


def setup_for(build: EngineBuild, device: str, *, huge_pages: bool, threads: int) -> Setup:
    """The setup of a plan; `device` is a card's name or RAM.

    The constants' version is part of it: a correction of old constants says nothing of new ones.
    """
    version = speed_constants().date if device == "RAM" else published_version()
    engine = f"{build.engine} {build.version}, {device}, constants {version}"
    return Setup(engine, "huge" if huge_pages else "small", threads)


@dataclass(frozen=True, slots=True)
class Experience:
    """A forecast made on this machine by constants alone, and what was measured afterwards."""

    model_name: str
    quantisation: str
    setup: Setup
    predicted_tokens_per_s: float
    measured_tokens_per_s: float
    prefill_tokens_per_s: float | None = None  # measured
    low_tokens_per_s: float | None = None  # the interval that was promised
    high_tokens_per_s: float | None = None


def same_model(model: Model, setup: Setup, history: Sequence[Experience]) -> list[Experience]:
    """What was measured of this very model under the same setup."""
    return [
        e
        for e in history
        if (e.model_name, e.quantisation, e.setup) == (model.name, model.quantisation, setup)
    ]


def nearest(model: Model, setup: Setup, history: Sequence[Experience]) -> list[Experience]:
    """What was measured here of the nearest kin: this model, models of its quant, any model."""
    here = [e for e in history if e.setup == setup]
    kin = [e for e in here if e.quantisation == model.quantisation]
    return same_model(model, setup, history) or kin or here


def correction(model: Model, setup: Setup, history: Sequence[Experience]) -> float:
    """The factor by which earlier measurements here correct the constants; 1 without any."""
    used = nearest(model, setup, history)
    if not used:
        return 1.0
    factor = median(e.measured_tokens_per_s / e.predicted_tokens_per_s for e in used)
    if not same_model(model, setup, history):
        # One other model may miss by what is its own: taken whole, the figure of a 24-layer model
        # made the forecast of a 100-layer one worse (H200, 2026-11: 0.98 of the truth to 0.77).
        factor **= len(used) / (len(used) + 1)
    return factor


def learned(
    plain: float,
    model: Model,
    setup: Setup,
    history: Sequence[Experience],
) -> Estimate | None:
    """The forecast corrected by what earlier forecasts missed here; `None` without history."""
    used = nearest(model, setup, history)
    if not used:
        return None
    same = bool(same_model(model, setup, history))
    factor, band = correction(model, setup, history), SAME_MODEL_BAND if same else OTHER_MODEL_BAND
    value = plain * factor
    which = Text("this model", "本模型") if same else Text("other models", "其他模型")
    source = Text(
        f"speed model, corrected ×{factor:.2f} by {len(used)} measured here ({which.en})",
        f"速度模型，按本机 {len(used)} 次实测（{which.zh}）修正 ×{factor:.2f}",
    )
    return Estimate(value, value * (1 - band), value * (1 + band), "tok/s", "learned", source)


def kept_promises(history: Sequence[Experience]) -> tuple[int, int]:
    """How many measurements here fell into the interval that was promised, and of how many."""
    judged = [
        e.low_tokens_per_s <= e.measured_tokens_per_s <= e.high_tokens_per_s
        for e in history
        if e.low_tokens_per_s is not None and e.high_tokens_per_s is not None
    ]
    return sum(judged), len(judged)
