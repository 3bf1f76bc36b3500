"""How far a job is, for whoever watches it."""

from dataclasses import dataclass
from typing import Protocol

from workhorse.batch.item import Usage
from workhorse.batch.job import Counts
from workhorse.text import Text


@dataclass(frozen=True, slots=True)
class Progress:
    """A job in this moment."""

    counts: Counts
    usage: Usage  # of all its items, since the job was made; answers that were no use too
    requests_under_way: int
    away: bool  # the service does not answer


class Watcher(Protocol):
    """Who watches a job. Neither call may take long."""

    def seen(self, progress: Progress) -> None:
        """About once a second, at the start and at the end."""
        ...

    def note(self, words: Text) -> None:
        """Something worth telling: the service is away, an item was set aside."""
        ...
