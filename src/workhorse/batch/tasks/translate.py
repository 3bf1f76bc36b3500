"""A translation that keeps the document's structure: its blocks in their order and as they stand.

Several paragraphs are translated at once, as many as a small model does well. Code stays as it
is. Where an answer does not have the form of what was asked, the paragraphs are asked for one by
one, then their lines; what is between them is the original's. A passage for which no answer can be
used stays as it was, and is told.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workhorse.batch.blocks import Block, blocks_of, lines_of, mark_of, same_form
from workhorse.batch.item import Item, Reason, Result
from workhorse.batch.job import Job
from workhorse.batch.task import ItemFailed, Request, Tools
from workhorse.batch.tasks.answers import no_text, whole_or_cut
from workhorse.batch.tasks.kind import TaskKind
from workhorse.batch.tasks.pieces import Budget, budget, cut, fits, halves
from workhorse.batch.tasks.wording import ROUND_AND_ROUND, Wording
from workhorse.batch.template import Template, language_of
from workhorse.text import Language, Text

# A translation may take so many tokens a token of the original: into a language that the model's
# tokenizer was not made for, a character takes several.
_ANSWER_PER_TOKEN = 3
_ANSWER_MORE = 48
_SAMPLE_CHARS = 100_000  # of a document are counted
_SHORTEST_CHARS = 200  # a text this short is not cut again when its translation was cut off

_ALL_FENCED = re.compile(r"```[\w-]*\n(.*)\n```", re.DOTALL)
_NAMES: dict[Language, Text] = {"en": Text("English", "英文"), "zh": Text("Chinese", "中文")}
_SPELLINGS: dict[str, Language] = {
    "en": "en",
    "english": "en",
    "英文": "en",
    "英语": "en",
    "zh": "zh",
    "chinese": "zh",
    "中文": "zh",
    "汉语": "zh",
}


class Translate:
    """The document in another language."""

    def __init__(self, template: Template, job: Job) -> None:
        self._wording = Wording(template, job)
        options = self._wording.options
        self._to: str = options.get("to") or "auto"
        self._piece_tokens: int = options.get("piece_tokens") or 400

    async def __call__(self, item: Item, tools: Tools) -> Result:
        """The translation, to replace the document; raises `ItemFailed`."""
        document = item.content
        if not document.strip():
            raise no_text()
        language, own = self._wording.language(document), language_of(document)
        asked = _SPELLINGS.get(self._to.strip().lower())
        if self._to == "auto":
            asked = "en" if own == "zh" else "zh"
        if asked == own == "zh":
            already = Text("it is in Chinese already", "原文已是中文")
            return Result(text=document, file=True, notes=(already.in_language(language),))
        to = _NAMES[asked].in_language(language) if asked else self._to
        room = await budget(
            self._wording,
            tools,
            language,
            "text",
            _ANSWER_PER_TOKEN * self._piece_tokens + _ANSWER_MORE,
            answer_share=0.75,
            to=to,
        )
        most = min(
            self._piece_tokens,
            room.text_tokens,
            max(16, (room.answer_tokens - _ANSWER_MORE) // _ANSWER_PER_TOKEN),
        )
        work = _Work(self._wording, tools, language, to, asked, most, room)
        text = await work.document(document)
        if 2 * sum(map(len, work.left)) > len(document):
            raise ItemFailed(
                Reason(
                    cause="not valid",
                    seen="More than half of the document could not be translated.",
                    seen_zh="超过一半的内容未能翻译。",
                )
            )
        return Result(text=text, file=True, notes=work.told())


@dataclass(slots=True)
class _Work:
    """The translation of one document."""

    wording: Wording
    tools: Tools
    language: Language
    to: str
    target: Language | None
    most_tokens: int  # of a piece
    room: Budget
    most_chars: int = 1  # of a piece, by the document's average
    asked: int = 0
    unlike: int = 0  # answers that are not in the language asked for
    left: list[str] = field(
        default_factory=list
    )  # what stays as it is, for no answer could be used

    async def document(self, document: str) -> str:
        """The whole document, block by block."""
        blocks = blocks_of(document)
        sample = document[:_SAMPLE_CHARS]
        tokens = max(1, await self.tools.count_tokens(sample))
        self.most_chars = max(1, len(sample) * self.most_tokens // tokens)
        groups = grouped(blocks, self.most_chars)
        done = await asyncio.gather(
            *(self._group(f"part {n} of {len(groups)}", one) for n, one in enumerate(groups, 1))
        )
        return "".join(done)

    async def _group(self, step: str, blocks: Sequence[Block]) -> str:
        """Neighbouring blocks in one request; one by one where that does not keep their form."""
        worded = [block for block in blocks if block.words]
        if not worded:
            return "".join(block.text for block in blocks)
        if len(worded) > 1:
            first, last = blocks.index(worded[0]), len(blocks) - 1
            while not blocks[last].words:
                last -= 1
            inner = _trimmed("".join(block.text for block in blocks[first : last + 1]))
            short = await self._short_enough(inner.words)
            said = await self._ask(step, inner.words) if short else None
            if said is not None and same_form(inner.words, said):
                before = "".join(block.text for block in blocks[:first]) + inner.before
                after = inner.after + "".join(block.text for block in blocks[last + 1 :])
                return before + said + after
        return await self._each(f"{step}, block", blocks)

    async def _each(self, step: str, blocks: Sequence[Block], *, known: bool = False) -> str:
        """Blocks one by one, with what is between them; `known`: they are short enough."""
        done = await asyncio.gather(
            *(
                self._block(f"{step} {n}", block, known) if block.words else _as_it_is(block)
                for n, block in enumerate(blocks, 1)
            )
        )
        return "".join(done)

    async def _block(self, step: str, block: Block, known: bool) -> str:
        """One paragraph with what stands before and after it; a long one in pieces."""
        words = block.words
        if not known and not await self._short_enough(words):
            pieces = [piece.text for piece in await cut(words, self.most_tokens, self.tools)]
            return block.before + await self._pieces(step, pieces) + block.after
        said = await self._ask(step, words)
        if said is None:
            if len(words) > _SHORTEST_CHARS:
                return block.before + await self._pieces(step, halves(words)) + block.after
            said = await self._ask(f"{step}, again", words, more=ROUND_AND_ROUND)
        if said is None:
            self.left.append(words)
            return block.text
        if "\n" not in words and block.before.strip():  # a heading, a list item: one line
            said = " ".join(said.split())
        if same_form(words, said):
            return block.before + said + block.after
        if "\n" in words and any(mark_of(line) or "|" in line for line in words.splitlines()):
            return block.before + await self._lines(step, words) + block.after
        return block.before + in_one_block(said) + block.after

    async def _pieces(self, step: str, pieces: Sequence[str]) -> str:
        """The stretches of one paragraph, with the spaces that were between them."""
        blocks = [_trimmed(piece) for piece in pieces]
        return await self._each(f"{step}, piece", blocks, known=True)

    async def _lines(self, step: str, words: str) -> str:
        """A list or a table line by line; a row that loses its cells stays as it is."""

        async def line(number: int, block: Block) -> str:
            said = await self._ask(f"{step}, line {number}", block.words)
            said = " ".join((said or "").split("\n"))
            if not said or said.count("|") != block.words.count("|"):
                self.left.append(block.words)
                return block.text
            return block.before + said + block.after

        blocks = lines_of(words)
        done = await asyncio.gather(
            *(
                line(number, block) if block.words else _as_it_is(block)
                for number, block in enumerate(blocks, 1)
            )
        )
        return "".join(done)

    async def _short_enough(self, words: str) -> bool:
        """Whether some words are a piece; counted only where the average does not tell."""
        # A token is at least one byte: so few bytes fit whatever they are.
        if len(words) <= self.most_chars * 5 // 4 and len(words.encode()) <= self.room.text_tokens:
            return True
        return await fits(words, self.most_tokens, self.tools)

    async def _ask(self, step: str, words: str, *, more: Mapping[str, Any] = {}) -> str | None:
        """The translation of some words; None: it was cut off, or empty each time."""
        # A model that finds no end is stopped early: by what these words can take in translation.
        tokens = -(-len(words) * self.most_tokens // self.most_chars)
        answer_tokens = min(self.room.answer_tokens, _ANSWER_PER_TOKEN * tokens + _ANSWER_MORE)
        body = self.wording.body(
            self.language, "text", answer_tokens=answer_tokens, text=words, to=self.to
        )
        try:
            said: str | None = await self.tools.ask(
                Request(step=step, body={**body, **more}), whole_or_cut
            )
        except ItemFailed as failed:
            if failed.reason.cause != "not valid":
                raise
            said = None
        self.asked += 1
        said = unfenced(said, words) if said else said
        if said and self.target and len(words) > 60 and language_of(said) != self.target:
            self.unlike += 1
        return said

    def told(self) -> tuple[str, ...]:
        """What a reader of the translation should know."""
        notes: list[Text] = []
        if self.unlike:
            notes.append(
                Text(
                    f"{self.unlike} of {self.asked} answers do not seem to be in {self.to}",
                    f"{self.asked} 个回答中有 {self.unlike} 个似乎不是{self.to}",
                )
            )
        if self.left:
            notes.append(
                Text(
                    f"left as they were, for no answer could be used: {len(self.left)} passages",
                    f"没有可用的译文而保留原文：{len(self.left)} 处",
                )
            )
        return tuple(note.in_language(self.language) for note in notes)


def grouped(blocks: Sequence[Block], most_chars: int) -> list[list[Block]]:
    """Neighbouring blocks put together, as many as are translated at once; none lost."""
    groups: list[list[Block]] = [[]]
    held = 0
    for block in blocks:
        verbatim = not block.words and len(block.text.strip()) > 0
        # Code between two paragraphs would be sent along: it ends a group.
        if groups[-1] and (verbatim or (block.words and held + len(block.text) > most_chars)):
            groups.append([])
            held = 0
        groups[-1].append(block)
        held += len(block.text)
        if verbatim:
            groups.append([])
            held = 0
    return [group for group in groups if group]


def in_one_block(said: str) -> str:
    """A translation without empty lines: its original was one paragraph."""
    return "\n".join(line for line in said.splitlines() if line.strip())


def unfenced(said: str, asked: str) -> str:
    """A translation without the code fence that models like to put round it."""
    match = _ALL_FENCED.fullmatch(said)
    return match[1].strip() if match and "```" not in asked else said


def _trimmed(text: str) -> Block:
    """A stretch of a paragraph, the spaces at its ends kept apart."""
    words = text.strip()
    begin = len(text) - len(text.lstrip())
    if not words:
        return Block(text)
    return Block(text[:begin], words, text[begin + len(words) :])


async def _as_it_is(block: Block) -> str:
    return block.text


KIND = TaskKind(
    make=Translate,
    prompts={"text": frozenset({"text"})},
)
