"""What a document says, as JSON of a given form: named entities, or any schema of the user's own.

A long document is asked about part by part. Lists of all parts become one without doubles; of a
single field the first part that tells it counts, and another that differs is told.
"""

import asyncio
import json
from typing import Any

from workhorse.batch.item import Item, Result
from workhorse.batch.job import Job
from workhorse.batch.join_values import (
    full_lists,
    join_values,
    keep_what_is_said,
    plain,
    without_limits,
)
from workhorse.batch.schema import Shape
from workhorse.batch.task import Answer, Request, Tools
from workhorse.batch.tasks.answers import no_text, shaped, shaped_or_cut
from workhorse.batch.tasks.kind import TaskKind
from workhorse.batch.tasks.pieces import Piece, budget, cut, halves
from workhorse.batch.tasks.wording import ROUND_AND_ROUND, Wording
from workhorse.batch.template import Template
from workhorse.text import Language, Text, same

_ANSWER_SHARE = 0.5  # of what the prompt leaves of the context, at most
# What is taken from a part is hardly longer than the part, quotes and commas included, and has the
# names of the fields besides: a model that finds no end is stopped there.
_ANSWER_PER_TOKEN = 2
_ANSWER_MORE = 64
# A part this short is not cut again when its answer was: the model does not find an end.
_SHORTEST_CHARS = 400
_SHOWN = 8  # of what the model made up


class Extract:
    """One JSON value a document."""

    def __init__(self, template: Template, job: Job) -> None:
        options = dict(job.options)
        own = next((n for n, one in template.options.items() if one.kind == "schema"), None)
        schema = (own and options.get(own)) or template.schema or {}
        told = same(json.dumps(schema, ensure_ascii=False, separators=(",", ":")))
        self._wording = Wording(template, job, {"schema": told} | ({own: told} if own else {}))
        self._shape = Shape(schema, template.name)
        self._joined = Shape(without_limits(schema), template.name)
        self._only_from_text = self._wording.options.get("only_from_text") is True
        self._piece_tokens: int | None = self._wording.options.get("piece_tokens")

    async def __call__(self, item: Item, tools: Tools) -> Result:
        """The value; raises `ItemFailed`."""
        text = item.content.strip()
        if not text:
            raise no_text()
        language = self._wording.language(text)
        room = await budget(
            self._wording,
            tools,
            language,
            "text",
            self._wording.template.answer_tokens,
            answer_share=_ANSWER_SHARE,
        )
        most = min(room.text_tokens, self._piece_tokens or room.text_tokens)
        pieces = [piece for piece in await cut(text, most, tools) if piece.text.strip()]
        asking = _Asking(self._wording, self._shape, language, room.answer_tokens, tools)
        found = await asyncio.gather(
            *(asking.ask(f"part {n} of {len(pieces)}", piece) for n, piece in enumerate(pieces, 1))
        )
        return self._result([value for values in found for value in values], text, asking)

    def _result(self, values: list[Any], text: str, asking: "_Asking") -> Result:
        notes = asking.notes
        if len(values) > 1:
            notes.append(Text(f"read in {len(values)} parts", f"分 {len(values)} 段阅读"))
        joined = join_values(values)
        for conflict in joined.conflicts:
            notes.append(
                Text(
                    f"parts differ in {conflict}; the first is kept",
                    f"各段不一致：{conflict}；保留第一个",
                )
            )
        value = joined.value
        if self._only_from_text:
            value, invented = keep_what_is_said(value, self._shape.schema, plain(text))
            if invented:
                shown = ", ".join(invented[:_SHOWN]) + (" …" if len(invented) > _SHOWN else "")
                notes.append(
                    Text(
                        f"left out, for the document does not have it: {shown}",
                        f"已去掉文档中没有的内容：{shown}",
                    )
                )
        if not self._joined.allows(value):
            notes.append(
                Text(
                    "the parts together no longer have the form of the schema",
                    "各段合并后不再符合 schema",
                )
            )
        said = dict.fromkeys(note.in_language(asking.language) for note in notes)
        return Result(value=value, notes=tuple(said))


class _Asking:
    """The questions about one document, and what is to be told of the answers."""

    def __init__(
        self,
        wording: Wording,
        shape: Shape,
        language: Language,
        answer_tokens: int,
        tools: Tools,
    ) -> None:
        self.language: Language = language
        self.notes: list[Text] = []
        self._wording = wording
        self._shape = shape
        self._answer_tokens = answer_tokens
        self._form_tokens = len(json.dumps(shape.schema)) // 4  # as if it were said once
        self._tools = tools

    async def ask(self, step: str, piece: Piece) -> list[Any]:
        """What a part gives; one whose answer is cut off, or full, is asked about in two."""
        text = piece.text
        short = len(text) <= _SHORTEST_CHARS
        most = _ANSWER_PER_TOKEN * piece.tokens + _ANSWER_MORE + self._form_tokens
        body = self._wording.body(
            self.language,
            "text",
            answer_tokens=min(self._answer_tokens, most),
            response_format=self._shape.response_format,
            text=text.strip(),
        )
        found = await self._tools.ask(Request(step=step, body=body), self._any)
        if short and found is None:
            again = Request(step=f"{step}, again", body={**body, **ROUND_AND_ROUND})
            found = await self._tools.ask(again, self._whole)
        full = [] if found is None else list(full_lists(found[0], self._shape.schema))
        if not short and (found is None or full):
            parts = [
                Piece(part, -(-piece.tokens * len(part) // len(text)))
                for part in halves(text)
                if part.strip()
            ]
            asked = (self.ask(f"{step}, {n}", part) for n, part in enumerate(parts, 1))
            return [value for values in await asyncio.gather(*asked) for value in values]
        value, repaired = found
        if repaired:
            self.notes.append(Text("the answer's JSON was repaired", "回答中的 JSON 经过修复"))
        for name in full:
            self.notes.append(
                Text(
                    f"`{name}` is as long as the schema allows: there may be more",
                    f"`{name}` 已达 schema 允许的长度，可能还有遗漏",
                )
            )
        return [value]

    def _any(self, answer: Answer) -> Any:
        return shaped_or_cut(self._shape, answer)

    def _whole(self, answer: Answer) -> Any:
        return shaped(self._shape, answer)


KIND = TaskKind(
    make=Extract,
    prompts={"text": frozenset({"text"})},
    values=frozenset({"schema"}),
    schema="needed",
)
