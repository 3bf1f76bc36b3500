"""Asks llama-server about its slots: prefill, save, restore, and what a prompt's tokens are.

Routes and fields: llama.cpp tools/server/server-context.cpp, commit 0c1e570, tried November 2026.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from workhorse.errors import AppError
from workhorse.run.address import Address
from workhorse.serve.sse import EventFilter, event_data, parse_object, split_events
from workhorse.serve.templates import Template, shared_tokens
from workhorse.text import Text

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Slot:
    """One slot as the engine describes it."""

    number: int
    busy: bool
    task: int | None  # the latest; None: it has had none
    tokens: int  # that it holds; 0 also when only a restored state does, before any task


@dataclass(frozen=True, slots=True)
class Prefilled:
    """What a prefill found in the slot, computed, and took."""

    cached_tokens: int
    computed_tokens: int
    seconds: float


class EngineSlots:
    """The slots of the engine at `url`; raises an `AppError` for what it refuses."""

    def __init__(self, client: aiohttp.ClientSession, url: str) -> None:
        self._client = client
        self._url = url

    async def slots(self) -> tuple[Slot, ...]:
        """All of them, by number."""
        found = await self._ask("GET", "/slots")
        if not isinstance(found, list):
            raise refused("/slots", "not a list")
        return tuple(
            Slot(
                int(one["id"]),
                bool(one["is_processing"]),
                one.get("id_task"),
                int(one.get("n_prompt_tokens") or 0),
            )
            for one in found
        )

    async def tokens(self, template: Template) -> tuple[int, ...]:
        """The tokens that every prompt with this template begins with."""
        return shared_tokens([await self._tokens_of(probe) for probe in template.probes()])

    async def still_begins(self, template: Template, tokens: Sequence[int]) -> bool:
        """Whether prompts with this template still begin with the tokens that they began with."""
        now = await self._tokens_of(template.probes()[0])
        return now[: len(tokens)] == list(tokens)

    async def _tokens_of(self, prompt: str | list[dict[str, str]]) -> list[int]:
        text: Any = prompt
        if not isinstance(prompt, str):
            text = (await self._ask("POST", "/apply-template", {"messages": prompt}))["prompt"]
        body = {"content": text, "add_special": True, "parse_special": True}
        tokens: list[int] = (await self._ask("POST", "/tokenize", body))["tokens"]
        return tokens

    async def prefill(
        self,
        tokens: Sequence[int],
        slot: int,
        on_progress: Callable[[float], None] = lambda _: None,
    ) -> Prefilled:
        """Have a slot hold these tokens; it keeps what it shares with them.

        Cancelling it frees the slot at the next batch, with what was done until then.
        """
        body = {
            "prompt": list(tokens),
            "n_predict": 0,
            "id_slot": slot,
            "cache_prompt": True,
            "stream": True,
            "return_progress": True,
        }
        events = EventFilter(keep_progress=True)
        timings: Json | None = None
        async with self._client.post(f"{self._url}/completion", json=body) as answer:
            if answer.status != 200:
                raise refused("/completion", (await answer.text())[:200])
            async for block in answer.content.iter_any():
                for event in split_events(events.feed(block)):
                    found = parse_object(event_data(event)) or {}
                    if "error" in found:
                        raise refused("/completion", str(found["error"])[:200])
                    if isinstance(done := found.get("prompt_progress"), dict):
                        on_progress(done["processed"] / max(1, done["total"]))
                    timings = found.get("timings") or timings
        if timings is None:
            raise refused("/completion", "no timings")
        return Prefilled(timings["cache_n"], timings["prompt_n"], timings["prompt_ms"] / 1000)

    async def save(self, slot: int, file_name: str) -> int:
        """Write a slot's state into the engine's folder; returns how many tokens it holds."""
        saved = await self._ask("POST", f"/slots/{slot}?action=save", {"filename": file_name})
        return int(saved["n_saved"])

    async def restore(self, slot: int, file_name: str) -> int:
        """Have a slot hold a saved state; returns how many tokens it holds then."""
        restored = await self._ask("POST", f"/slots/{slot}?action=restore", {"filename": file_name})
        return int(restored["n_restored"])

    async def _ask(self, method: str, path: str, body: Json | None = None) -> Any:
        async with self._client.request(method, self._url + path, json=body) as answer:
            document = await answer.json(content_type=None)
            if answer.status != 200:
                raise refused(path, str(document)[:200])
            return document


@asynccontextmanager
async def engine_at(address: Address) -> AsyncIterator[EngineSlots]:
    """The slots of the engine there, for as long as the block runs."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=5.0)
    # llama-server closes the connection after a stream without saying so (tried 2026-11).
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(
        timeout=timeout, connector=connector, headers=address.headers
    ) as client:
        yield EngineSlots(client, address.url)


def refused(path: str, said: str) -> AppError:
    """The engine did not do what it was asked."""
    return AppError(
        Text(
            f"The engine refused {path}: {said}.",
            f"推理引擎拒绝了 {path}：{said}。",
        ),
        Text(
            "Its log says more; the service runs on without this template.",
            "详情见引擎日志；服务继续运行，只是不使用该模板。",
        ),
        speaker="engine",
    )
