"""One family of errors: what happened, one next step, and who speaks."""

from dataclasses import dataclass
from typing import Literal

from workhorse.text import Text

Speaker = Literal["workhorse", "gateway", "engine"]

# Exit codes of every command. 2 is what argparse uses for wrong usage.
EXIT_GOOD = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_NO = 3  # the answer is no: does not fit, not compatible, regression


@dataclass(frozen=True, slots=True)
class Cause:
    """Why something failed, and what to do where that is known."""

    what: Text
    next_step: Text | None = None


class AppError(Exception):
    """An error a user can act on.

    `what` says what happened, with the value; `next_step` one thing to do; `speaker` whose
    words they are; `exit_code` what the command returns.
    """

    def __init__(
        self,
        what: Text,
        next_step: Text,
        *,
        speaker: Speaker = "workhorse",
        exit_code: int = EXIT_FAILED,
    ) -> None:
        super().__init__(f"{what.en} {next_step.en}")
        self.what = what
        self.next_step = next_step
        self.speaker: Speaker = speaker
        self.exit_code = exit_code
