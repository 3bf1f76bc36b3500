"""Prompts of exact token length by the model's own tokenizer, however a service shows it."""

import asyncio
from collections.abc import Sequence

import aiohttp
import msgspec

from workhorse.bench.scenario import (
    Prompt,
    Scenario,
    Texts,
    TokenCost,
    corpus,
    text_prompts,
    token_prompts,
    words,
)
from workhorse.bench.service import (
    KEY_WANTED,
    Service,
    ask,
    cannot_complete,
    completion,
    key_refused,
    shown_by,
)
from workhorse.bench.transcript import Chunk, refusal_words

SAMPLE_CHARACTERS = 600  # some 150 tokens: enough to average over, quick on a slow machine
# Without any count: a token is about four English characters or one of another script.
UNCOUNTED = TokenCost(english=0.25, other=1.0)
COUNTS_AT_ONCE = 8
# Each try comes closer by the share of tokens that a character has; more than a few only happen
# where no cut gives the length.
TRIES = 12


async def make_prompts(
    session: aiohttp.ClientSession, service: Service, scenario: Scenario, seed: int
) -> tuple[Prompt, ...]:
    """One prompt a request, the warm-up's last.

    Exactly as long as asked where the service shows its tokenizer; elsewhere text of about that
    length, and the runs say what it really was.
    """
    text = corpus(seed, scenario.requests)
    if service.tokenizer == "lmdeploy":
        return await exact_texts(session, service, scenario, seed, text)
    if service.tokenizer is not None:
        tokens = await tokenize(session, service, text, add_special=False)
        if tokens:
            prefix = await tokenize(session, service, "", add_special=True) or ()
            return token_prompts(tokens, scenario, seed, prefix)
    return text_prompts(text, scenario, seed, await token_cost(session, service, text))


async def tokenize(
    session: aiohttp.ClientSession, service: Service, content: str, *, add_special: bool
) -> Sequence[int] | None:
    """The tokens of `content` by the model's own tokenizer; None where it is not shown."""
    question: dict[str, object]
    if service.tokenizer == "lmdeploy":
        path, question = "/v1/encode", {"input": content, "add_bos": add_special}
    elif service.tokenizer == "vllm":
        path = "/tokenize"
        question = {"prompt": content, "add_special_tokens": add_special}
        if service.model is not None:
            question["model"] = service.model
    else:
        path, question = "/tokenize", {"content": content, "add_special": add_special}
        if service.model is not None:
            question["model"] = service.model  # a gateway in front of several models needs it
    status, body = await ask(session, service, "POST", path, question)
    shown = shown_by(status, body)
    return shown.tokens if shown.tokens is not None else shown.input_ids


async def exact_texts(
    session: aiohttp.ClientSession, service: Service, scenario: Scenario, seed: int, text: str
) -> tuple[Prompt, ...]:
    """Texts whose tokens were counted: for a service that takes no tokens as a prompt."""
    whole = await tokenize(session, service, text, add_special=False) or ()
    cost = len(whole) / len(text) or UNCOUNTED.english
    texts = Texts(text, scenario, seed, TokenCost(cost, cost))
    gate = asyncio.Semaphore(COUNTS_AT_ONCE)

    async def cut(begin: str, number: int, n_tokens: int) -> str:
        # A quarter more than it should take: the cost is that of the whole text.
        characters = begin + texts.first(number, 1.25 * n_tokens + 16)
        length = len(begin) + round((n_tokens - len(begin) * cost) / cost)
        for _ in range(TRIES):
            async with gate:
                found = await tokenize(session, service, characters[:length], add_special=True)
            missing = n_tokens - len(found or ())
            if not missing or found is None:
                break
            step = round(missing / cost) or (1 if missing > 0 else -1)
            length = min(len(characters), max(len(begin), length + step // 2 or step))
        return characters[:length]

    shared = scenario.shared_tokens
    common = await cut("", texts.common, shared) if shared else ""
    asked = [request for one_round in scenario.rounds for request in one_round]
    wanted = [(request.text, request.prompt_tokens) for request in asked]
    wanted.append((scenario.texts - 1, scenario.prompt_tokens))
    async with asyncio.TaskGroup() as group:
        cuts = [group.create_task(cut(common, *one)) for one in wanted]
    return tuple(one.result() for one in cuts)


async def token_cost(session: aiohttp.ClientSession, service: Service, text: str) -> TokenCost:
    """What characters cost, by the usage of one-token requests."""
    english = "".join(word for word in words(text) if word.isascii())[:SAMPLE_CHARACTERS]
    other = "".join(word for word in words(text) if not word.isascii())[: SAMPLE_CHARACTERS // 3]
    half = english[: len(english) // 2]
    counts = [await counted(session, service, sample) for sample in (english, half, other)]
    known = [count for count in counts if count is not None]
    if len(known) < len(counts):
        return UNCOUNTED
    # Twice the text costs twice the tokens but for what every prompt costs: a template, BOS.
    slope = (known[0] - known[1]) / (len(english) - len(half))
    always = max(0.0, known[0] - slope * len(english))
    each_other = (known[2] - always) / len(other)
    return TokenCost(slope, each_other, always) if slope > 0 and each_other > 0 else UNCOUNTED


async def counted(session: aiohttp.ClientSession, service: Service, sample: str) -> int | None:
    """The prompt tokens of a one-token request; None where the service counts none."""
    question = completion(service, sample, 1)
    status, body = await ask(session, service, "POST", service.dialect.route, question)
    if status in KEY_WANTED:
        raise key_refused(service.url)
    if status != 200:
        raise cannot_complete(service.url, f"HTTP {status}: {refusal_words(body)}")
    try:
        usage = msgspec.json.decode(body, type=Chunk).usage
    except (msgspec.DecodeError, UnicodeDecodeError):
        usage = None
    return usage.prompt_tokens if usage else None
