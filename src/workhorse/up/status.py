"""How a service is, in one document: what `status` shows and its exit code follows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from workhorse.errors import EXIT_GOOD, EXIT_NO
from workhorse.records import Alarm, EngineReading
from workhorse.serve.backend import READY
from workhorse.text import Text

ServiceState = Literal[
    "starting", "ready", "degraded", "down", "failed", "reloading", "draining", "silent"
]
GIVEN_UP = "given_up"
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
    if all(state == GIVEN_UP for state in states) and states:
        return "failed"
    return "starting" if any(state in NOT_YET for state in states) else "down"
