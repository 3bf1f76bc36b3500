"""What `bench --what` stands for: scenarios, what fits a service, how long it takes. Pure."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from workhorse.bench.scenario import STANDARD, Request, Scenario

What = Literal["standard", "ladder", "prompts", "depths", "chat", "prefix"]
EVERYTHING: tuple[What, ...] = get_args(What)

LADDER = (1, 2, 4, 8, 16, 32, 64, 128, 256)
LADDER_PROMPT_TOKENS, LADDER_OUTPUT_TOKENS = 256, 256
# Beyond the slots requests wait for each other: one step more shows that, further ones repeat it.
LADDER_WITHOUT_SLOTS = 16

PROMPTS_TOKENS = (128, 512, 1024, 2048, 4096, 8192)
PROMPTS_OUTPUT_TOKENS = 16  # enough to know that the answer began; the prompt is what is measured

DEPTHS_TOKENS = (512, 1024, 2048, 4096, 8192, 16384)
DEPTHS_OUTPUT_TOKENS = 64

PREFIX_TOKENS, PREFIX_SHARED_TOKENS, PREFIX_OUTPUT_TOKENS = 1024, 896, 32

CHAT_USERS, CHAT_TALKS = 4, 2  # talks of each user, one after the other
CHAT_SEED = 7
CHAT_TURNS = (1, 3)
# Lengths of messages and answers spread as people's do: many short ones, a few long ones (log
# normal). With these medians the means are those of LMSYS-Chat-1M: 69.5 tokens a prompt, 214.5
# an answer, 2 turns (arXiv 2309.11998, table 1; 2026-11).
CHAT_MESSAGE_TOKENS, CHAT_ANSWER_TOKENS = 50, 156
CHAT_SIGMA = 0.8
CHAT_MESSAGE_MOST, CHAT_ANSWER_MOST = 600, 400
CHAT_PAUSE_S, CHAT_PAUSE_MOST_S = 2.0, 6.0

# Where the context is not known a prompt of this length is still taken by every engine's default.
CONTEXT_UNKNOWN_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the user set; None: as the suite has it."""

    streams: tuple[int, ...] | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    repeats: int | None = None


def scenarios_for(
    what: Sequence[What], sizes: Sizes, *, slots: int | None, context_tokens: int | None
) -> tuple[Scenario, ...]:
    """The scenarios of the suites, in order; of lengths nobody set, those that a slot holds."""
    room = context_tokens or CONTEXT_UNKNOWN_TOKENS
    found: list[Scenario] = []
    for one in what:
        found += SUITES[one](sizes, slots, room)
    return tuple(found)


def standard(sizes: Sizes, slots: int | None, room: int) -> list[Scenario]:  # noqa: ARG001
    """The fixed protocol, or what the user made of it."""
    prompt = sizes.prompt_tokens or STANDARD.prompt_tokens
    output = sizes.output_tokens or STANDARD.output_tokens
    fixed = (prompt, output) == (STANDARD.prompt_tokens, STANDARD.output_tokens)
    name = "standard" if fixed else f"{prompt}+{output}"
    repeats = sizes.repeats or STANDARD.repeats
    return [Scenario(name, prompt, output, count, repeats) for count in sizes.streams or (1,)]


def ladder(sizes: Sizes, slots: int | None, room: int) -> list[Scenario]:
    """1, 2, 4, 8 … requests at a time, up to the slots and one step more."""
    prompt = sizes.prompt_tokens or min(LADDER_PROMPT_TOKENS, room // 2)
    output = sizes.output_tokens or min(LADDER_OUTPUT_TOKENS, room // 2)
    most = 2 * slots if slots else LADDER_WITHOUT_SLOTS
    counts = sizes.streams or tuple(count for count in LADDER if count <= max(4, most))
    return [Scenario("ladder", prompt, output, count, sizes.repeats or 3) for count in counts]


def prompts(sizes: Sizes, slots: int | None, room: int) -> list[Scenario]:  # noqa: ARG001
    """Prompts of several lengths: what prefill costs."""
    output = sizes.output_tokens or min(PROMPTS_OUTPUT_TOKENS, max(1, room // 4))
    return [
        Scenario("prompts", length, output, count, sizes.repeats or 3)
        for count in sizes.streams or (1,)
        for length in lengths(PROMPTS_TOKENS, sizes.prompt_tokens, room - output)
    ]


def depths(sizes: Sizes, slots: int | None, room: int) -> list[Scenario]:  # noqa: ARG001
    """Decoding behind contexts of several depths; the prompt is computed once and then kept."""
    output = sizes.output_tokens or min(DEPTHS_OUTPUT_TOKENS, max(1, room // 4))
    return [
        Scenario("depths", depth, output, 1, sizes.repeats or 3, shared_tokens=depth, cache=True)
        for depth in lengths(DEPTHS_TOKENS, sizes.prompt_tokens, room - output)
    ]


def lengths(usual: Sequence[int], told: int | None, room: int) -> tuple[int, ...]:
    """The told length, or the usual ones that fit; the room itself where none does."""
    if told is not None:
        return (told,)
    return tuple(length for length in usual if length <= room) or (max(1, room),)


def prefix(sizes: Sizes, slots: int | None, room: int) -> list[Scenario]:  # noqa: ARG001
    """The same lengths twice: prompts that share nothing, and such that share their beginning."""
    output = sizes.output_tokens or min(PREFIX_OUTPUT_TOKENS, max(1, room // 4))
    prompt = sizes.prompt_tokens or min(PREFIX_TOKENS, max(8, room - output))
    shared = prompt * PREFIX_SHARED_TOKENS // PREFIX_TOKENS
    repeats = sizes.repeats or 3
    return [
        Scenario("prefix", prompt, output, count, repeats, shared_tokens=part, cache=bool(part))
        for count in sizes.streams or (1,)
        for part in (0, shared)
    ]


def chat(sizes: Sizes, slots: int | None, room: int) -> list[Scenario]:  # noqa: ARG001
    """People who talk: messages, answers, turns and pauses of many lengths, the same each time."""
    return [talk_of(count, room) for count in sizes.streams or (CHAT_USERS,)]


def talk_of(users: int, room: int) -> Scenario:
    """A trace of chats. Each turn sends the whole talk so far, as chats do.

    What an answer said is replaced by text of the same length, so that the trace does not depend
    on the model: a cache can serve the talk up to the last answer.
    """
    draw = random.Random(CHAT_SEED)  # noqa: S311 a trace that can be repeated, not a secret
    requests: list[Request] = []
    for user in range(users):
        for talk in range(CHAT_TALKS):
            length = 0
            for turn in range(draw.randint(*CHAT_TURNS)):
                message = spread_length(draw, CHAT_MESSAGE_TOKENS, CHAT_MESSAGE_MOST)
                answer = spread_length(draw, CHAT_ANSWER_TOKENS, CHAT_ANSWER_MOST)
                pause_s = min(CHAT_PAUSE_MOST_S, draw.expovariate(1 / CHAT_PAUSE_S))
                if length + message + answer > room:
                    break
                text = user * CHAT_TALKS + talk
                # The first ones arrive one by one, too.
                wait_s = pause_s if user or talk or turn else 0.0
                requests.append(Request(user, text, length + message, answer, round(wait_s, 3)))
                length += message + answer
    if not requests:
        requests = [Request(user, user, room // 2, max(1, room // 4)) for user in range(users)]
    mean = sum(request.prompt_tokens for request in requests) // len(requests)
    output = sum(request.output_tokens for request in requests) // len(requests)
    return Scenario("chat", mean, output, users, 1, cache=True, talk=tuple(requests))


def spread_length(draw: random.Random, median_tokens: int, most: int) -> int:
    """One length of many."""
    return max(4, min(most, round(median_tokens * draw.lognormvariate(0, CHAT_SIGMA))))


SUITES = {
    "standard": standard,
    "ladder": ladder,
    "prompts": prompts,
    "depths": depths,
    "chat": chat,
    "prefix": prefix,
}


@dataclass(frozen=True, slots=True)
class Speeds:
    """What one first request showed of a service."""

    prefill_tokens_per_s: float
    decode_tokens_per_s: float


def expected_s(scenarios: Sequence[Scenario], speeds: Speeds) -> tuple[float, float]:
    """Least and most seconds: streams at once cost nothing, or as much as one after the other."""
    least = most = 0.0
    for scenario in scenarios:
        known = scenario.shared_tokens
        first_s = scenario.prompt_tokens / speeds.prefill_tokens_per_s
        least, most = least + first_s, most + first_s
        for one_round in scenario.rounds:
            each_s: dict[int, float] = {}
            waits_s: dict[int, float] = {}
            for request in one_round:
                computed = max(0, request.prompt_tokens - known)
                took_s = computed / speeds.prefill_tokens_per_s
                took_s += request.output_tokens / speeds.decode_tokens_per_s
                each_s[request.stream] = each_s.get(request.stream, 0.0) + took_s
                waits_s[request.stream] = waits_s.get(request.stream, 0.0) + request.wait_s
            longest_wait_s = max(waits_s.values())
            least += max(each_s.values()) + longest_wait_s
            most += sum(each_s.values()) + longest_wait_s
    return least, most
