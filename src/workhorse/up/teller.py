"""Who tells the user how far the main job is."""

from typing import Protocol

from workhorse.bench.load import Progress
from workhorse.bench.scenario import Scenario
from workhorse.bench.stats import Summary
from workhorse.errors import AppError
from workhorse.records import Plan, Verdict
from workhorse.run.supervisor import Status
from workhorse.text import Text
from workhorse.up.decide import Decision


class Teller(Protocol):
    """Who tells the user how far we are."""

    def stage(self, words: Text) -> None:
        """The next stage begins."""

    def fetching(self, done_bytes: int, total_bytes: int | None) -> None:
        """A download goes on."""

    def decided(self, decision: Decision, on: str) -> None:
        """The plan stands; `on`: of the engine there, among several of the model."""

    def verified(self, verdict: Verdict, *, golden: bool) -> None:
        """The engine runs as planned, or not."""

    def ready(self, plan: Plan, url: str, took_s: float, *, keyed: bool) -> None:
        """The service answers; `keyed`: it asks for a key."""

    def changed(self, status: Status, on: str) -> None:
        """The engine (`on`: there, among several) died, restarts, is ready again, or is lost."""

    def measuring(self, progress: Progress) -> None:
        """A measurement goes on."""

    def gave_way(self) -> None:
        """A client came: the measurement stopped for it."""

    def measured(self, plan: Plan, scenario: Scenario, summary: Summary, doubtful: Verdict) -> None:
        """What was predicted, measured, and the ceiling."""

    def not_measured(self, error: AppError) -> None:
        """The measurement could not be taken."""
