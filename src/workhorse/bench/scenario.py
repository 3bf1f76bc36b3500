"""What is asked of a service as a record, and prompts that no prefix cache can shorten. Pure."""

import random
import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import TypeVar

from workhorse.records import Conditions, Measurement, Run

U = TypeVar("U", bound=Hashable)
Prompt = Sequence[int] | str

WORD = re.compile(r"[!-~]+\s*|[^!-~]")  # one English word, or one character of anything else
REQUESTS_A_COPY = 500  # the corpus begins differently at that many places with any tokenizer


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a round.

    The requests of one `stream` follow each other, `wait_s` after the end of the one before;
    streams run at the same time. Prompts of the same `text` are one text, cut at their lengths.
    """

    stream: int
    text: int
    prompt_tokens: int
    output_tokens: int
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is asked of the service.

    `streams` requests run at the same time, `repeats` times over. Each sends `prompt_tokens`
    and generates `output_tokens`, with no early stop. All prompts begin with the same
    `shared_tokens`; `cache` asks the service to reuse what it has computed.
    """

    name: str
    prompt_tokens: int = 768
    output_tokens: int = 200
    streams: int = 1
    repeats: int = 3
    shared_tokens: int = 0
    cache: bool = False
    talk: tuple[Request, ...] = ()  # the only round, where requests differ; see `chat`

    @property
    def rounds(self) -> tuple[tuple[Request, ...], ...]:
        """The requests, round by round."""
        if self.talk:
            return (self.talk,)
        sizes = (self.prompt_tokens, self.output_tokens)
        return tuple(
            tuple(Request(i, number * self.streams + i, *sizes) for i in range(self.streams))
            for number in range(self.repeats)
        )

    @property
    def texts(self) -> int:
        """Prompts that begin differently, the one for warming up and the shared one included."""
        told = 1 + max(request.text for request in self.talk) if self.talk else 0
        return (told or self.streams * self.repeats) + 1 + bool(self.shared_tokens)

    @property
    def requests(self) -> int:
        """Requests of the whole measurement, the one for warming up included."""
        return (len(self.talk) or self.streams * self.repeats) + 1

    @property
    def generated_tokens(self) -> int:
        """Tokens that the measured requests generate, all together."""
        return sum(request.output_tokens for one in self.rounds for request in one)

    @property
    def longest_tokens(self) -> int:
        """Prompt and answer of the longest request: what a slot must hold."""
        return max(r.prompt_tokens + r.output_tokens for one in self.rounds for r in one)

    def measurement(
        self, runs: Sequence[Run], conditions: Conditions, seed: int | None = None
    ) -> Measurement:
        """The record of what happened; the runs say how long the prompts really were."""
        return Measurement(
            scenario=self.name,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            streams=self.streams,
            runs=tuple(runs),
            conditions=conditions,
            shared_tokens=self.shared_tokens,
            cache_asked=self.cache,
            seed=seed,
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


def prompts_of(scenario: Scenario, cut: Callable[[int, int], Prompt]) -> tuple[Prompt, ...]:
    """One prompt a request, in their order, the one for warming up last.

    `cut(text, n_tokens)` gives the first tokens of a text.
    """
    asked = [request for one_round in scenario.rounds for request in one_round]
    return (
        *(cut(request.text, request.prompt_tokens) for request in asked),
        cut(scenario.texts - 1, scenario.prompt_tokens),
    )


def token_prompts(
    tokens: Sequence[int], scenario: Scenario, seed: int, prefix: Sequence[int] = ()
) -> tuple[Prompt, ...]:
    """Prompts of exactly the asked lengths, `prefix` (such as BOS) included."""
    places = starts(tokens, scenario.texts, seed)
    circle = tuple(tokens) * (2 + scenario.longest_tokens // len(tokens))
    common = circle[places[-2] :][: scenario.shared_tokens] if scenario.shared_tokens else ()

    def cut(text: int, n_tokens: int) -> Prompt:
        begin = (*prefix, *common[: max(0, scenario.shared_tokens - len(prefix))])[:n_tokens]
        return begin + circle[places[text] : places[text] + n_tokens - len(begin)]

    return prompts_of(scenario, cut)


@dataclass(frozen=True, slots=True)
class TokenCost:
    """Tokens per character, for a service that does not show its tokenizer.

    `always`: what every prompt costs besides, such as a chat template.
    """

    english: float
    other: float
    always: float = 0.0

    def of(self, word: str) -> float:
        """About how many tokens the word is."""
        return len(word) * (self.english if word.isascii() else self.other)


class Texts:
    """The texts of a scenario: the corpus, opened at another place for each."""

    def __init__(self, text: str, scenario: Scenario, seed: int, cost: TokenCost) -> None:
        self._units = words(text)
        self._places = starts(self._units, scenario.texts, seed)
        self._cost = cost
        self.common = len(self._places) - 2  # with which all prompts begin, where they share one

    def first(self, text: int, n_tokens: float) -> str:
        """The words of a text that are about so many tokens by their cost."""
        length, place = 0.0, self._places[text]
        chosen: list[str] = []
        while length < n_tokens:
            word = self._units[place % len(self._units)]
            chosen.append(word)
            length += self._cost.of(word)
            place += 1
        return "".join(chosen)


def text_prompts(text: str, scenario: Scenario, seed: int, cost: TokenCost) -> tuple[Prompt, ...]:
    """Prompts of about the asked lengths by `cost`, cut between words."""
    texts, shared = Texts(text, scenario, seed, cost), scenario.shared_tokens
    common = texts.first(texts.common, shared - cost.always) if shared else ""
    rest = max(shared, cost.always)
    return prompts_of(scenario, lambda number, n: common + texts.first(number, n - rest))
