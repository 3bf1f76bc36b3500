"""Whether a replica lives, by what was heard of it and what was not. Pure.

What proves life is an answer to a poll, or a piece of any answer that came meanwhile. What fails
once is taken seriously at once, for new requests; those that run are given up only when nothing
was heard for a while.
"""

from dataclasses import dataclass
from typing import Literal

from workhorse.fleet.spec import ReplicaFacts


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a replica may say nothing."""

    poll_s: float = 2.0  # for the answer to a poll
    # No sign of life for so long: new requests go elsewhere. Two polls may get lost.
    silent_s: float = 5.0
    # And after so long the running ones are given up: whoever waits is told, or asked for again.
    gone_s: float = 12.0


# starting: never heard of; ready and draining: as it says itself; silent: it does not answer;
# away: whoever is asked for it says that it is not there.
PulseState = Literal["starting", "ready", "draining", "silent", "away"]


class Pulse:
    """What is known of one replica; times in seconds of one clock."""

    def __init__(self, patience: Patience | None = None) -> None:
        self._patience = patience or Patience()
        self.facts: ReplicaFacts | None = None
        self.starts = 0  # of it that were seen
        self.state: PulseState = "starting"
        self._heard_s: float | None = None
        self._missed = False  # something failed since it was heard last

    @property
    def restarts(self) -> int:
        """How often it has been started again since it was seen first."""
        return max(0, self.starts - 1)

    def answered(self, facts: ReplicaFacts, now_s: float) -> None:
        """It answered a poll."""
        if self.facts is None or facts.boot != self.facts.boot:
            self.starts += 1
        self.facts, self.state = facts, facts.state
        self._heard_s, self._missed = now_s, False

    def heard(self, now_s: float) -> None:
        """A piece of an answer came; whether it takes new requests a poll has to say."""
        self._heard_s, self._missed = now_s, False
        if self.state == "silent" and self.facts is not None:
            self.state = self.facts.state

    def unanswered(self, now_s: float) -> None:
        """A poll or a request had no answer in time."""
        self._missed = True
        heard_s = self._heard_s
        if self.state in ("ready", "draining") and (
            heard_s is None or now_s - heard_s >= self._patience.silent_s
        ):
            self.state = "silent"

    def absent(self) -> None:
        """A request or a poll was refused, or cut before it was answered."""
        self._missed = True
        if self.state != "starting":
            self.state = "away"

    def is_gone(self, now_s: float) -> bool:
        """Whether running answers are to be given up."""
        heard_s = self._heard_s
        return self._missed and heard_s is not None and now_s - heard_s >= self._patience.gone_s
