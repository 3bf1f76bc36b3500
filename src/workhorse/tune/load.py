"""What is asked of an engine in one round of a trial, and the figure that comes of it. Pure."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from workhorse.bench.scenario import STANDARD, Scenario, scenario_for
from workhorse.bench.stats import (
    decode_tokens_per_s,
    known,
    prefill_tokens_per_s,
    total_tokens_per_s,
)
from workhorse.plan.memory import device_bytes
from workhorse.records import Machine, Plan, Run
from workhorse.tune.trial import Goal

# A round is long enough that the arrival of one token does not matter, and short enough that what
# disturbs a machine falls into few of them.
ROUND_S = 1.0
# The prompt is read once after each start and then kept; so long may that take.
PROMPT_S = 5.0
# Where each round has a prompt of its own it is read in each.
OWN_PROMPT_S = 0.5
PROMPTS_TOKENS = (STANDARD.prompt_tokens, 512, 256, 128, 64)
LEAST_OUTPUT_TOKENS, MOST_OUTPUT_TOKENS = 24, STANDARD.output_tokens
# Several streams: short documents and answers, as they come in batches.
STREAMS_PROMPT_TOKENS = 128
# A prompt longer than the largest batch that is tried, where time allows it.
PREFILL_PROMPT_TOKENS = 2048
PREFILL_OUTPUT_TOKENS = 2
# Where nothing is known of the machine's memory: a slow one.
DECODE_TOKENS_PER_S = 3.0
# An engine that needs so many times what was forecast for a round hangs.
PATIENCE_TIMES, LEAST_PATIENCE_S = 20.0, 180.0
# Of what is free, the share that two engines may take together.
MEMORY_SHARE = 0.9


def scenario_for_goal(
    plan: Plan,
    goal: Goal,
    streams: int,
    seen_tokens_per_s: float | None = None,
    *,
    prompt_s: float = PROMPT_S,
) -> Scenario:
    """One round for a goal, about as long as `ROUND_S` by the plan's own forecast.

    `prompt_s` is what reading the prompt may take where only the answer is timed.

    `streams` is the number of slots of the plan that has more of them; only `total` uses it.
    `seen_tokens_per_s`: what decode was here, where that is less than was forecast.
    """
    prefill, decode = speeds(plan)
    decode = min(decode, seen_tokens_per_s or decode)
    if goal == "prefill":
        room = max(1, plan.context_tokens - PREFILL_OUTPUT_TOKENS)
        most = min(PREFILL_PROMPT_TOKENS, room)
        length = max(min(PROMPTS_TOKENS[-1], room), min(most, int(prefill * 2 * ROUND_S)))
        return named(goal, scenario_for(prompt_tokens=length, output_tokens=PREFILL_OUTPUT_TOKENS))
    if goal == "total":
        room = plan.context_tokens
        prompt = min(STREAMS_PROMPT_TOKENS, max(1, room // 2))
        left_s = max(ROUND_S, 2 * ROUND_S - streams * prompt / prefill)
        output = bounded(int(decode * left_s), room - prompt)
        return named(
            goal, scenario_for(streams=streams, prompt_tokens=prompt, output_tokens=output)
        )
    output = bounded(int(decode * ROUND_S), plan.context_tokens // 2)
    room = plan.context_tokens - output
    fitting = [n for n in PROMPTS_TOKENS if n <= room and n / prefill <= prompt_s]
    prompt = fitting[0] if fitting else max(1, min(PROMPTS_TOKENS[-1], room))
    return named(goal, scenario_for(prompt_tokens=prompt, output_tokens=output))


def round_s(plan: Plan, scenario: Scenario, seen_tokens_per_s: float | None = None) -> float:
    """About how long a round takes, by the plan's forecast and what decode was here."""
    prefill, decode = speeds(plan)
    decode = min(decode, seen_tokens_per_s or decode)
    read_s = 0.0 if scenario.name == "decode" else scenario.streams * scenario.prompt_tokens
    return read_s / prefill + scenario.output_tokens / decode


def named(goal: Goal, scenario: Scenario) -> Scenario:
    """The scenario under the goal's name; a trial counts its rounds itself."""
    return replace(scenario, name=goal, repeats=1)


def bounded(tokens: int, room_tokens: int) -> int:
    """An answer's length within what is measurable, customary and possible."""
    wanted = min(MOST_OUTPUT_TOKENS, max(LEAST_OUTPUT_TOKENS, tokens))
    return max(2, min(wanted, room_tokens))


def speeds(plan: Plan) -> tuple[float, float]:
    """Prefill and decode by the plan's forecast, in tokens a second."""
    decode = plan.forecast.decode_tokens_per_s
    return (
        max(1.0, plan.forecast.prefill_tokens_per_s.value),
        DECODE_TOKENS_PER_S if decode is None else max(0.1, decode.value),
    )


def patience_s(plan: Plan, scenario: Scenario) -> float:
    """After how many seconds a round without an end is a hang."""
    prefill, decode = speeds(plan)
    streams = scenario.streams
    expected_s = streams * (scenario.prompt_tokens / prefill + scenario.output_tokens / decode)
    return max(LEAST_PATIENCE_S, PATIENCE_TIMES * expected_s)


def speed_of(goal: Goal, runs: Sequence[Run]) -> float | None:
    """The goal's tokens a second in one round; None when the answers do not show it."""
    if goal == "total":
        return total_tokens_per_s(runs)
    one = decode_tokens_per_s if goal == "decode" else prefill_tokens_per_s
    values = known(map(one, runs))
    return median(values) if values else None


def both_fit(machine: Machine, first: Plan, second: Plan) -> bool:
    """Whether two engines can be loaded at a time; the machine as it was before either.

    One whose memory is not known is taken to be too small: engines then take turns.
    """
    rooms: dict[str, int | None] = {"RAM": machine.memory.available_bytes}
    limit, used = machine.limits.memory_bytes, machine.limits.memory_used_bytes or 0
    if limit is not None and rooms["RAM"] is not None:
        rooms["RAM"] = min(rooms["RAM"], limit - used)
    rooms |= {f"GPU {gpu.index}": gpu.memory_free_bytes for gpu in machine.gpus}
    devices = {line.device for plan in (first, second) for line in plan.budget}
    return all(
        (room := rooms.get(device)) is not None
        and device_bytes(first.budget, device) + device_bytes(second.budget, device)
        <= room * MEMORY_SHARE
        for device in devices
    )
