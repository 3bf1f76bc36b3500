"""The means of a template, made real for one item: it asks, checks, remembers and counts."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from workhorse.batch.answers import check_sane, read_answer, usage_of, vectors_of
from workhorse.batch.asking import Asker, Got, Tries, said
from workhorse.batch.counting import TokenCounts
from workhorse.batch.item import Cause, Reason, Usage
from workhorse.batch.retry import Fate, Reply, varied
from workhorse.batch.task import Answer, Check, ItemFailed, NotValid, Request
from workhorse.errors import AppError
from workhorse.text import Text

EMBEDDINGS = "/v1/embeddings"
TEXTS_AT_ONCE = 32
LIMITS = ("max_tokens", "max_completion_tokens", "n_predict", "max_output_tokens")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Memory:
    """Where the answers of one item are kept: by step, the response's body."""

    remembered: Callable[[str], Awaitable[bytes | None]]
    remember: Callable[[str, bytes, Usage], Awaitable[None]]


class ItemTools:
    """What a task may use for one item (`task.Tools`). `close` it when the task has ended."""

    def __init__(
        self,
        asker: Asker,
        counts: TokenCounts,
        memory: Memory,
        *,
        attempts: int,
        context_tokens: int,
        spent: Callable[[Usage], None] = lambda _: None,
    ) -> None:
        self.errors = 0  # that were the item's own, of the step that had most
        self._asker, self._counts, self._memory = asker, counts, memory
        self._attempts, self._context_tokens = attempts, context_tokens
        self._spent = spent
        self._usage = Usage()
        self._steps: dict[str, asyncio.Lock] = {}
        self._work: set[asyncio.Task[Any]] = set()
        self._closed = False

    @property
    def context_tokens(self) -> int:
        """The context of one slot."""
        return self._context_tokens

    @property
    def is_asking(self) -> bool:
        """Does the item wait for an answer?"""
        return bool(self._work)

    def usage(self) -> Usage:
        """What was taken since it was last kept; counted once."""
        taken, self._usage = self._usage, Usage()
        return taken

    async def count_tokens(self, text: str) -> int:
        """How many tokens the model sees in a text."""
        return await self._do(self._counts.of(text, self._attempts))

    async def ask(self, request: Request, check: Check | None = None) -> Any:
        """The answer to a request, as `check` returns it; see `task.Tools`."""
        return await self._do(self._ask(request, check))

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]] | None:
        """A vector for each text; None: the served model cannot."""
        return await self._do(self._embed(texts))

    async def pass_on(self, path: str, body: Mapping[str, Any]) -> Reply:
        """The response to a request of the user's own, refusals too, as it comes."""
        return await self._do(self._pass_on(path, body))

    async def close(self) -> None:
        """End whatever is still being asked for the item."""
        self._closed = True
        work = tuple(self._work)
        for one in work:
            one.cancel()
        await asyncio.gather(*work, return_exceptions=True)

    # inside

    async def _do(self, work: Coroutine[Any, Any, T]) -> T:
        """Work that `close` can end though the task has left it behind."""
        if self._closed:
            work.close()
            raise asyncio.CancelledError
        task = asyncio.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        return await task

    async def _ask(self, request: Request, check: Check | None) -> Any:
        # Asked twice at once, the second gets what the first was answered.
        async with self._steps.setdefault(request.step, asyncio.Lock()):
            kept = await self._memory.remembered(request.step)
            if kept is not None:
                try:
                    return _checked(read_answer(kept), check)
                except NotValid:  # another version of the template thought otherwise
                    pass
            tries = Tries(self._attempts)
            invalid = 0
            while True:
                got = await self._reply(request.path, varied(request.body, invalid), tries)
                if got.fate != "answered":
                    raise _no_use(got)
                try:
                    answer = self._read(got, request)
                    value = _checked(answer, check)
                except NotValid as wrong:
                    invalid += 1
                    self._spend(tries, wrong)
                    continue
                await self._memory.remember(request.step, got.reply.body, self.usage())
                return value

    async def _pass_on(self, path: str, body: Mapping[str, Any]) -> Reply:
        tries = Tries(self._attempts)
        while True:
            got = await self._reply(path, body, tries)
            if got.fate != "answered":
                return got.reply
            try:
                document = msgspec.json.decode(got.reply.body)
                if not isinstance(document, dict):
                    raise NotValid("The answer is no JSON object.", "回答不是 JSON 对象。")
            except (msgspec.DecodeError, UnicodeDecodeError, NotValid) as error:
                self._spend(tries, NotValid(f"{error}", f"{error}"))
                continue
            self._count(usage_of(document), got, path)
            return got.reply

    async def _embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]] | None:
        vectors: list[Sequence[float]] = []
        for at in range(0, len(texts), TEXTS_AT_ONCE):
            part = list(texts[at : at + TEXTS_AT_ONCE])
            tries = Tries(self._attempts)
            while self._asker.embeds:
                got = await self._reply(EMBEDDINGS, {"input": part}, tries)
                if got.fate in ("refused", "not served"):
                    self._asker.embeds = False
                elif got.fate != "answered":
                    raise _no_use(got)
                else:
                    try:
                        answer = read_answer(got.reply.body)
                        found = vectors_of(answer)
                        if len(found) != len(part):
                            raise NotValid(
                                f"{len(found)} vectors came for {len(part)} texts.",
                                f"{len(part)} 段文本得到 {len(found)} 个向量。",
                            )
                    except NotValid as wrong:
                        self._spend(tries, wrong)
                        continue
                    self._count(usage_of(answer.body), got, EMBEDDINGS)
                    vectors += found
                    break
            else:
                return None
        return vectors

    async def _reply(self, path: str, body: Mapping[str, Any], tries: Tries) -> Got:
        asked = {key: value for key, value in body.items() if key != "stream_options"}
        asked["stream"] = False
        if path == EMBEDDINGS:
            del asked["stream"]
        if asked.get("model") is None and self._asker.client.service.model is not None:
            asked["model"] = self._asker.client.service.model
        told = [asked[name] for name in LIMITS if isinstance(asked.get(name), int)]
        try:
            return await self._asker.reply(
                path, msgspec.json.encode(asked), max(told, default=self._context_tokens), tries
            )
        finally:
            self.errors = max(self.errors, tries.used)

    def _read(self, got: Got, request: Request) -> Answer:
        """The answer, its tokens counted, whatever it is worth."""
        try:
            answer = read_answer(got.reply.body)
        except NotValid:
            self._count(Usage(requests=1), got, request.path)
            raise
        self._count(usage_of(answer.body), got, request.path)
        check_sane(answer)
        return answer

    def _count(self, usage: Usage, got: Got, path: str) -> None:
        self._usage += usage
        self._spent(usage)
        if path != EMBEDDINGS and usage.output_tokens:
            self._asker.learn(got, usage.prompt_tokens, usage.output_tokens)

    def _spend(self, tries: Tries, wrong: NotValid) -> None:
        self.errors = max(self.errors, tries.used + 1)
        tries.spend(Reason(cause="not valid", seen=wrong.seen, seen_zh=wrong.seen_zh))


def _checked(answer: Answer, check: Check | None) -> Any:
    return answer if check is None else check(answer)


def _no_use(got: Got) -> Exception:
    """Why asking again is of no use: for this item, or for any."""
    fate: Fate = got.fate
    reason = said(got.reply)
    if fate == "not served":
        return AppError(
            Text(
                f"The service no longer serves what the job asks for: {reason.seen}",
                f"服务已不再提供该任务所需的模型或接口：{reason.seen_zh}",
            ),
            Text(
                "Start it with the job's model again, then `workhorse batch resume`.",
                "请用该任务的模型重新启动服务，然后运行 `workhorse batch resume`。",
            ),
        )
    cause: Cause = "too long" if fate == "too long" else "refused"
    return ItemFailed(Reason(cause=cause, seen=reason.seen, seen_zh=reason.seen_zh))
