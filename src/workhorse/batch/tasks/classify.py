"""Which of the user's labels suit a document: one, or several.

A long document is judged part by part. One label: the one with the most tokens of text behind it;
several: all that any part has. The shares are told.
"""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from workhorse.batch.item import Item, Result
from workhorse.batch.job import Job
from workhorse.batch.join_values import plain
from workhorse.batch.schema import Shape, without_thoughts
from workhorse.batch.task import Answer, NotValid, Request, Tools
from workhorse.batch.tasks.answers import no_text, shaped
from workhorse.batch.tasks.kind import TaskKind
from workhorse.batch.tasks.pieces import Piece, budget, cut
from workhorse.batch.tasks.wording import Wording
from workhorse.batch.template import Template
from workhorse.text import Language, Text

_TOKENS_A_CHARACTER = 3  # of a label, at worst
_TOKENS_MORE = 32


class Classify:
    """One label, or several, a document: `{"label": …}` or `{"labels": […]}`."""

    def __init__(self, template: Template, job: Job) -> None:
        self._wording = Wording(template, job)
        options = self._wording.options
        self._labels: list[str] = list(options["labels"])
        self._several: bool = options.get("several") is True
        self._piece_tokens: int | None = options.get("piece_tokens")
        self._shape = Shape(schema_of(self._labels, several=self._several), template.name)
        longest = max(map(len, self._labels))
        every = sum(map(len, self._labels)) if self._several else longest
        self._answer_tokens = _TOKENS_MORE + _TOKENS_A_CHARACTER * every

    async def __call__(self, item: Item, tools: Tools) -> Result:
        """The labels; raises `ItemFailed`."""
        text = item.content.strip()
        if not text:
            raise no_text()
        language = self._wording.language(text)
        prompt = "several" if self._several else "one"
        room = await budget(self._wording, tools, language, prompt, self._answer_tokens)
        most = min(room.text_tokens, self._piece_tokens or room.text_tokens)
        pieces = [one for one in await cut(text, most, tools) if one.text.strip()]

        async def ask(number: int, piece: Piece) -> tuple[list[str], bool]:
            body = self._wording.body(
                language,
                prompt,
                answer_tokens=room.answer_tokens,
                response_format=self._shape.response_format,
                text=piece.text.strip(),
            )
            step = f"part {number} of {len(pieces)}"
            found: tuple[list[str], bool] = await tools.ask(
                Request(step=step, body=body), self._read
            )
            return found

        found = await asyncio.gather(*(ask(n, piece) for n, piece in enumerate(pieces, 1)))
        tokens = [piece.tokens for piece in pieces]
        return self._result(
            [labels for labels, _ in found], tokens, language, [r for _, r in found]
        )

    def _read(self, answer: Answer) -> tuple[list[str], bool]:
        """The labels of an answer, also of one that only names a label in its prose."""
        try:
            value, repaired = shaped(self._shape, answer)
        except NotValid:
            said = without_thoughts(answer.text)
            named = [
                label for label in self._labels if plain(label) == plain(said.strip(".。*\"' "))
            ]
            if answer.finish == "length" or not named:
                raise
            return named, True
        labels: list[str] = value["labels"] if self._several else [value["label"]]
        return [label for label in self._labels if label in labels], repaired

    def _result(
        self,
        found: Sequence[Sequence[str]],
        tokens: Sequence[int],
        language: Language,
        repaired: Sequence[bool],
    ) -> Result:
        behind: dict[str, int] = defaultdict(int)
        for labels, count in zip(found, tokens, strict=True):
            for label in labels:
                behind[label] += count
        ranked = sorted(behind, key=lambda label: (-behind[label], self._labels.index(label)))
        notes: list[Text] = []
        if len(found) > 1:
            shares = ", ".join(f"{label} {behind[label] / sum(tokens):.0%}" for label in ranked)
            notes.append(
                Text(f"judged in {len(found)} parts: {shares}", f"分 {len(found)} 段判断：{shares}")
            )
        if any(repaired):
            notes.append(Text("the answer's JSON was repaired", "回答中的 JSON 经过修复"))
        value: dict[str, Any] = {"label": ranked[0]} if not self._several else {"labels": ranked}
        return Result(value=value, notes=tuple(note.in_language(language) for note in notes))


def schema_of(labels: Sequence[str], *, several: bool) -> dict[str, Any]:
    """The JSON schema of an answer: nothing but these labels is allowed in it."""
    one: dict[str, Any] = {"type": "string", "enum": list(labels)}
    name, held = "label", one
    if several:
        name = "labels"
        held = {"type": "array", "items": one, "maxItems": len(labels)}
    return {
        "type": "object",
        "properties": {name: held},
        "required": [name],
        "additionalProperties": False,
    }


KIND = TaskKind(
    make=Classify,
    prompts={name: frozenset({"text"}) for name in ("one", "several")},
    options=frozenset({"labels"}),
)
