"""How many tokens the model sees in a text, by its own tokenizer; remembered."""

import asyncio
import hashlib
import math
from collections import OrderedDict

import msgspec

from workhorse.batch.asking import Asker, Tries
from workhorse.bench.service import Service, shown_by

REMEMBERED = 8192
AT_ONCE = 4
# A longer text is counted in parts: its tokens are some megabytes of JSON. The parts together have
# at least as many as the whole, but for the one or two that lie across a seam.
PART_CHARACTERS = 200_000
# A service without a tokenizer: English has four bytes to a token, Chinese about three.
UNCOUNTED_BYTES_PER_TOKEN = 3.0


class TokenCounts:
    """The counts of one job's texts."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker
        self._known: OrderedDict[bytes, int] = OrderedDict()
        self._gate = asyncio.Semaphore(AT_ONCE)

    async def of(self, text: str, tries: int) -> int:
        """The tokens of a text; at least that many where the service counts none for us."""
        mark = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).digest()
        if mark in self._known:
            self._known.move_to_end(mark)
            return self._known[mark]
        parts = [text[at : at + PART_CHARACTERS] for at in range(0, len(text), PART_CHARACTERS)]
        count = 0
        async with self._gate:
            for part in parts:
                count += await self._of_part(part, tries)
        self._known[mark] = count
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return count

    async def _of_part(self, part: str, tries: int) -> int:
        question = _question(self._asker.client.service, part)
        if question is None:
            return math.ceil(len(part.encode("utf-8", "replace")) / UNCOUNTED_BYTES_PER_TOKEN)
        path, document = question
        got = await self._asker.reply(
            path, msgspec.json.encode(document), 0, Tries(tries), beside=True
        )
        shown = shown_by(got.reply.status, got.reply.body)
        tokens = shown.tokens if shown.tokens is not None else shown.input_ids
        if tokens is None:
            return math.ceil(len(part.encode("utf-8", "replace")) / UNCOUNTED_BYTES_PER_TOKEN)
        return len(tokens)


def _question(service: Service, text: str) -> tuple[str, dict[str, object]] | None:
    """The route of the service's tokenizer and what to ask it; None: it shows none."""
    text = text.encode("utf-8", "replace").decode()
    if service.tokenizer is None:
        return None
    if service.tokenizer == "lmdeploy":
        return "/v1/encode", {"input": text, "add_bos": False}
    named = {} if service.model is None else {"model": service.model}
    if service.tokenizer == "vllm":
        return "/tokenize", {"prompt": text, "add_special_tokens": False, **named}
    return "/tokenize", {"content": text, "add_special": False, **named}
