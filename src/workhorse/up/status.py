"""How a service is, in one document: what `status` shows and its exit code follows."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from workhorse.errors import EXIT_GOOD, EXIT_NO
from workhorse.guard.lost import OUT_OF_SERVICE
from workhorse.records import Alarm, EngineReading
from workhorse.records.reading import engine_name
from workhorse.serve.backend import READY
from workhorse.text import Text

ServiceState = Literal[
    "starting", "ready", "degraded", "down", "failed", "reloading", "draining", "silent"
]
NOT_YET = ("planning", "starting")


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """One engine of a service."""

    model_name: str
    state: str
    reason: Text | None  # why it is not ready
    restarts: int
    pid: int | None
    device: str | None = None
    context_tokens: int | None = None
    expected_tokens_per_s: float | None = None  # decode, one stream, as forecast
    reading: EngineReading | None = None
    on: str = ""  # where it runs: tells engines of one model apart

    @property
    def name(self) -> str:
        """The engine among all of them."""
        return engine_name(self.model_name, self.on)


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """A service at one moment. `silent`: its process lives and does not answer."""

    state: ServiceState
    url: str
    pid: int
    version: str | None
    started_unix_s: float
    engines: tuple[EngineStatus, ...] = ()
    in_flight: int | None = None  # requests that make engines work, those that wait included
    waiting: int | None = None
    alarms: tuple[Alarm, ...] = ()
    config: str | None = None
    batches: int | None = None  # of OpenAI's API, those that are being answered

    @property
    def exit_code(self) -> int:
        """0: all is well; 3: something is not as it should be."""
        on = [alarm for alarm in self.alarms if alarm.over_unix_s is None]
        return EXIT_GOOD if self.state == READY and not on else EXIT_NO


def waiting_in_all(readings: Iterable[EngineReading]) -> int:
    """How many wait: engines of one model share one line, of which each tells the whole."""
    lines: dict[str, int] = {}
    for one in readings:
        lines[one.model_name] = max(one.waiting, lines.get(one.model_name, 0))
    return sum(lines.values())


def service_state(
    states: Sequence[str], *, draining: bool = False, reloading: bool = False
) -> ServiceState:
    """The service in one word, from the states of its engines. Pure."""
    if draining:
        return "draining"
    if reloading:
        return "reloading"
    ready = sum(state == READY for state in states)
    if ready:
        return "ready" if ready == len(states) else "degraded"
    if all(state in OUT_OF_SERVICE for state in states) and states:
        return "failed"
    return "starting" if any(state in NOT_YET for state in states) else "down"
