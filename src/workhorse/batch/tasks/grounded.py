"""Answers out of passages that were found for a question, and out of nothing else.

The model is given the passages with numbers and has to name those it used. An answer that names
none is no answer: the result says that the documents do not have it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from workhorse.batch.item import Item, Reason, Result
from workhorse.batch.retrieval.library import Library
from workhorse.batch.retrieval.passages import Passage
from workhorse.batch.schema import Shape
from workhorse.batch.task import Answer, ItemFailed, NotValid, Request, Tools
from workhorse.batch.tasks.answers import no_text, shaped
from workhorse.batch.tasks.pieces import budget
from workhorse.batch.tasks.wording import Wording
from workhorse.text import Language, Text

_TOKENS_A_WORD = 3
_TOKENS_MORE = 96  # the JSON around the words
_ASKED_CHARS = 4000  # of a long message: what it is about is said in so many
_TOLD_DOCUMENTS = 5
_FIGURE = re.compile(r"\d+(?:[.,:]\d+)*")
_NUMBERED_TOKENS = 8  # `[1] ` and the empty line, beside the passage and its place


@dataclass(frozen=True, slots=True)
class Names:
    """What a result calls its parts, and what it says where there is no ground."""

    answer: str
    grounded: str
    nothing: Text


class Grounded:
    """One answer an item, with the places that it rests on."""

    def __init__(self, wording: Wording, library: Library, names: Names) -> None:
        self._wording, self._library, self._names = wording, library, names
        self._words: int = wording.options["words"]
        self._most: int = wording.options["passages"]

    async def __call__(self, item: Item, tools: Tools) -> Result:
        """The answer; raises `ItemFailed`, AppError where what is searched cannot be read."""
        asked = item.content.strip()
        if not asked:
            raise no_text()
        language = self._wording.language(asked)
        shelf = await self._library.shelf()
        notes = _unread(shelf.unread)
        found = await self._library.find(asked[:_ASKED_CHARS], tools, self._most)
        if not found:
            return self._nothing(language, notes)
        passages, answer_tokens = await self._fitting(asked, found, language, tools)
        shape = _shape(len(passages), self._wording.template.name)
        body = self._wording.body(
            language,
            "answer",
            answer_tokens=answer_tokens,
            response_format=shape.response_format,
            passages=_numbered(passages),
            text=asked,
        )

        def read(answer: Answer) -> tuple[dict[str, Any], bool]:
            value, repaired = shaped(shape, answer)
            if value["sources"] and not value["answer"].strip():
                raise NotValid("The answer has sources and no words.", "回答只有来源，没有内容。")
            return value, repaired

        value, repaired = await tools.ask(Request(step="answer", body=body), read)
        if repaired:
            notes.append(Text("the answer's JSON was repaired", "回答中的 JSON 经过修复"))
        if not value["sources"]:
            return self._nothing(language, notes)
        used = [passages[n - 1] for n in dict.fromkeys(value["sources"])]
        said = value["answer"].strip()
        notes += _not_there(said, [asked, *(one.searched for one in passages)])
        return Result(
            value={
                self._names.answer: said,
                self._names.grounded: True,
                "sources": list(dict.fromkeys(one.place for one in used)),
            },
            notes=_told(notes, language),
        )

    def _nothing(self, language: Language, notes: Sequence[Text]) -> Result:
        value = {
            self._names.answer: self._names.nothing.in_language(language),
            self._names.grounded: False,
            "sources": [],
        }
        return Result(value=value, notes=_told(notes, language))

    async def _fitting(
        self, asked: str, found: Sequence[Passage], language: Language, tools: Tools
    ) -> tuple[list[Passage], int]:
        """The best passages that fit beside the whole question, and the room for the answer."""
        most_tokens = _TOKENS_MORE + _TOKENS_A_WORD * self._words
        room = await budget(self._wording, tools, language, "answer", most_tokens, passages="")
        left = room.text_tokens - await tools.count_tokens(asked)
        kept: list[Passage] = []
        for passage in found:
            tokens = await tools.count_tokens(_numbered([passage])) + _NUMBERED_TOKENS
            if tokens <= left:
                kept.append(passage)
                left -= tokens
        if not kept:
            raise ItemFailed(
                Reason(
                    cause="too long",
                    seen=f"The context of a slot has {tools.context_tokens} tokens; beside the "
                    "question there is no room for a passage.",
                    seen_zh=f"单个槽位的上下文为 {tools.context_tokens} 个 token，"
                    "除问题外放不下任何一段资料。",
                )
            )
        return kept, room.answer_tokens


@cache
def _shape(count: int, name: str) -> Shape:
    """Only passages that were given can be named; the sources come first, then the words."""
    numbers = {"type": "integer", "enum": list(range(1, count + 1))}
    return Shape(
        {
            "type": "object",
            "properties": {
                "sources": {"type": "array", "items": numbers, "maxItems": 2 * count},
                "answer": {"type": "string"},
            },
            "required": ["sources", "answer"],
            "additionalProperties": False,
        },
        name,
    )


def _numbered(passages: Sequence[Passage]) -> str:
    return "\n\n".join(
        f"[{number}] {one.place}\n{one.text.strip()}" for number, one in enumerate(passages, 1)
    )


def _not_there(said: str, given: Sequence[str]) -> list[Text]:
    """A figure that neither the passages nor the question have is likely to be invented."""
    known = {figure for text in given for figure in _FIGURE.findall(text)}
    new = [one for one in dict.fromkeys(_FIGURE.findall(said)) if one not in known and len(one) > 1]
    if not new:
        return []
    figures = ", ".join(new)
    return [
        Text(
            f"check these figures, which no passage has: {figures}",
            f"请核对以下数字，资料中没有出现：{figures}",
        )
    ]


def _unread(documents: Sequence[str]) -> list[Text]:
    if not documents:
        return []
    some = ", ".join(documents[:_TOLD_DOCUMENTS])
    more = " …" if len(documents) > _TOLD_DOCUMENTS else ""
    return [
        Text(
            f"{len(documents)} documents could not be read: {some}{more}",
            f"{len(documents)} 个文档无法读取：{some}{more}",
        )
    ]


def _told(notes: Sequence[Text], language: Language) -> tuple[str, ...]:
    return tuple(note.in_language(language) for note in notes)
