"""What a job will take, before it begins and while it runs: tokens, hours, when it ends. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil

from workhorse.batch.capacity import Capacity, Range
from workhorse.batch.census import TokensAChar
from workhorse.batch.item import Usage
from workhorse.text import Text

# So many tokens an English word has in an answer (Qwen, Llama, SmolLM tokenizers, 2026-11).
TOKENS_A_WORD = 1.4
# Nothing known of the answers but their limit, which is generous: a label takes a fiftieth of it, a
# text more (templates that ship, tried 2026-12).
UNKNOWN_ANSWER = Range(0.02, 0.15, 1.0)
# Answers of another job with the same template: these documents' will differ a little.
LIKE_BEFORE = Range(0.8, 1.0, 1.25)
FROM_WORDS = Range(0.6, 1.0, 1.5)
# A job that did fewer documents taught nothing.
LEARN_FROM_ITEMS = 10
# What was forecast counts as much as the first share of the work, then what is seen outweighs it.
PRIOR_SHARE = 0.03


@dataclass(frozen=True, slots=True)
class Answers:
    """What the answers of a template take, a request or a share of the document's tokens."""

    tokens: Range
    of_document: bool  # `tokens` is for each token of the document
    source: Text


@dataclass(frozen=True, slots=True)
class Asking:
    """How a template asks: what its own words take, how much of a document fits a request."""

    prompt_tokens: int  # of instructions, the same in every request: the engine keeps them
    room_tokens: int  # of a document in one request


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is to be done and how long that takes; `seconds` None: no speed is known."""

    documents: int
    unreadable: int
    requests: int
    document_tokens: Range
    prompt_tokens: Range  # that are computed: what is cached is not in it
    output_tokens: Range
    seconds: Range | None
    counted_documents: int  # of which the tokens were counted
    answers_source: Text
    speed_source: Text
    streams: int


def expected_answers(
    *,
    answer_tokens: int,
    words: int | None,
    before: tuple[int, Usage] | None,
    share: Range | None,
) -> Answers:
    """From an earlier job of the template (items and what they took), else from its limits.

    `share`: for answers that grow with the document, of whose tokens they are about that share.
    """
    if before is not None and before[0] >= LEARN_FROM_ITEMS and before[1].requests:
        items, usage = before
        source = Text(
            f"{items} documents of an earlier job with this template",
            f"此前使用该模板的任务（{items} 篇文档）",
        )
        if share is not None and usage.prompt_tokens:
            part = usage.output_tokens / usage.prompt_tokens
            return Answers(LIKE_BEFORE.times(part), of_document=True, source=source)
        each = usage.output_tokens / usage.requests
        return Answers(LIKE_BEFORE.times(each), of_document=False, source=source)
    if share is not None:
        source = Text(
            f"{share.value:g} of the document's tokens, a guess",
            f"估计：文档 token 数的 {share.value:g} 倍",
        )
        return Answers(share, of_document=True, source=source)
    if words:
        tokens = min(answer_tokens, words * TOKENS_A_WORD)
        source = Text(f"the {words} words that are asked for", f"要求的 {words} 词")
        most = min(float(answer_tokens), tokens * FROM_WORDS.high)
        low = tokens * FROM_WORDS.low
        return Answers(Range(low, tokens, max(tokens, most)), of_document=False, source=source)
    source = Text(
        f"at most {answer_tokens} tokens each; how many is a guess",
        f"每个最多 {answer_tokens} token，实际长度为估计",
    )
    return Answers(UNKNOWN_ANSWER.times(answer_tokens), of_document=False, source=source)


def forecast(
    chars: Iterable[int],
    *,
    each: TokensAChar,
    asking: Asking,
    answers: Answers,
    capacity: Capacity | None,
    streams: int,
) -> Forecast:
    """The forecast for documents of these lengths; a length of 0 is one that cannot be read."""
    sizes = list(chars)
    lengths = [length for length in sizes if length]
    whole: list[tuple[int, float, float, float]] = []
    for share in (each.share.low, each.share.value, each.share.high):
        whole.append(_sum_of([length * share for length in lengths], asking, answers))
    requests = whole[1][0]
    # The instructions are computed once a slot; where the engine forgets them, each time.
    once = min(streams, requests) * asking.prompt_tokens
    prompt = Range(
        whole[0][2] + once, whole[1][2] + once, whole[2][2] + requests * asking.prompt_tokens
    )
    output = _output_of([length * each.share.value for length in lengths], asking, answers)
    return Forecast(
        documents=len(sizes),
        unreadable=len(sizes) - len(lengths),
        requests=requests,
        document_tokens=Range(whole[0][1], whole[1][1], whole[2][1]),
        prompt_tokens=prompt,
        output_tokens=output,
        seconds=None if capacity is None else capacity.seconds_range(prompt, output),
        counted_documents=each.counted,
        answers_source=answers.source,
        speed_source=NO_SPEED if capacity is None else capacity.source,
        streams=streams,
    )


NO_SPEED = Text(
    "not known: `workhorse bench --what ladder` measures it",
    "未知：可用 `workhorse bench --what ladder` 测量",
)


def pieces_of(tokens: float, asking: Asking) -> int:
    """Into how many requests a document goes; more than one is put together by one more."""
    return max(1, ceil(tokens / max(1, asking.room_tokens)))


def item_tokens(tokens: float, asking: Asking, answers: Answers) -> tuple[int, float, float]:
    """Requests of one document, and the tokens of its prompts and answers, as expected."""
    pieces = pieces_of(tokens, asking)
    if answers.of_document:
        return pieces, tokens, tokens * answers.tokens.value
    merged = pieces > 1
    requests = pieces + merged
    read_again = pieces * answers.tokens.value if merged else 0.0
    return requests, tokens + read_again, requests * answers.tokens.value


def _sum_of(
    tokens: Sequence[float], asking: Asking, answers: Answers
) -> tuple[int, float, float, float]:
    each = [item_tokens(one, asking, answers) for one in tokens]
    return (
        sum(one[0] for one in each),
        sum(tokens),
        sum(one[1] for one in each),
        sum(one[2] for one in each),
    )


def _output_of(tokens: Sequence[float], asking: Asking, answers: Answers) -> Range:
    value = _sum_of(tokens, asking, answers)[3]
    middle = answers.tokens.value
    if middle <= 0:
        return Range(0.0, 0.0, 0.0)
    return Range(value * answers.tokens.low / middle, value, value * answers.tokens.high / middle)


class TimeLeft:
    """How long a job still takes, learning from the documents that end.

    `expected_s`: of each document that has not ended yet, in the order of the input, in which they
    are begun; only their proportions count as soon as some have ended. `sure`: they are seconds,
    not mere proportions.
    """

    def __init__(self, expected_s: Iterable[float], *, sure: bool) -> None:
        self._until = list(accumulate(expected_s, initial=0.0))
        self._done = 0.0
        self._sure = sure

    def ended(self, count: int) -> None:
        """So many of these documents have come to their end, good or bad."""
        self._done = self._until[max(0, min(count, len(self._until) - 1))]

    def left_s(self, worked_s: float) -> float | None:
        """Seconds of work that are left after `worked_s`; None: nothing is known yet."""
        whole = self._until[-1]
        left = whole - self._done
        if left <= 0:
            return 0.0
        prior = PRIOR_SHARE * whole if self._sure else 0.0
        done = self._done + prior
        return left * (worked_s + prior) / done if done > 0 else None
