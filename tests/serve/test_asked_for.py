"""The service's own batches ask in the name of a key; nobody else can."""

import asyncio
import time
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from stand_ins import PATIENCE_S

from workhorse.serve.activity import Activity
from workhorse.serve.app import Gateway, build_app
from workhorse.serve.auth import Access
from workhorse.serve.backend import Roster
from workhorse.serve.key_store import KeyStore
from workhorse.serve.keys import Key
from workhorse.serve.who import KEY

TOKEN = "of-the-run-file"


async def who(request: web.Request) -> web.Response:
    return web.Response(text=request[KEY].name if KEY in request else "nobody")


async def stay(request: web.Request) -> web.Response:
    request.app[CAME].set()
    await asyncio.Event().wait()
    raise AssertionError("never")


CAME = web.AppKey("came", asyncio.Event)


async def test_only_the_token_speaks_for_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workhorse.serve.auth.READ_EVERY_S", 0.01)
    store = KeyStore(tmp_path / "service.sqlite")
    ann, now_unix_s = store.add(Key("安"), time.time()), time.time()
    store.add(Key("bob"), now_unix_s)
    store.add(Key("old", expires_unix_s=now_unix_s - 1), now_unix_s)
    app = build_app(Roster(), activity=Activity(), access=Access(store, token=TOKEN))
    app[CAME] = asyncio.Event()
    app.add_routes([web.get("/who", who), web.get("/stay", stay)])
    opened = Gateway(app)
    await opened.start(port=0)
    try:
        async with aiohttp.ClientSession(opened.url) as http:

            async def asked(secret: str, name: str, path: str = "/who") -> tuple[int, str]:
                headers = {"Authorization": f"Bearer {secret}", "X-Workhorse-For": name}
                async with asyncio.timeout(PATIENCE_S), http.get(path, headers=headers) as answer:
                    return answer.status, await answer.text()

            assert await asked(TOKEN, "bob") == (200, "bob")
            assert await asked(TOKEN, "%E5%AE%89") == (200, "安")
            assert await asked(TOKEN, "") == (200, "nobody")
            assert (await asked(TOKEN, "old"))[0] == 401
            assert (await asked(TOKEN, "eve"))[0] == 401
            assert (await asked("wrong", "bob"))[0] == 401
            assert await asked(ann, "bob") == (200, "安")

            running = asyncio.create_task(asked(TOKEN, "bob", "/stay"))
            await app[CAME].wait()
            store.add(Key("new"), time.time())  # a change that is nothing to bob
            async with asyncio.timeout(PATIENCE_S):
                while await asked(TOKEN, "new") != (200, "new"):
                    pass
            assert not running.done()
            store.revoke("bob", time.time())
            assert (await running)[0] == 401
    finally:
        await opened.stop()
