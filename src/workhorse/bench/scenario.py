"""The fixed protocol as a record, and prompts that no prefix cache can shorten."""

import random
import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import TypeVar

from workhorse.records import Conditions, Measurement, Run

U = TypeVar("U", bound=Hashable)

WORD = re.compile(r"[!-~]+\s*|[^!-~]")  # one English word, or one character of anything else
REQUESTS_A_COPY = 500  # the corpus begins differently at that many places with any tokenizer


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is asked of the service.

    `streams` requests run at the same time, `repeats` times over. Each sends `prompt_tokens`
    and generates `output_tokens`, with no early stop.
    """

    name: str
    prompt_tokens: int = 768
    output_tokens: int = 200
    streams: int = 1
    repeats: int = 3

    @property
    def requests(self) -> int:
        """Requests of the whole measurement, the one for warming up included."""
        return self.streams * self.repeats + 1

    @property
    def generated_tokens(self) -> int:
        """Tokens that the measured requests generate, all together."""
        return self.streams * self.repeats * self.output_tokens

    def measurement(self, runs: Sequence[Run], conditions: Conditions) -> Measurement:
        """The record of what happened; the runs say how long the prompts really were."""
        return Measurement(
            scenario=self.name,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            streams=self.streams,
            runs=tuple(runs),
            conditions=conditions,
        )


# The protocol behind every figure that the product prints by itself.
STANDARD = Scenario("standard")


def scenario_for(
    *,
    streams: int = STANDARD.streams,
    prompt_tokens: int = STANDARD.prompt_tokens,
    output_tokens: int = STANDARD.output_tokens,
    repeats: int = STANDARD.repeats,
) -> Scenario:
    """A scenario under its right name: only the standard sizes are called standard."""
    sizes = (prompt_tokens, output_tokens)
    standard = sizes == (STANDARD.prompt_tokens, STANDARD.output_tokens)
    return replace(
        STANDARD,
        name="standard" if standard else f"{prompt_tokens}+{output_tokens}",
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        streams=streams,
        repeats=repeats,
    )


def corpus(seed: int, requests: int) -> str:
    """Plain sentences in English and Chinese, in an order that only this seed gives.

    Another seed is another text, so that a second measurement does not meet the first one's
    cache. Long enough for `requests` prompts that begin differently.
    """
    lines = files("workhorse.bench").joinpath("corpus.txt").read_text(encoding="utf-8").split("\n")
    sentences = [line for line in lines if line]
    shuffled = random.Random(seed)  # noqa: S311 an order that can be repeated, not a secret
    text = ""
    for _ in range(1 + requests // REQUESTS_A_COPY):
        shuffled.shuffle(sentences)
        text += "".join(line + " " if line.isascii() else line for line in sentences)
    return text


def words(text: str) -> tuple[str, ...]:
    """The text cut into English words (with the space behind) and single other characters."""
    return tuple(WORD.findall(text))


def starts(units: Sequence[U], requests: int, seed: int) -> tuple[int, ...]:
    """Where to open the circle of `units`, once a request: places that begin differently first.

    Two prompts that share their first token let an engine reuse its work, which would make the
    second look faster than it is.
    """
    seen: set[U] = set()
    first: list[int] = []
    again: list[int] = []
    for place, unit in enumerate(units):
        (again if unit in seen else first).append(place)
        seen.add(unit)
    order = random.Random(seed)  # noqa: S311 see corpus
    order.shuffle(first)
    order.shuffle(again)
    places = (first + again)[:requests]
    if len(places) < requests:
        raise ValueError(f"{len(units)} units do not begin {requests} prompts differently")
    return tuple(places)


def token_prompts(
    tokens: Sequence[int], scenario: Scenario, seed: int, prefix: Sequence[int] = ()
) -> tuple[tuple[int, ...], ...]:
    """One prompt a request, each exactly `prompt_tokens` long, `prefix` (such as BOS) included."""
    length = max(0, scenario.prompt_tokens - len(prefix))
    circle = tuple(tokens) * (2 + length // len(tokens))
    return tuple(
        (*prefix, *circle[start : start + length])[: scenario.prompt_tokens]
        for start in starts(tokens, scenario.requests, seed)
    )


@dataclass(frozen=True, slots=True)
class TokenCost:
    """Tokens per character, for a service that does not show its tokenizer."""

    english: float
    other: float

    def of(self, word: str) -> float:
        """About how many tokens the word is."""
        return len(word) * (self.english if word.isascii() else self.other)


def text_prompts(text: str, scenario: Scenario, seed: int, cost: TokenCost) -> tuple[str, ...]:
    """One prompt a request, each about `prompt_tokens` long by `cost`, cut between words."""
    units = words(text)
    prompts = []
    for start in starts(units, scenario.requests, seed):
        chosen: list[str] = []
        length, place = 0.0, start
        while length < scenario.prompt_tokens:
            word = units[place % len(units)]
            chosen.append(word)
            length += cost.of(word)
            place += 1
        prompts.append("".join(chosen))
    return tuple(prompts)
