"""The forecast of a job: documents are counted with the model's tokenizer, the rest is reckoned."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from workhorse.batch.capacity import Range
from workhorse.batch.census import Census, TokensAChar, tokens_a_char
from workhorse.batch.concurrency import Room
from workhorse.batch.forecast import (
    Answers,
    Asking,
    Forecast,
    expected_answers,
    forecast,
    item_tokens,
)
from workhorse.batch.item import Usage
from workhorse.batch.job import Job, JobRecord
from workhorse.batch.ledger import Ledger
from workhorse.batch.survey import Offer
from workhorse.batch.template import Template, read_template
from workhorse.bench.service import Service
from workhorse.bench.tokenizer import COUNTS_AT_ONCE, tokenize

# Answers that grow with the document, as a share of its tokens (a guess until a job has taught
# better; 2026-11).
SHARES = {"translate": Range(0.7, 1.0, 1.6), "comments": Range(0.1, 0.3, 0.7)}
# Where nobody counts tokens: a quarter a character of English, one of Chinese, half to twice that.
UNCOUNTED_ASCII, UNCOUNTED_OTHER = 0.25, 1.0
UNCOUNTED_BAND = Range(0.5, 1.0, 2.0)
ROOM_UNKNOWN_TOKENS = 2048
REQUEST_ANSWER_TOKENS = 256
SPARE_TOKENS = 32  # of the chat template
# What a prompt token and a request cost beside an output token, where no speed is known.
ASSUMED_PREFILL, ASSUMED_OWN = 0.1, 5.0


@dataclass(frozen=True, slots=True)
class Expected:
    """A forecast, and the means to weigh each document of the job by its length."""

    forecast: Forecast
    each: TokensAChar
    asking: Asking
    answers: Answers

    def weights(self, chars: Iterable[int], offer: Offer) -> Iterator[float]:
        """Seconds (without a known speed: their proportions) of documents of these lengths."""
        for length in chars:
            tokens = length * self.each.share.value
            requests, prompt, output = item_tokens(tokens, self.asking, self.answers)
            if offer.capacity is None:
                yield requests * ASSUMED_OWN + prompt * ASSUMED_PREFILL + output
            else:
                yield offer.capacity.seconds(prompt, output)


async def expect(
    client: aiohttp.ClientSession, offer: Offer, census: Census, job: Job, ledger: Ledger
) -> Expected:
    """The forecast for a job over the documents of a census."""
    template = None if job.definition is None else read_template(job.definition, job.template)
    each = await counted(client, offer.service, census)
    asking = await asking_of(client, offer, template, job)
    answers = answers_of(template, job, earlier(ledger, job), census.sample)
    room = Room(offer.slots, offer.capacity.streams if offer.capacity else None, job.pace.streams)
    found = forecast(
        census.chars,
        each=each,
        asking=asking,
        answers=answers,
        capacity=offer.capacity,
        streams=room.most,
    )
    return Expected(found, each, asking, answers)


async def counted(client: aiohttp.ClientSession, service: Service, census: Census) -> TokensAChar:
    """Tokens a character, by the model's own tokenizer; a guess where none is shown."""
    sample = census.sample
    counts = await count_all(client, service, sample)
    if counts is not None:
        return tokens_a_char(sample, counts, census.readable)
    chars = sum(len(text) for text in sample)
    ascii_chars = sum(sum(map(str.isascii, text)) for text in sample)
    guess = ascii_chars * UNCOUNTED_ASCII + (chars - ascii_chars) * UNCOUNTED_OTHER
    return TokensAChar(UNCOUNTED_BAND.times(guess / chars if chars else 0.0), 0)


async def count_all(
    client: aiohttp.ClientSession, service: Service, texts: Sequence[str]
) -> list[int] | None:
    """The tokens of texts; None where the service does not show its tokenizer."""
    if service.tokenizer is None:
        return None
    gate = asyncio.Semaphore(COUNTS_AT_ONCE)

    async def count(text: str) -> int | None:
        async with gate:
            tokens = await tokenize(client, service, text, add_special=False)
        return None if tokens is None else len(tokens)

    found = await asyncio.gather(*map(count, texts))
    known = [one for one in found if one is not None]
    return known if len(known) == len(found) else None


async def asking_of(
    client: aiohttp.ClientSession, offer: Offer, template: Template | None, job: Job
) -> Asking:
    """How a template asks, with the context of this service."""
    context = offer.context_tokens or ROOM_UNKNOWN_TOKENS
    if template is None:
        return Asking(0, context)
    prompts = template.prompts.get("zh" if job.language == "zh" else "en") or next(
        iter(template.prompts.values())
    )
    parts = sorted(prompts.values(), key=len)[-2:]  # the instructions, and how a document is put
    words = "\n".join(parts)
    counts = await count_all(client, offer.service, [words])
    own = counts[0] if counts else round(len(words) * UNCOUNTED_ASCII)
    room = max(context // 8, context - own - template.answer_tokens - SPARE_TOKENS)
    piece = job.options.get("piece_tokens")
    return Asking(own, min(room, piece) if isinstance(piece, int) and piece > 0 else room)


def answers_of(
    template: Template | None,
    job: Job,
    before: tuple[int, Usage] | None,
    sample: Sequence[str],
) -> Answers:
    """What the answers will take."""
    if template is None:
        limits = [limit for text in sample if (limit := limit_in(text))]
        most = round(sum(limits) / len(limits)) if limits else REQUEST_ANSWER_TOKENS
        return expected_answers(answer_tokens=most, words=None, before=before, share=None)
    words = job.options.get("words")
    return expected_answers(
        answer_tokens=template.answer_tokens,
        words=words if isinstance(words, int) and not isinstance(words, bool) else None,
        before=before,
        share=SHARES.get(template.task),
    )


def limit_in(request: str) -> int | None:
    """The most tokens that a request asks for."""
    try:
        document: Mapping[str, Any] = msgspec.json.decode(request, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):  # a long one, cut
        return None
    body = document.get("body", document)
    limit = body.get("max_completion_tokens", body.get("max_tokens")) if body else None
    return limit if isinstance(limit, int) and limit > 0 else None


def earlier(ledger: Ledger, job: Job) -> tuple[int, Usage] | None:
    """What the latest other job with this template and model took: items and usage."""
    for record in ledger.jobs():
        if like(record, job):
            return record.counts.done, ledger.usage(record.id)
    return None


def like(record: JobRecord, job: Job) -> bool:
    """Whether what the job took says something of another one."""
    same = (record.job.template, record.job.model) == (job.template, job.model)
    return same and record.counts.done > 0 and record.state in ("done", "cancelled")
