"""What a rehearsal found: a forecast from twins, and the figures behind it. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from workhorse.bench.scenario import STANDARD
from workhorse.records import Estimate, Forecast, Plan, StreamSpeed
from workhorse.rehearse.extrapolate import Cost, cost_at, whole_cost
from workhorse.rehearse.protocol import Protocol
from workhorse.rehearse.times import TwinTimes
from workhorse.rehearse.twin import TwinPlan
from workhorse.text import Text

# An interval wider than that, as a share of the figure, came from other load and not from here.
WIDEST_KEPT = 0.5


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """A model's speed on this machine, known before its weights are here."""

    model_name: str
    quantisation: str
    layers: int
    twin_layers: tuple[int, ...]
    twin_bytes: int  # on the disk while it ran
    forecast: Forecast
    depth_tokens: int  # of the prompt that the next token was decoded after
    first_token_s: Estimate  # of a prompt of 768 tokens
    deep_tokens: int | None  # the depth of the next figure; None: not measured
    deep_tokens_per_s: Estimate | None
    streams: int | None
    streams_tokens_per_s: Estimate | None  # of all streams together, while they decode
    times: tuple[TwinTimes, ...]  # raw, a value a round

    @property
    def steady(self) -> bool:
        """False when the rounds differ so much that the forecast is not worth keeping."""
        decode, prefill = self.forecast.decode_tokens_per_s, self.forecast.prefill_tokens_per_s
        return all(
            (figure.high - figure.low) / figure.value <= WIDEST_KEPT
            for figure in (decode, prefill)
            if figure is not None
        )


def conclude(
    plan: Plan,
    quantisation: str,
    twins: TwinPlan,
    protocol: Protocol,
    times: Sequence[TwinTimes],
) -> Rehearsal:
    """The forecast that the twins' times lead to. AppError when they lead nowhere (noise)."""
    source = basis_words(twins)

    def cost(samples: Sequence[Sequence[float]], size: float, sizes: Sequence[float]) -> Cost:
        if twins.whole:
            return whole_cost(samples[0])
        return cost_at(size, (sizes[0], sizes[1]), samples[0], samples[1])

    read = [twin.layers_read_bytes for twin in twins.twins]

    def decode(samples: Sequence[Sequence[float]], streams: int = 1) -> Estimate | None:
        if not all(samples):
            return None
        return speed(cost(samples, twins.layers_read_bytes, read), streams, source)

    prompt = cost(
        [one.prompt_s for one in times], twins.layers, [len(twin.layers) for twin in twins.twins]
    )
    standard, deep, streams = protocol.standard, protocol.deep, protocol.streams
    together: list[StreamSpeed] = []
    if streams is not None:
        samples = [one.streams_token_s for one in times]
        each, total = decode(samples), decode(samples, streams.streams)
        if each is not None and total is not None:
            together = [StreamSpeed(streams.streams, each, total)]
    forecast = replace(
        plan.forecast,
        decode_tokens_per_s=decode([one.token_s for one in times]),
        prefill_tokens_per_s=speed(prompt, standard.prompt_tokens, source),
        streams=tuple(together),
        prompts=(),
        terms=(),
    )
    return Rehearsal(
        model_name=plan.model_name,
        quantisation=quantisation,
        layers=twins.layers,
        twin_layers=tuple(len(twin.layers) for twin in twins.twins),
        twin_bytes=twins.n_bytes,
        forecast=forecast,
        depth_tokens=standard.prompt_tokens,
        first_token_s=first_token(prompt, standard.prompt_tokens, source),
        deep_tokens=deep.prompt_tokens if deep else None,
        deep_tokens_per_s=decode([one.deep_token_s for one in times]),
        streams=streams.streams if streams else None,
        streams_tokens_per_s=together[0].total_tokens_per_s if together else None,
        times=tuple(times),
    )


def speed(cost: Cost, tokens: int, source: Text) -> Estimate:
    """Tokens a second from what `tokens` of them cost."""
    return Estimate(
        tokens / cost.seconds, tokens / cost.high_s, tokens / cost.low_s, "tok/s", "twin", source
    )


def first_token(cost: Cost, tokens: int, source: Text) -> Estimate:
    """Seconds to the first token of the standard prompt, from a prompt that was perhaps shorter."""
    times = STANDARD.prompt_tokens / tokens
    return Estimate(
        cost.seconds * times, cost.low_s * times, cost.high_s * times, "s", "twin", source
    )


def basis_words(twins: TwinPlan) -> Text:
    """Which twins the figures come from."""
    counts = [len(twin.layers) for twin in twins.twins]
    if twins.whole:
        return Text(
            f"random weights in all {counts[0]} layers, measured here",
            f"全部 {counts[0]} 层填充随机权重，本机实测",
        )
    return Text(
        f"twins of {counts[0]} and {counts[1]} of {twins.layers} layers, measured here",
        f"{twins.layers} 层中取 {counts[0]} 层和 {counts[1]} 层的缩小模型，本机实测",
    )
