"""What a plan for vLLM or LMDeploy promises: the memory's ceiling and an honest band. Pure.

The constants of the speed model are llama.cpp's. Until something was measured here with the very
engine, the forecast takes them for the bytes and adds what a step of such an engine costs on top.
"""

from collections.abc import Sequence
from dataclasses import replace

from workhorse.plan.speed import Experience, Reader, Setup, forecast
from workhorse.plan.speed.forecast import capped, scaled
from workhorse.records import Estimate, Forecast, Machine, Model, StreamSpeed
from workhorse.text import Text

# Scheduling, sampling and the way between the processes, for each step, whatever the model: a
# two-layer model of 1 MB decodes 100 tok/s on two CPUs with vLLM 0.32.0 eager (2026-11). On a
# card graphs hide a part of it (estimated).
STEP_S = {"cpu": 0.010, "gpu": 0.004}
# Nobody has measured these engines here: half of it, or nearly half as much again.
LOW, HIGH = 0.5, 1.4
# Streams of one step share the weights and the step; each adds its KV and a little of its own.
STREAM_SHARE = 0.06
STREAMS = (1, 2, 4, 8, 16)
# Loading the libraries of such an engine took 44 s on two CPUs before the weights (2026-11).
START_S = {"cpu": 45.0, "gpu": 60.0}


def promise(
    model: Model,
    reader: Reader,
    setup: Setup,
    history: Sequence[Experience],
    machine: Machine,
    *,
    on_card: bool,
) -> Forecast:
    """The forecast; learned from the first measurement of this engine here on."""
    device = "gpu" if on_card else "cpu"
    plain = forecast(
        model,
        reader,
        kv_types=("f16", "f16"),
        setup=setup,
        history=history,
        disk=machine.disks[0] if machine.disks else None,
    )
    load = plain.load_s and replace(
        plain.load_s,
        value=plain.load_s.value + START_S[device],
        low=plain.load_s.low + START_S[device] * 0.5,
        high=plain.load_s.high + START_S[device] * 3,
        basis="estimated",
    )
    plain = replace(plain, load_s=load, drafted_tokens_per_s=None)
    if any(one.setup == setup for one in history):
        return plain
    return estimated(plain, STEP_S[device])


def estimated(plain: Forecast, step_s: float) -> Forecast:
    """The forecast of another engine's constants, each step longer by `step_s`."""
    decode, bytes_alone = plain.decode_tokens_per_s, plain.uncorrected_tokens_per_s
    source = Text(
        f"bytes over the memory's bandwidth and {step_s * 1000:.0f} ms a step; nothing was "
        "measured here with this engine yet",
        f"权重字节 ÷ 带宽，另加每步 {step_s * 1000:.0f} 毫秒；本机尚无该引擎的实测",
    )

    def estimate(value: float) -> Estimate:
        return Estimate(value, value * LOW, value * HIGH, "tok/s", "estimated", source)

    def guessed(other: Estimate, factor: float) -> Estimate:
        return estimate(scaled(other, factor).value)

    plain = replace(plain, prefill_tokens_per_s=guessed(plain.prefill_tokens_per_s, 1.0))
    if decode is None or bytes_alone is None:
        return plain  # the bandwidth is not known
    whole_s = 1 / bytes_alone + step_s
    ceiling = plain.ceiling_tokens_per_s.value if plain.ceiling_tokens_per_s else 1 / whole_s
    one = capped(estimate(1 / whole_s), ceiling)
    each = {n: 1 / (whole_s * (1 + STREAM_SHARE * (n - 1))) for n in STREAMS}
    share = one.value / decode.value
    return replace(
        plain,
        decode_tokens_per_s=one,
        streams=tuple(
            StreamSpeed(n, estimate(value), estimate(value * n)) for n, value in each.items()
        ),
        prompts=tuple(replace(p, tokens_per_s=guessed(p.tokens_per_s, 1.0)) for p in plain.prompts),
        depths=tuple(replace(d, tokens_per_s=guessed(d.tokens_per_s, share)) for d in plain.depths),
        terms=(),
    )
