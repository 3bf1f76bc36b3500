"""A whole service inside the test's own process, on fake engines."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
from service_process import KNOWN, PATIENCE_S, fake_server

from workhorse.config import Places
from workhorse.text import Text
from workhorse.up.decide import Ask
from workhorse.up.service import Service


class Listener:
    """Hears what the service tells."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def stage(self, words: Text) -> None:
        self.said.append(words.en)

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


@asynccontextmanager
async def serving(
    home: Path,
    model: Path | None,
    *engine_options: str,
    config: str | None = None,
    real: bool = False,
    known: Sequence[str] = KNOWN,
) -> AsyncIterator[Service]:
    """A service that is ready, on a free port of loopback; `config` is its settings file."""
    engine = None if real else fake_server(home / "bin", *engine_options, known=known)
    ask = Ask(
        model=model, engine=engine, port=0, skip_golden=True, measure=False, config=home / "w.toml"
    )
    ask = ask if config is not None else replace(ask, config=None)
    (home / "w.toml").write_text(config or "")
    service = Service(ask, Places(home), Listener())
    try:
        await service.open()
        for one in tuple(service.engines):
            for started in await service.decide(one):
                await service.start(started)
        yield service
    finally:
        await service.close()


async def until(condition: Callable[[], object]) -> None:
    """Wait for what must come true."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110  (processes set no events)
            await asyncio.sleep(0.01)


class Load:
    """Clients that ask without a pause, each for one text, and note whatever goes wrong."""

    def __init__(self, service: Service, clients: int, model: str = "any") -> None:
        self.answers = 0
        self.texts: set[str] = set()
        self.troubles: list[str] = []
        self._service, self._clients, self._model = service, clients, model
        self._going = True

    async def __aenter__(self) -> "Load":
        self._http = aiohttp.ClientSession(self._service.url)
        self._tasks = [asyncio.create_task(self._ask_on()) for _ in range(self._clients)]
        await self.more(self._clients)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._going = False
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*self._tasks)
        await self._http.close()

    async def more(self, answers: int) -> None:
        """Wait for so many further answers."""
        wanted = self.answers + answers
        await until(lambda: self.answers >= wanted or self.troubles)

    async def _ask_on(self) -> None:
        body = {"model": self._model, "prompt": "go on", "max_tokens": 12, "ignore_eos": True}
        while self._going:
            try:
                async with self._http.post("/v1/completions", json=body) as answer:
                    document = await answer.json()
                if answer.status == 200:
                    self.texts.add(document["choices"][0]["text"])
                else:
                    self.troubles.append(f"{answer.status} {document}")
            except aiohttp.ClientError as error:
                self.troubles.append(repr(error))
            self.answers += 1
