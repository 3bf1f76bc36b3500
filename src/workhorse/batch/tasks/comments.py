"""Documentation comments for the functions and classes of a source file, put into the file.

Each function is asked about by itself, with its own code and what stands around it, so that a
file may be of any length. The file with the comments in it is the result, otherwise byte for byte
the same; what got none is told.
"""

import asyncio
import re
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from workhorse.batch.item import Item, Reason, Result
from workhorse.batch.job import Job
from workhorse.batch.source_code.place import Code, NoComment, NotCommentable, Place
from workhorse.batch.source_code.python_code import PythonCode
from workhorse.batch.task import Answer, ItemFailed, NotValid, Request, Tools
from workhorse.batch.tasks.answers import whole
from workhorse.batch.tasks.kind import TaskKind
from workhorse.batch.tasks.pieces import Budget, budget, cut
from workhorse.batch.tasks.wording import CHAT_TOKENS, Wording
from workhorse.batch.template import Template
from workhorse.text import Language, Text

_TOKENS_A_WORD = 3
_TOKENS_MORE = 96  # names of parameters, which are words of no language
_AROUND_LINES = 8
_AROUND_CHARS = 1200
_TOLD_NAMES = 12
# So many Chinese characters are a comment or two: who wrote them reads Chinese.
_CHINESE_CHARS = 12
_CHINESE = re.compile(r"[\u4e00-\u9fff]")
# What keeps one function from its comment and says nothing of the others.
_OF_ONE_PLACE = ("not valid", "too long", "refused")


class _Outcome(NamedTuple):
    """What became of one place."""

    comment: str | None
    dropped: tuple[str, ...] = ()
    read_partly: bool = False
    reason: Reason | None = None


class Comments:
    """The source file with comments in it."""

    def __init__(self, template: Template, job: Job) -> None:
        self._wording = Wording(template, job)
        options = self._wording.options
        self._replace = options["existing"] == "replace"
        self._private: bool = options["private"]
        self._words: int = options["words"]

    async def __call__(self, item: Item, tools: Tools) -> Result:
        """The file; raises `ItemFailed` where it is no code that can be read, or nothing came."""
        try:
            code = self._code(item)
        except NotCommentable as error:
            raise _failed("unreadable", error) from error
        seen = _CHINESE.findall(item.content)
        language = self._wording.language(
            "".join(seen) if len(seen) >= _CHINESE_CHARS else item.content
        )
        count = len(code.places)
        outcomes = await asyncio.gather(
            *(
                self._outcome(f"comment {n} of {count}", code, place, language, tools)
                for n, place in enumerate(code.places, 1)
            )
        )
        comments = {n: one.comment for n, one in enumerate(outcomes) if one.comment}
        reasons = [one.reason for one in outcomes if one.reason]
        if reasons and not comments:
            raise ItemFailed(reasons[0])
        try:
            text = code.with_comments(comments).decode()
        except NotCommentable as error:
            raise _failed("not valid", error) from error
        notes = _notes(code, outcomes)
        return Result(
            text=text, file=True, notes=tuple(note.in_language(language) for note in notes)
        )

    def _code(self, item: Item) -> Code:
        media_type, _, charset = item.media_type.partition("; charset=")
        if media_type != "text/x-python":
            raise NotCommentable(
                f"It is no Python file ({media_type}); comments are written for Python.",
                f"不是 Python 文件（{media_type}），目前只为 Python 代码写注释。",
            )
        return PythonCode(
            item.content,
            charset=charset or "utf-8",
            replace=self._replace,
            private=self._private,
        )

    async def _outcome(
        self, step: str, code: Code, place: Place, language: Language, tools: Tools
    ) -> _Outcome:
        values: dict[str, Any] = {
            "name": place.name or "?",
            "code_language": code.language,
            "surroundings": _around(code, place),
        }

        def read(answer: Answer) -> tuple[str, tuple[str, ...]]:
            try:
                return code.comment(place, whole(answer))
            except NoComment as error:
                raise NotValid(
                    f"The answer for {place.name or 'the module'} is no comment: {error.seen}",
                    f"{place.name or '模块'}的回答不能用作注释：{error.seen_zh}",
                ) from error

        try:
            text, answer_tokens, partly = await self._fitted(code, place, language, values, tools)
            body = self._wording.body(
                language, place.kind, answer_tokens=answer_tokens, text=text, **values
            )
            comment, dropped = await tools.ask(Request(step=step, body=body), read)
        except ItemFailed as error:
            if error.reason.cause not in _OF_ONE_PLACE:
                raise
            return _Outcome(None, reason=error.reason)
        return _Outcome(comment, dropped, partly)

    async def _fitted(
        self, code: Code, place: Place, language: Language, values: dict[str, Any], tools: Tools
    ) -> tuple[str, int, bool]:
        """The code to be read, the room for the answer, and whether only its beginning fits."""
        text = code.source[place.begin : place.end].decode()
        answer_tokens = _TOKENS_MORE + _TOKENS_A_WORD * self._words
        # No tokenizer makes more tokens of a text than it has bytes: most functions need no count.
        said = self._wording.messages(language, place.kind, text=text, **values)
        most_tokens = sum(len(one["content"].encode()) for one in said) + CHAT_TOKENS
        if most_tokens + answer_tokens <= tools.context_tokens:
            return text, answer_tokens, False
        room: Budget = await budget(
            self._wording, tools, language, place.kind, answer_tokens, **values
        )
        pieces = await cut(text, room.text_tokens, tools)
        return pieces[0].text, room.answer_tokens, len(pieces) > 1


def _around(code: Code, place: Place) -> str:
    """The headers of what a definition is in, and some lines before it."""
    if place.kind == "module":
        return ""
    outer = [
        code.source[one.begin : one.header_end].decode().strip()
        for one in code.places
        if one.kind != "module" and one.begin < place.begin and place.end <= one.end
    ]
    before = code.source[: place.begin].decode().splitlines()[-_AROUND_LINES:]
    return "\n".join([*outer, "…", *before] if outer else before)[-_AROUND_CHARS:].strip("\r\n")


def _notes(code: Code, outcomes: Sequence[_Outcome]) -> list[Text]:
    """What a reader of the file should know."""
    places = list(zip(code.places, outcomes, strict=True))
    notes = []
    if not code.places:
        notes.append(Text("nothing in it lacks a comment", "其中没有缺少注释的代码"))
    if failed := [place.name or "module" for place, one in places if one.reason]:
        why = next(one.reason for one in outcomes if one.reason)
        notes.append(
            Text(
                f"without a comment: {_listed(failed)} ({why.seen})",
                f"未能写出注释：{_listed(failed)}（{why.seen_zh}）",
            )
        )
    for place, one in places:
        if one.dropped:
            names = ", ".join(one.dropped)
            notes.append(
                Text(
                    f"{place.name}: parameters that it does not have were left out: {names}",
                    f"{place.name}：已去掉不存在的参数 {names}",
                )
            )
    if partly := [place.name or "module" for place, one in places if one.read_partly]:
        notes.append(
            Text(
                f"longer than the context, only the beginning was read: {_listed(partly)}",
                f"超出上下文，只阅读了开头部分：{_listed(partly)}",
            )
        )
    if code.left_out:
        notes.append(
            Text(
                f"not understood and left as they are: {code.left_out}",
                f"未能识别、保持原样的定义：{code.left_out} 处",
            )
        )
    return notes


def _listed(names: Sequence[str]) -> str:
    more = f" … ({len(names)})" if len(names) > _TOLD_NAMES else ""
    return ", ".join(names[:_TOLD_NAMES]) + more


def _failed(cause: Literal["unreadable", "not valid"], error: NotCommentable) -> ItemFailed:
    return ItemFailed(Reason(cause=cause, seen=error.seen, seen_zh=error.seen_zh))


KIND = TaskKind(
    make=Comments,
    prompts={name: frozenset({"text"}) for name in ("function", "class", "module")},
    item_values=frozenset({"name", "code_language", "surroundings"}),
    options=frozenset({"existing", "private", "words"}),
)
