"""What can be tried from where tuning stands: variables, their values, what each promises. Pure."""

from dataclasses import dataclass

from workhorse.records import Rejected
from workhorse.text import Text


@dataclass(frozen=True, slots=True)
class Choice:
    """One value that a variable may take, and what the forecast says of it."""

    value: str
    expected: float | None = None  # the ratio to the incumbent; None: the forecast cannot tell
    most_tokens_per_s: float | None = None  # what the memories' bandwidth allows; None: unknown
    n_bytes: int | None = None  # of the fullest device, with this value; None: unknown
    fits: bool = True  # False: by the budget it needs more memory than there is


@dataclass(frozen=True, slots=True)
class Variable:
    """One thing that can be set; `now`, the incumbent's value, is one of the choices.

    Of an ordered variable the choices run from the least to the most, and the figure is expected to
    rise to one peak and fall after it.
    """

    name: str
    start: str  # the start plan's value
    now: str
    choices: tuple[Choice, ...]
    ordered: bool
    because: Text  # why it may matter here

    @property
    def choice_now(self) -> Choice:
        """The incumbent's value."""
        return self.choices[self.values.index(self.now)]

    @property
    def values(self) -> tuple[str, ...]:
        """The values in order."""
        return tuple(choice.value for choice in self.choices)


@dataclass(frozen=True, slots=True)
class Space:
    """The variables in order of what they promise, and those that make no sense here."""

    variables: tuple[Variable, ...]
    rejected: tuple[Rejected, ...] = ()
