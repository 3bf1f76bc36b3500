"""Attribution: where the time of one token goes, from the memory's ceiling to what was measured."""

from dataclasses import dataclass
from typing import Literal

from workhorse.records.measurement import Sample
from workhorse.records.plan import Estimate
from workhorse.records.verdict import Verdict
from workhorse.text import Text

# How a request of the experiment differs from the one that is explained, `whole`.
Variant = Literal["whole", "direct", "plain sampling", "shallow", "together"]

# Where a term's figure comes from: the plan, an experiment, or what is left when all others are
# taken off.
Basis = Literal["plan", "experiment", "rest"]


@dataclass(frozen=True, slots=True)
class Timed:
    """One request of one round, per token between its first and its last."""

    variant: Variant
    token_s: float  # by the client's clock
    paused_s: float  # of it, in gaps far longer than the usual one
    engine_token_s: float | None  # by the engine's own clock; None: it tells none
    depth_tokens: float  # of context, on average while it decoded


@dataclass(frozen=True, slots=True)
class Bound:
    """What a part of a term that cannot be separated takes at least and at most."""

    what: Text
    low_s: float
    high_s: float
    how: Text


@dataclass(frozen=True, slots=True)
class Term:
    """One part of a token's time; `low_s` to `high_s` holds it with 95 % confidence.

    Below zero: the experiment's difference had the other sign, within noise or not.
    """

    code: str
    what: Text
    seconds: float
    low_s: float
    high_s: float
    basis: Basis
    how: Text
    bounds: tuple[Bound, ...] = ()

    @property
    def clear(self) -> bool:
        """True when its sign is beyond the noise."""
        return self.low_s > 0 or self.high_s < 0


@dataclass(frozen=True, slots=True)
class Attribution:
    """The terms of one token's time in the order of the bar; their sum is `token_s`."""

    when: str  # ISO 8601, UTC
    url: str
    model_name: str | None
    workhorse: str
    token_s: float  # measured, mean of the rounds
    low_s: float
    high_s: float
    ceiling_tokens_per_s: Estimate | None  # None: nothing tells what a token reads
    terms: tuple[Term, ...]
    rounds: tuple[tuple[Timed, ...], ...]  # raw
    verdict: Verdict
    samples: tuple[Sample, ...] = ()  # of the machine meanwhile, in the order of time
