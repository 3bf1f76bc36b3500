"""What fits into a request beside its prompt and its answer, and a document cut to that size."""

import asyncio
from dataclasses import dataclass

from workhorse.batch.item import Reason
from workhorse.batch.split import split
from workhorse.batch.task import ItemFailed, Tools
from workhorse.batch.tasks.wording import Wording
from workhorse.text import Language

# Fewer tokens of a document than this are not worth a request each: the context is too small.
_LEAST_TEXT_TOKENS = 48
# Longer texts are split before they are counted: what is counted travels, and is held whole.
_COUNTED_CHARS = 500_000
# Pieces cut by the average of a text differ in their tokens; counted ones that are over the limit
# are cut again, and few should be.
_AIM = 0.93


@dataclass(frozen=True, slots=True)
class Budget:
    """How the context of a slot is shared out in one request."""

    text_tokens: int  # of the document, or of a piece of it
    answer_tokens: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a document; all of them joined are the document."""

    text: str
    tokens: int


async def budget(
    wording: Wording,
    tools: Tools,
    language: Language,
    prompt: str,
    answer_tokens: int,
    *,
    answer_share: float = 0.5,
    **values: str,
) -> Budget:
    """What a request with this prompt leaves for the document and for the answer.

    The answer gets what it needs, up to `answer_share` of what the prompt leaves. Raises
    `ItemFailed` where the context holds hardly more than the prompt.
    """
    context_tokens = tools.context_tokens
    prompt_tokens = await wording.prompt_tokens(tools, language, prompt, **values)
    left = context_tokens - prompt_tokens
    answer = min(answer_tokens, int(left * answer_share))
    if left - answer < _LEAST_TEXT_TOKENS or answer < 8:
        raise ItemFailed(
            Reason(
                cause="too long",
                seen=f"The context of a slot has {context_tokens} tokens; the template's prompt "
                f"`{prompt}` takes {prompt_tokens} of them and leaves no room for a document.",
                seen_zh=f"单个槽位的上下文为 {context_tokens} 个 token，模板提示词 `{prompt}` "
                f"占用 {prompt_tokens} 个，没有留给文档的空间。",
            )
        )
    return Budget(left - answer, answer)


async def fits(text: str, most_tokens: int, tools: Tools) -> bool:
    """Whether a document is at most so long by the model's own count."""
    return len(text) <= _COUNTED_CHARS and await tools.count_tokens(text) <= most_tokens


async def cut(text: str, most_tokens: int, tools: Tools) -> list[Piece]:
    """The document in pieces of at most `most_tokens` by the model's own count, none lost.

    Asks for one count, and one more a piece. Raises `ItemFailed` where one character is more.
    """
    if len(text) > _COUNTED_CHARS:
        parts = split(text, _COUNTED_CHARS)
        return [piece for part in parts for piece in await cut(part, most_tokens, tools)]
    tokens = await tools.count_tokens(text)
    if tokens <= most_tokens:
        return [Piece(text, tokens)]
    if len(text) == 1:
        raise ItemFailed(
            Reason(
                cause="too long",
                seen=f"A single character takes {tokens} tokens, more than the {most_tokens} that "
                "the context leaves.",
                seen_zh=f"单个字符占 {tokens} 个 token，超过上下文可用的 {most_tokens} 个。",
            )
        )
    most_chars = max(1, int(len(text) * most_tokens / tokens * _AIM))
    parts = split(text, most_chars)
    cuts = await asyncio.gather(*(cut(part, most_tokens, tools) for part in parts))
    return [piece for pieces in cuts for piece in pieces]


def halves(text: str) -> list[str]:
    """A piece in two or three smaller ones, where its structure has joints."""
    return split(text, max(1, -(-len(text) * 11 // 20)))
