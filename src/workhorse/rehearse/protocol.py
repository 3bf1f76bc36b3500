"""What is asked of the twins, and how far along that is. Pure."""

from dataclasses import dataclass, replace

from workhorse.bench.scenario import STANDARD, Scenario, scenario_for
from workhorse.records import Plan

# Medians of at least three, taken in turn, so that a machine that gets busy slows all twins alike.
ROUNDS = 3
OUTPUT_TOKENS = 64
DEEP_PROMPT_TOKENS = 2304  # three times the standard prompt
DEEP_OUTPUT_TOKENS = 24
STREAMS_OUTPUT_TOKENS = 32
STREAMS_PROMPT_TOKENS = 128
STREAMS_MAX = 4
# One generated token takes about as long as this many tokens of a prompt (CPUs, 2026-11).
DECODE_COST = 5


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

    def cost(self, layers: int) -> int:
        """How long one twin takes, in tokens of a prompt through one layer; for a progress bar."""
        total = 0
        for scenario in self.steps:
            once = scenario.prompt_tokens * scenario.streams
            prompts = 1 if scenario == self.deep else scenario.repeats
            decoded = scenario.output_tokens * scenario.repeats * DECODE_COST * scenario.streams
            total += once * prompts + decoded
        return (total + self.standard.prompt_tokens) * layers  # and the one for warming up


def protocol_for(plan: Plan, *, quick: bool) -> Protocol:
    """The protocol within the plan's context and slots; `quick` leaves depth and streams out."""
    context = plan.context_tokens
    standard = STANDARD.prompt_tokens
    if context < standard + OUTPUT_TOKENS:
        standard = max(1, context // 2)
    first = scenario_for(
        prompt_tokens=standard,
        output_tokens=min(OUTPUT_TOKENS, max(2, context - standard)),
        repeats=ROUNDS,
    )
    deep = streams = None
    if not quick and context >= DEEP_PROMPT_TOKENS + DEEP_OUTPUT_TOKENS:
        deep = scenario_for(
            prompt_tokens=DEEP_PROMPT_TOKENS, output_tokens=DEEP_OUTPUT_TOKENS, repeats=ROUNDS
        )
        deep = replace(deep, name="deep")
    room = context >= STREAMS_PROMPT_TOKENS + STREAMS_OUTPUT_TOKENS
    if not quick and plan.slots > 1 and room:
        streams = scenario_for(
            streams=min(plan.slots, STREAMS_MAX),
            prompt_tokens=STREAMS_PROMPT_TOKENS,
            output_tokens=STREAMS_OUTPUT_TOKENS,
            repeats=ROUNDS,
        )
        streams = replace(streams, name="streams")
    return Protocol(first, deep, streams)
