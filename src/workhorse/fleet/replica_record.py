"""What a node remembers of a replica between its starts: how it ended, how fast it was."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from workhorse.codec import from_json, to_json, to_line
from workhorse.errors import AppError
from workhorse.fleet.first_speeds import Speeds
from workhorse.records import Plan
from workhorse.run.policy import STEADY_S, next_delay_s
from workhorse.text import Text
from workhorse.units import MIB

LARGEST_BYTES = MIB
MOST_DEATHS = 20


@dataclass(frozen=True, slots=True)
class ReplicaRecord:
    """One replica by one plan on this node."""

    plan: str  # its digest
    deaths_unix_s: tuple[float, ...] = ()  # since it last ran steadily, the newest last
    reason: Text | None = None  # of the last one
    speeds: Speeds | None = None  # as they were measured


def digest_of(plan: Plan) -> str:
    """A plan's fingerprint."""
    return sha256(to_line(plan).encode()).hexdigest()


def after_death(
    record: ReplicaRecord, now_unix_s: float, ran_s: float, reason: Text
) -> ReplicaRecord:
    """The record once the engine has ended, `ran_s` after it was ready. Pure."""
    before: Sequence[float] = () if ran_s >= STEADY_S else record.deaths_unix_s
    deaths = (*before, now_unix_s)[-MOST_DEATHS:]
    return replace(record, deaths_unix_s=deaths, reason=reason)


def delay_s(record: ReplicaRecord, now_unix_s: float) -> float | None:
    """How long to wait before the next start; None: it is a crash loop. Pure."""
    # A clock that was set back must not make it wait for hours.
    deaths = [min(one, now_unix_s) for one in record.deaths_unix_s]
    return next_delay_s(deaths, now_unix_s)


def path_of(folder: Path, name: str) -> Path:
    """Where a replica is written down."""
    return folder / f"replica-{name}.json"


def read_record(folder: Path, name: str, plan: Plan) -> ReplicaRecord:
    """What is remembered of this replica by this plan; nothing of it by another."""
    fresh = ReplicaRecord(digest_of(plan))
    try:
        path = path_of(folder, name)
        if path.stat().st_size > LARGEST_BYTES:
            return fresh
        found = from_json(ReplicaRecord, path.read_text(encoding="utf-8"), what="replica record")
    except (OSError, UnicodeDecodeError, AppError):
        return fresh
    return found if found.plan == fresh.plan else fresh


def write_record(folder: Path, name: str, record: ReplicaRecord) -> None:
    """Write it whole or not at all; a full disk must not end a replica."""
    path = path_of(folder, name)
    new = path.with_suffix(f".{os.getpid()}.new")
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        new.write_text(to_json(record), encoding="utf-8")
        new.replace(path)
    except OSError:
        with suppress(OSError):
            new.unlink()
