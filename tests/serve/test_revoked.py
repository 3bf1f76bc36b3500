"""A key that is taken back ends what runs for it, and nothing else."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from stand_ins import PATIENCE_S, Exchange, StandInBackend, chunk, scripted

from workhorse.serve.activity import Activity
from workhorse.serve.app import Gateway, build_app
from workhorse.serve.auth import Access
from workhorse.serve.backend import Roster, Served
from workhorse.serve.key_store import KeyStore
from workhorse.serve.keys import Key


async def talks_on(to: Exchange) -> None:
    await to.begin_stream()
    while not to.left.is_set():
        await to.event(chunk("a"))
        await asyncio.sleep(0.01)


async def stays_silent(to: Exchange) -> None:
    await to.client_leaves()


@asynccontextmanager
async def two_keys(
    folder: Path, engine: Any, *, exposed: bool = False
) -> AsyncIterator[tuple[KeyStore, str, list[str]]]:
    """A gateway before an engine, its store, its URL, and the secrets of `ann` and `bob`.

    `exposed`: as if other machines could ask.
    """
    store = KeyStore(folder / "service.sqlite")
    secrets = [store.add(Key(name), time.time()) for name in ("ann", "bob")]
    async with scripted(engine) as (_, url):
        served = Served("horse", StandInBackend(url))
        access = Access(store)
        if exposed:
            access.expose("0.0.0.0")
        app = build_app(Roster((served,)), activity=Activity(), access=access)
        opened = Gateway(app)
        await opened.start(port=0)
        try:
            yield store, opened.url or "", secrets
        finally:
            await opened.stop()


async def ask(url: str, secret: str, stream: bool, begun: asyncio.Event) -> tuple[int, str]:
    """The status and all that came."""
    headers = {"Authorization": f"Bearer {secret}"}
    said = b""
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.post(f"{url}/v1/chat/completions", json={"stream": stream}) as answer,
    ):
        async for block in answer.content.iter_any():
            said += block
            begun.set()
        return answer.status, said.decode()


@pytest.mark.parametrize("stream", [True, False])
async def test_it_ends_the_answers_of_that_key_alone_and_says_why(
    tmp_path: Path, stream: bool
) -> None:
    engine = talks_on if stream else stays_silent
    async with two_keys(tmp_path, engine) as (store, url, (ann, bob)):
        begun = [asyncio.Event(), asyncio.Event()]
        asking = [
            asyncio.create_task(ask(url, secret, stream, event))
            for secret, event in zip((ann, bob), begun, strict=True)
        ]
        if stream:
            await asyncio.gather(*(event.wait() for event in begun))
        await asyncio.to_thread(store.revoke, "ann", time.time())
        status, said = await asyncio.wait_for(asking[0], PATIENCE_S)
        assert status == (200 if stream else 401)
        assert "This key was revoked." in said
        assert '"type":"authentication_error"' in said
        if stream:
            assert said.rstrip().rpartition("\n\n")[2].startswith('data: {"error"')
        assert not asking[1].done()
        asking[1].cancel()
        await asyncio.wait({asking[1]})


@pytest.mark.parametrize("exposed", [True, False])
async def test_without_any_key_only_this_machine_is_served_on(
    tmp_path: Path, exposed: bool
) -> None:
    async with two_keys(tmp_path, talks_on, exposed=exposed) as (store, url, (ann, _)):
        begun = asyncio.Event()
        asking = asyncio.create_task(ask(url, ann, True, begun))
        await begun.wait()
        await asyncio.to_thread(store.forget_all)
        if exposed:
            _, said = await asyncio.wait_for(asking, PATIENCE_S)
            assert "This key was revoked." in said
            return
        async with aiohttp.ClientSession() as http:
            status = 401
            while status == 401:  # until the gateway has seen it
                async with http.get(f"{url}/openapi.json") as answer:
                    status = answer.status
        assert not asking.done()
        asking.cancel()
        await asyncio.wait({asking})
