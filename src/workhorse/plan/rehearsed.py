"""A plan's forecast with what twins of the model have shown on this machine. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from workhorse.plan.speed import Experience, Setup, same_model, setup_for
from workhorse.records import Estimate, Model, Plan, StreamSpeed


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """The speed of one model under one setup, from its twins."""

    model_name: str
    quantisation: str
    weight_bytes: int
    setup: Setup
    decode_tokens_per_s: Estimate
    prefill_tokens_per_s: Estimate
    streams: StreamSpeed | None = None


def setup_of(plan: Plan) -> Setup:
    """The setup that a plan's figures hold for."""
    return setup_for(plan.engine, plan.device, huge_pages=plan.huge_pages, threads=plan.threads)


def with_rehearsed(
    plan: Plan, model: Model, rehearsed: Sequence[Rehearsed], history: Sequence[Experience] = ()
) -> Plan:
    """The plan with the latest rehearsal of this model, `rehearsed` being newest first.

    What the model itself was measured at here is better still, and stays.
    """
    setup = setup_of(plan)
    if same_model(model, setup, history):
        return plan
    key = (model.name, model.quantisation, model.weight_bytes, setup)
    for one in rehearsed:
        if (one.model_name, one.quantisation, one.weight_bytes, one.setup) == key:
            measured = {s.streams: s for s in (one.streams,) if s is not None}
            alone = StreamSpeed(1, one.decode_tokens_per_s, one.decode_tokens_per_s)
            forecast = replace(
                plan.forecast,
                decode_tokens_per_s=one.decode_tokens_per_s,
                prefill_tokens_per_s=one.prefill_tokens_per_s,
                streams=tuple(
                    ({1: alone} | measured).get(speed.streams, speed)
                    for speed in plan.forecast.streams
                ),
            )
            return replace(plan, forecast=forecast)
    return plan
