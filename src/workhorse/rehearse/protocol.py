"""What is asked of the twins, and how far along that is. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from workhorse.bench.scenario import STANDARD, Scenario, scenario_for
from workhorse.records import Plan

# Medians of at least three, taken in turn, so that a machine that gets busy slows all twins alike.
ROUNDS = 3
# Rounds that differ are followed by more of them, as long as the time allows.
MOST_ROUNDS = 7
# Prompts of the standard scenario, longest first: the longest one that leaves the whole rehearsal
# within the time that a user waits for. A speed of prefill hardly depends on it.
PROMPTS_TOKENS = (STANDARD.prompt_tokens, 512, 256, 128)
OUTPUT_TOKENS = 64
DEEP_TIMES = 3  # the deep prompt is that many standard ones
DEEP_OUTPUT_TOKENS = 24
STREAMS_MAX = 4
STREAMS_OUTPUT_TOKENS = 32
WAIT_S = 130.0
# One generated token takes about as long as this many tokens of a prompt (CPUs, 2026-11).
DECODE_COST = 5
# Where nothing is known of the machine's memory: a slow one.
DECODE_TOKENS_PER_S = 3.0


@dataclass(frozen=True, slots=True)
class Protocol:
    """The scenarios of a rehearsal; None: left out."""

    standard: Scenario
    deep: Scenario | None
    streams: Scenario | None

    @property
    def steps(self) -> tuple[Scenario, ...]:
        """Every scenario that is measured."""
        return tuple(s for s in (self.standard, self.deep, self.streams) if s is not None)

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens that one twin computes; the one for warming up counts too."""
        return self.standard.prompt_tokens + sum(
            scenario.prompt_tokens
            * scenario.streams
            * (1 if scenario == self.deep else scenario.repeats)
            for scenario in self.steps
        )

    @property
    def output_tokens(self) -> int:
        """Tokens that one twin generates."""
        return sum(scenario.generated_tokens for scenario in self.steps)

    def cost(self, layers: int) -> int:
        """How long one twin takes, in tokens of a prompt through one layer; for a progress bar."""
        return (self.prompt_tokens + self.output_tokens * DECODE_COST) * layers

    def round_cost(self, scenario: Scenario, number: int) -> int:
        """The part of `cost` that one round of a scenario is, for one layer."""
        fresh = scenario != self.deep or number == 0
        prompt_tokens = scenario.prompt_tokens * fresh
        return (prompt_tokens + scenario.output_tokens * DECODE_COST) * scenario.streams

    def seconds(self, plan: Plan, share: float) -> float:
        """How long twins take that have this share of the model's layers together."""
        decode = plan.forecast.decode_tokens_per_s
        speed = decode.value if decode is not None else DECODE_TOKENS_PER_S
        prefill = plan.forecast.prefill_tokens_per_s.value
        return share * (self.prompt_tokens / prefill + self.output_tokens / speed)


def protocol_for(plan: Plan, share: float, *, quick: bool) -> Protocol:
    """The richest protocol within the plan's context and slots and a user's patience.

    `share` is that of the model's layers that all twins have together; `quick` leaves depth and
    streams out.
    """
    found = list(protocols(plan, quick=quick))
    return next((p for p in found if p.seconds(plan, share) <= WAIT_S), found[-1])


def protocols(plan: Plan, *, quick: bool) -> Iterator[Protocol]:
    """Every protocol that the plan allows, the longest first."""
    context = plan.context_tokens
    for wanted in PROMPTS_TOKENS:
        prompt = wanted if context >= wanted + OUTPUT_TOKENS else max(1, context // 2)
        output = min(OUTPUT_TOKENS, max(2, context - prompt))
        standard = scenario_for(prompt_tokens=prompt, output_tokens=output, repeats=ROUNDS)
        deep = streams = None
        if not quick and context >= prompt * DEEP_TIMES + DEEP_OUTPUT_TOKENS:
            deep = scenario_for(
                prompt_tokens=prompt * DEEP_TIMES, output_tokens=DEEP_OUTPUT_TOKENS, repeats=ROUNDS
            )
            deep = replace(deep, name="deep")
        short = max(1, prompt // 6)
        if not quick and plan.slots > 1 and context >= short + STREAMS_OUTPUT_TOKENS:
            streams = scenario_for(
                streams=min(plan.slots, STREAMS_MAX),
                prompt_tokens=short,
                output_tokens=STREAMS_OUTPUT_TOKENS,
                repeats=ROUNDS,
            )
            streams = replace(streams, name="streams")
        yield Protocol(standard, deep, streams)
