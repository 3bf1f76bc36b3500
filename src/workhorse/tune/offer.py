"""What one rule of the space says of its variable: values to try, or why there are none. Pure."""

from dataclasses import dataclass

from workhorse.records import Model, Plan
from workhorse.text import Text
from workhorse.tune.given import Given


@dataclass(frozen=True, slots=True)
class Around:
    """Where tuning stands: what it was given, and the plan that is the incumbent now."""

    given: Given
    plan: Plan

    @property
    def model(self) -> Model:
        """The file that the incumbent computes with."""
        files = (self.given.model, *self.given.files)
        return next((m for m in files if m.path == self.plan.model_path), self.given.model)

    @property
    def decodes(self) -> bool:
        """Whether decoding is to be faster: of prompts the forecast knows less."""
        return self.given.goal != "prefill"

    @property
    def reads_ram(self) -> bool:
        """Whether a decoded token reads weights of main memory."""
        every_layer = self.plan.gpu_layers >= self.plan.layers
        return not self.plan.gpu_indexes or not every_layer or self.plan.expert_layers_in_ram > 0


@dataclass(frozen=True, slots=True)
class Offer:
    """A variable with its values, the incumbent's among them.

    `seen` is the largest ratio that such a change was seen to give: it orders variables for which
    the forecast is blind, and nothing else.
    """

    name: str
    now: str
    values: tuple[str, ...]
    ordered: bool
    because: Text
    seen: float
    told: bool  # the forecast knows what this variable does


@dataclass(frozen=True, slots=True)
class NotHere:
    """A variable that makes no sense here, and why."""

    name: str
    because: Text


def sorted_numbers(values: set[int], now: int) -> tuple[str, ...]:
    """Numbers in order as words, the incumbent's among them."""
    return tuple(map(str, sorted(values | {now})))
