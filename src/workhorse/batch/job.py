"""A job: which documents, what is to be done with them, where the results go, when it may run."""

from typing import Any, Literal

import msgspec

JobState = Literal["running", "stopped", "cancelled", "done"]
OutputForm = Literal["jsonl", "csv", "xlsx", "folder", "openai"]


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """A span of the day, local time, in minutes since midnight; it may reach over midnight."""

    begin_min: int
    end_min: int


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How much of the service the job may take, and when."""

    streams: int | None = None  # at most so many requests at once; None: what measures best
    yield_to_chat: bool = False  # keep slots free while people chat
    windows: tuple[Window, ...] = ()  # none: at any time


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What the ledger keeps of a job's order; it does not change any more."""

    template: str  # the name of a template, "request" for requests as they are
    definition: str | None  # the template's whole TOML at that time; None for requests
    language: Literal["en", "zh", "auto"] = "auto"
    options: dict[str, Any] = {}  # of the template, checked
    input: str  # as given: a folder, a file
    output: str | None  # a file or a folder; None: kept in the ledger only (OpenAI's API)
    form: OutputForm = "jsonl"
    url: str
    model: str | None = None
    attempts: int = 3  # of an item, by its own fault
    pace: Pace = Pace()
    owner: str | None = None  # the key that ordered it over HTTP; None: the command line


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """How many items of a job stand where."""

    waiting: int = 0
    leased: int = 0
    done: int = 0
    failed: int = 0
    cancelled: int = 0

    @property
    def all(self) -> int:
        """Every item of the job."""
        return self.waiting + self.leased + self.done + self.failed + self.cancelled

    @property
    def ended(self) -> int:
        """Those that have come to an end, good or bad."""
        return self.done + self.failed + self.cancelled


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A job as the ledger has it."""

    id: str  # short, for people to type
    job: Job
    state: JobState
    cancelling: bool  # somebody asked its runner to end it
    created_unix_s: float
    ended_unix_s: float | None
    counts: Counts
    extra: dict[str, Any] = {}  # what OpenAI's API keeps with it
