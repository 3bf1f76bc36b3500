"""A summary: of the whole document where it fits, else of its parts, and of their summaries.

A long document is cut at its joints; each part is summed up, then as many summaries as fit are
made one, over as many levels as it takes. Nothing of the document is left out.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from workhorse.batch.item import Item, Result
from workhorse.batch.job import Job
from workhorse.batch.task import Answer, Request, Tools
from workhorse.batch.tasks.answers import CUT_OFF, answer_tokens, no_text, whole, whole_or_cut
from workhorse.batch.tasks.kind import TaskKind
from workhorse.batch.tasks.pieces import Budget, budget, cut, fits
from workhorse.batch.tasks.wording import ROUND_AND_ROUND, Wording
from workhorse.batch.template import Template
from workhorse.text import Language, Text

# An answer may take so many tokens a word: 1.4 are usual in English; a Chinese character takes
# up to 3 of a tokenizer that was not made for it (SmolLM2, tried 2026-11).
_TOKENS_A_WORD = 3
_TOKENS_MORE = 64
# The summary of a part has as many words as the whole one is to have, within these.
_PART_WORDS = (60, 200)
# An answer gets no more of what the prompt leaves: three summaries have to fit into the next
# request, or merging them would never end.
_ANSWER_SHARE = 0.25
_BETWEEN = "\n\n"
_BETWEEN_TOKENS = 4


@dataclass(frozen=True, slots=True)
class _Said:
    text: str
    tokens: int


class Summary:
    """One summary a document."""

    def __init__(self, template: Template, job: Job) -> None:
        self._wording = Wording(template, job)
        options = self._wording.options
        self._words: int | None = options.get("words")
        self._points: int = options.get("points") or 1
        self._piece_tokens: int | None = options.get("piece_tokens")

    async def __call__(self, item: Item, tools: Tools) -> Result:
        """The summary; raises `ItemFailed`."""
        text = item.content.strip()
        if not text:
            raise no_text()
        language = self._wording.language(text)
        room = await self._budget(tools, language, "whole")
        if await fits(text, self._at_most(room), tools):
            said = await self._say("whole", "whole", text, language, room, tools)
            return Result(text=said.text)
        room = await self._budget(tools, language, "part")
        pieces = await cut(text, self._at_most(room), tools)
        texts = [piece.text.strip() for piece in pieces if piece.text.strip()]
        summaries = await asyncio.gather(
            *(
                self._say(f"part {n} of {len(texts)}", "part", text, language, room, tools)
                for n, text in enumerate(texts, 1)
            )
        )
        said = await self._merged(summaries, language, tools)
        parts = Text(f"read in {len(texts)} parts", f"分 {len(texts)} 段阅读")
        return Result(text=said.text, notes=(parts.in_language(language),))

    def _at_most(self, room: Budget) -> int:
        """How many tokens of a document are asked about at once."""
        return min(room.text_tokens, self._piece_tokens or room.text_tokens)

    async def _merged(self, summaries: list[_Said], language: Language, tools: Tools) -> _Said:
        """One summary of many."""
        room = await self._budget(tools, language, "merge")
        level = 0
        while len(summaries) > 1:
            level += 1
            groups = grouped([said.tokens for said in summaries], room.text_tokens)
            merge = partial(
                self._merge, language=language, room=room, tools=tools, last=len(groups) == 1
            )
            summaries = await asyncio.gather(
                *(merge(f"merge {level}.{n}", summaries[a:b]) for n, (a, b) in enumerate(groups, 1))
            )
        return summaries[0]

    async def _merge(
        self,
        step: str,
        summaries: Sequence[_Said],
        *,
        language: Language,
        room: Budget,
        tools: Tools,
        last: bool,
    ) -> _Said:
        if len(summaries) == 1:
            return summaries[0]
        text = _BETWEEN.join(said.text for said in summaries)
        return await self._say(step, "merge", text, language, room, tools, last=last)

    async def _say(
        self,
        step: str,
        prompt: str,
        text: str,
        language: Language,
        room: Budget,
        tools: Tools,
        *,
        last: bool = True,
    ) -> _Said:
        """An answer to one of the prompts; where it is cut off, one in half the words."""
        words = self._words_of(prompt, last=last)

        def request(step: str, words: int | None) -> Request:
            told: dict[str, Any] = {} if words is None else {"words": str(words)}
            body = self._wording.body(
                language, prompt, answer_tokens=room.answer_tokens, text=text, **told
            )
            return Request(step=step, body=body)

        def said(answer: Answer) -> _Said:
            return _Said(whole(answer), answer_tokens(answer) or room.answer_tokens)

        def said_or_cut(answer: Answer) -> _Said | None:
            return CUT_OFF if whole_or_cut(answer) is CUT_OFF else said(answer)

        first: _Said | None = await tools.ask(request(step, words), said_or_cut)
        if first is not CUT_OFF:
            return first
        shorter = None if words is None else max(10, words // 2)
        again = request(f"{step}, shorter", shorter)
        body = {**again.body, **ROUND_AND_ROUND}
        second: _Said = await tools.ask(Request(step=again.step, body=body), said)
        return second

    def _words_of(self, prompt: str, *, last: bool) -> int | None:
        each_point = self._points > 1  # `words` are a point's, in both prompts that ask for points
        if self._words is None or prompt == "whole" or (prompt == "merge" and (last or each_point)):
            return self._words
        least, most = _PART_WORDS
        return max(least, min(self._words * self._points, most))

    async def _budget(self, tools: Tools, language: Language, prompt: str) -> Budget:
        """What the context holds of a document beside a prompt and its answer."""
        most = self._wording.template.answer_tokens
        if self._words is not None:
            words = max(self._words * self._points, self._words_of("part", last=False) or 0)
            most = _TOKENS_MORE + _TOKENS_A_WORD * words
        return await budget(
            self._wording, tools, language, prompt, most, answer_share=_ANSWER_SHARE
        )


def grouped(tokens: Sequence[int], most_tokens: int) -> list[tuple[int, int]]:
    """Which neighbours go together, about equally many tokens each: the first, and after the last.

    As many as fit, and two at least, so that there are fewer groups than before.
    """
    whole_tokens = sum(tokens) + _BETWEEN_TOKENS * len(tokens)
    aim = whole_tokens / max(1, -(-whole_tokens // most_tokens))
    groups: list[tuple[int, int]] = []
    begin, held = 0, 0
    for place, count in enumerate(tokens):
        over = held + count + _BETWEEN_TOKENS > most_tokens or held >= aim
        if place - begin >= 2 and over:
            groups.append((begin, place))
            begin, held = place, 0
        held += count + _BETWEEN_TOKENS
    groups.append((begin, len(tokens)))
    return groups


KIND = TaskKind(
    make=Summary,
    prompts={name: frozenset({"text"}) for name in ("whole", "part", "merge")},
)
