"""What is tuned, what a trial changes and what came of it. Pure."""

from dataclasses import dataclass
from typing import Literal

from workhorse.text import Text

# What is made larger: tok/s of one stream from its first to its last token, of all streams
# together, of a prompt.
Goal = Literal["decode", "total", "prefill"]

Outcome = Literal[
    "accepted",  # better beyond noise
    "no difference",
    "worse",
    "crashed",
    "out of memory",
    "wrong output",
    "refused",  # a constraint: context, slots, memory headroom, quality
]


JOINT = " + "


@dataclass(frozen=True, slots=True)
class Constraints:
    """What a better plan may not give up."""

    context_tokens: int  # of a slot, at least
    slots: int  # at least
    memory_headroom_share: float  # of the fullest device
    kl_divergence: float | None = None  # from the plan's own weights, at most; None: not asked


@dataclass(frozen=True, slots=True)
class Change:
    """One variable set to another value than the incumbent's; `value` as stored and shown.

    Values are of the variable's own words: `threads` `14`, `cpus` `0-13`, `kv` `q8_0`,
    `engine` the build's version. `tune/apply.py` knows what each does to a plan. Where a value only
    fits when another variable gives up memory, both change together: `gpu layers + kv` to
    `24 + q8_0`; `parts` takes them apart.
    """

    variable: str
    value: str

    @property
    def parts(self) -> "tuple[Change, ...]":
        """The change of each variable: one, or several that only make sense together."""
        names = self.variable.split(JOINT)
        values = self.value.split(JOINT) if len(names) > 1 else [self.value]
        return tuple(Change(name, value) for name, value in zip(names, values, strict=True))


def together(*changes: Change) -> Change:
    """Several changes as one."""
    return Change(
        JOINT.join(change.variable for change in changes),
        JOINT.join(change.value for change in changes),
    )


@dataclass(frozen=True, slots=True)
class Pair:
    """One round of a trial: candidate and incumbent measured side by side, tok/s of the goal."""

    candidate: float
    incumbent: float


@dataclass(frozen=True, slots=True)
class Trial:
    """One change that was tried, whatever came of it."""

    number: int
    change: Change
    kept: tuple[Change, ...]  # what had been accepted before, in order: the incumbent
    pairs: tuple[Pair, ...]
    outcome: Outcome
    ratio: float | None  # candidate over incumbent; None: it never answered
    interval: tuple[float, float] | None
    expected: float | None  # the forecast's ratio for this change; None: it cannot tell
    took_s: float
    why: Text
    second_pass: bool = False
