"""Keeps a rehearsal for the plans to come."""

from datetime import UTC, datetime
from pathlib import Path

from workhorse.plan.rehearsed import Rehearsed, setup_of
from workhorse.records import Model, Plan
from workhorse.rehearse.result import Rehearsal
from workhorse.store import Store


def keep_rehearsal(store: Path, model: Model, plan: Plan, found: Rehearsal) -> None:
    """Store what the twins said of this model under the plan's setup. AppError as `Store`."""
    decode = found.forecast.decode_tokens_per_s
    if decode is None:
        return
    streams = next((s for s in found.forecast.streams if s.streams == found.streams), None)
    rehearsed = Rehearsed(
        model.name,
        model.quantisation,
        model.weight_bytes,
        setup_of(plan),
        decode,
        found.forecast.prefill_tokens_per_s,
        streams,
    )
    Store(store).add_rehearsed(rehearsed, datetime.now(UTC).isoformat(timespec="seconds"))
