"""Who is let in: with which key, from where, and what the others learn."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from stand_ins import PATIENCE_S, Exchange, ScriptedEngine, StandInBackend, scripted

from workhorse.errors import AppError
from workhorse.serve.activity import Activity
from workhorse.serve.app import Gateway, build_app
from workhorse.serve.auth import OPEN, Access, is_loopback, known_as
from workhorse.serve.backend import Roster, Served
from workhorse.serve.key_store import KeyStore
from workhorse.serve.keys import Key, make_secret

TOKEN = "of-the-run-file"
PUBLIC = "0.0.0.0"  # never listened on here


async def engine(to: Exchange) -> None:
    await to.whole({"tokens": [1]})


async def own(_: web.Request) -> web.Response:
    return web.json_response({})


class Guarded:
    """A gateway with keys, the engine behind it and the store beside it."""

    def __init__(self, store: KeyStore, engine: ScriptedEngine, app: web.Application) -> None:
        self.store, self.engine, self.app = store, engine, app
        self.http: aiohttp.ClientSession
        self.url = ""

    async def ask(
        self, secret: str | None = None, /, path: str = "/tokenize", **headers: str
    ) -> int:
        status, _ = await self.told(secret, path, **headers)
        return status

    async def told(
        self, secret: str | None = None, path: str = "/tokenize", **headers: str
    ) -> tuple[int, Any]:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if secret is not None:
            sent["Authorization"] = f"Bearer {secret}"
        method = "POST" if path == "/tokenize" else "GET"
        async with self.http.request(method, self.url + path, headers=sent) as answer:
            return answer.status, await answer.json(content_type=None)

    async def change(self, secret: str | None) -> int:
        headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
        async with self.http.post(f"{self.url}/workhorse/own", headers=headers) as answer:
            return answer.status

    async def until(self, secret: str, status: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while await self.ask(secret) != status:
                pass


@pytest.fixture
def store(tmp_path: Path) -> KeyStore:
    return KeyStore(tmp_path / "service.sqlite")


@pytest.fixture
async def guarded(store: KeyStore, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Guarded]:
    monkeypatch.setattr("workhorse.serve.auth.READ_EVERY_S", 0.01)
    store.add(Key("first"), time.time())
    async with scripted(engine) as (behind, url), aiohttp.ClientSession() as http:
        app = build_app(
            Roster((Served("horse", StandInBackend(url)),)),
            activity=Activity(),
            access=Access(store, token=TOKEN),
        )
        app.add_routes([web.get("/workhorse/own", own), web.post("/workhorse/own", own)])
        opened = Gateway(app)
        await opened.start(port=0)
        made = Guarded(store, behind, app)
        made.http, made.url = http, opened.url or ""
        try:
            yield made
        finally:
            await opened.stop()


async def test_every_route_asks_for_a_key(guarded: Guarded) -> None:
    routes = [
        (route.method, route.resource.canonical)
        for route in guarded.app.router.routes()
        if route.resource is not None
    ]
    assert len(routes) > 8
    for method, path in [*routes, ("GET", "/nowhere"), ("DELETE", "/v1/models")]:
        asked = guarded.http.request(method, guarded.url + path, data=b"{}")
        async with asked as answer:
            closed = path not in OPEN and not path.startswith("/dashboard/")
            assert (answer.status in (401, 403)) == closed, f"{method} {path}: {answer.status}"
    assert guarded.engine.exchanges == []


async def test_the_right_key_opens(guarded: Guarded) -> None:
    secret = guarded.store.add(Key("ann"), time.time())
    await guarded.until(secret, 200)
    for headers in (
        {"Authorization": f"bearer {secret}"},
        {"X_Api_Key": secret},
        {"X_Api_Key": secret, "Authorization": f"Bearer {secret}"},
        {"X_Api_Key": secret, "Authorization": "Basic Zm9vOmJhcg=="},  # a proxy's own
    ):
        assert await guarded.ask(**headers) == 200


async def test_a_wrong_key_opens_nothing_and_costs_the_engine_nothing(guarded: Guarded) -> None:
    secret = guarded.store.add(Key("ann"), time.time())
    await guarded.until(secret, 200)
    asked = len(guarded.engine.exchanges)
    tries: list[dict[str, str]] = [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": f"Bearer {secret}x"},
        {"Authorization": f"Bearer {secret[:-1]}"},
        {"Authorization": f"Bearer {secret},{secret}"},
        {"Authorization": f"Basic {secret}"},
        {"Authorization": secret},
        {"Authorization": f"Bearer {make_secret()}"},
        {"Authorization": f"Bearer {TOKEN}"},
        {"X_Api_Key": secret, "Authorization": f"Bearer {make_secret()}"},
        {"Cookie": f"key={secret}"},
    ]
    for headers in tries:
        assert await guarded.ask(**headers) == 401, headers
    assert await guarded.ask(path=f"/v1/models?api_key={secret}") == 401
    assert len(guarded.engine.exchanges) == asked


async def test_two_keys_in_one_request_are_none(guarded: Guarded) -> None:
    secret = guarded.store.add(Key("ann"), time.time())
    await guarded.until(secret, 200)
    both = [("Authorization", f"Bearer {make_secret()}"), ("Authorization", f"Bearer {secret}")]
    async with guarded.http.post(f"{guarded.url}/tokenize", headers=both) as answer:
        assert answer.status == 401


async def test_only_the_owner_learns_why(guarded: Guarded) -> None:
    now_s = time.time()
    late = guarded.store.add(Key("late", expires_unix_s=now_s - 3600), now_s)
    gone = guarded.store.add(Key("gone"), now_s)
    guarded.store.revoke("gone", now_s)
    live = guarded.store.add(Key("live"), now_s)
    await guarded.until(live, 200)
    for secret, words in (
        (late, "has expired"),
        (gone, "was revoked"),
        (late[:-1], "not known"),
        (gone[:-1], "not known"),
        (None, "none was sent"),
    ):
        status, document = await guarded.told(secret)
        assert status == 401
        error = document["error"]
        assert words in error["message"]
        assert "keys add" in error["message"]
        assert (error["code"], error["speaker"]) == (401, "gateway")


async def test_edits_are_followed_while_it_runs(guarded: Guarded) -> None:
    secret = guarded.store.add(Key("ann"), time.time())
    await guarded.until(secret, 200)
    guarded.store.revoke("ann", time.time())
    await guarded.until(secret, 401)


async def test_a_key_ends_in_the_middle_of_a_connection(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = guarded.store.add(Key("ann", expires_unix_s=time.time() + 3600), time.time())
    await guarded.until(secret, 200)
    later_s = time.time() + 3601
    monkeypatch.setattr("workhorse.serve.auth.time.time", lambda: later_s)
    status, document = await guarded.told(secret)
    assert status == 401
    assert "expired" in document["error"]["message"]


async def test_without_keys_it_is_open_to_this_machine_until_one_is_made(store: KeyStore) -> None:
    access = Access(store)
    assert not access.asks_for_key
    store.add(Key("ann"), time.time())
    assert Access(store).asks_for_key


async def test_the_last_key_revoked_opens_nothing(guarded: Guarded) -> None:
    secret = guarded.store.add(Key("ann"), time.time())
    await guarded.until(secret, 200)
    guarded.store.revoke("first", time.time())
    guarded.store.revoke("ann", time.time())
    await guarded.until(secret, 401)
    assert await guarded.ask() == 401


async def test_a_broken_store_keeps_the_keys_that_were_read(
    guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    secret = guarded.store.add(Key("ann"), time.time())
    await guarded.until(secret, 200)
    guarded.store.path.write_bytes(b"garbage" * 1000)
    async with asyncio.timeout(PATIENCE_S):
        while "cannot be used" not in caplog.text:
            await guarded.ask()
    assert await guarded.ask(secret) == 200
    assert await guarded.ask(make_secret()) == 401


async def test_keys_that_went_with_their_file_are_asked_for_still(
    guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    secret = guarded.store.add(Key("ann"), time.time())
    await guarded.until(secret, 200)
    for path in guarded.store.path.parent.glob(f"{guarded.store.path.name}*"):
        path.unlink()
    async with asyncio.timeout(PATIENCE_S):
        while "was taken away" not in caplog.text:
            await guarded.ask()
    guarded.store.forget_all()  # as the service's other writers make the file anew, and no key
    assert await guarded.ask() == 401
    assert await guarded.ask(secret) == 200
    again = guarded.store.add(Key("ann"), time.time())
    await guarded.until(again, 200)
    assert await guarded.ask(secret) == 401
    guarded.store.forget_all()
    await guarded.until("", 200)


async def test_whatever_fails_once_later_edits_are_followed(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    secret = guarded.store.add(Key("ann"), time.time())
    await guarded.until(secret, 200)

    def no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(KeyStore, "ring", no_thread)
        async with asyncio.timeout(PATIENCE_S):
            while "can't start" not in caplog.text:
                await guarded.ask()
    guarded.store.revoke("ann", time.time())
    await guarded.until(secret, 401)


@pytest.mark.parametrize("host", [PUBLIC, "::", "192.168.1.5", "server.lan", ""])
def test_no_other_machine_is_served_without_a_key(store: KeyStore, host: str) -> None:
    with pytest.raises(AppError, match="there is no key") as refused:
        Access(store).expose(host)
    assert "keys add" in str(refused.value)
    store.add(Key("ann"), time.time())
    Access(store).expose(host)


async def test_the_gateway_itself_refuses_to_listen(store: KeyStore) -> None:
    gateway = Gateway(build_app(Roster(), activity=Activity(), access=Access(store)))
    with pytest.raises(AppError, match="there is no key"):
        await gateway.start(PUBLIC, 0)


def test_who_serves_others_asks_for_a_key_even_when_all_are_deleted(store: KeyStore) -> None:
    store.add(Key("ann"), time.time())
    access = Access(store)
    access.expose("192.168.1.5")
    store.forget_all()
    assert Access(store).asks_for_key is False
    assert access.asks_for_key


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost", "LOCALHOST"])
def test_loopback_needs_no_key(store: KeyStore, host: str) -> None:
    Access(store).expose(host)
    assert is_loopback(host)


@pytest.mark.parametrize(
    ("host", "name"),
    [(PUBLIC, "llm.lan"), ("::", "llm.lan"), ("192.168.1.5", "192.168.1.5"), ("horse", "horse")],
)
def test_clients_are_told_a_name_that_they_can_ask_for(host: str, name: str) -> None:
    assert known_as(host, ("llm.lan", "horse")) == name


async def test_every_address_of_this_machine_is_asked_under_its_own_name(store: KeyStore) -> None:
    gateway = Gateway(build_app(Roster(), activity=Activity(), access=Access(store)))
    port = await gateway.start("127.8.8.8", 0)
    try:
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"http://127.8.8.8:{port}/v1/models") as answer,
        ):
            assert answer.status == 200
    finally:
        await gateway.stop()


async def test_only_who_runs_the_service_may_change_it(guarded: Guarded) -> None:
    secret = guarded.store.add(Key("ann"), time.time())
    await guarded.until(secret, 200)
    assert await guarded.ask(secret, "/workhorse/own") == 200
    assert await guarded.ask(TOKEN, "/workhorse/own") == 200
    assert await guarded.ask(None, "/workhorse/own") == 401
    assert await guarded.change(TOKEN) == 200
    for other in (secret, None, "", TOKEN + "x"):
        assert await guarded.change(other) == 403


async def test_a_key_sees_its_own_models(store: KeyStore) -> None:
    async with scripted(engine) as (_, url), aiohttp.ClientSession() as http:
        secret = store.add(Key("ann", models=("small", "gone")), time.time())
        both = [Served(name, StandInBackend(url)) for name in ("small", "large")]
        opened = Gateway(build_app(Roster(both), activity=Activity(), access=Access(store)))
        await opened.start(port=0)
        try:
            headers = {"Authorization": f"Bearer {secret}"}
            async with http.get(f"{opened.url}/v1/models", headers=headers) as answer:
                assert [one["id"] for one in (await answer.json())["data"]] == ["small"]
            asked = {"model": "large", "content": "a"}
            async with http.post(f"{opened.url}/tokenize", json=asked, headers=headers) as answer:
                assert answer.status == 404
                assert "Served here: small." in (await answer.json())["error"]["message"]
        finally:
            await opened.stop()


async def test_health_tells_strangers_only_that(guarded: Guarded) -> None:
    assert await guarded.told(path="/healthz") == (200, {"status": "ok", "state": "ready"})


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "llm.lan:8080"}, 200),
        ({"Host": "llm.lan", "Origin": "https://llm.lan"}, 200),
        ({"Host": "llm.lan", "Origin": "https://evil.example"}, 403),
        ({"Host": "llm.lan", "Origin": "null"}, 403),
        ({"Host": "llm.lan", "Origin": "http://[broken"}, 403),
        ({"Host": "[broken"}, 403),
    ],
)
async def test_with_a_key_any_name_will_do_but_no_foreign_page(
    guarded: Guarded, headers: dict[str, str], status: int
) -> None:
    secret = guarded.store.add(Key("ann"), time.time())
    await guarded.until(secret, 200)
    assert await guarded.ask(secret, **headers) == status


async def test_a_name_of_the_settings_is_ours(store: KeyStore) -> None:
    app = build_app(Roster(), activity=Activity(), access=Access(store, names=("LLM.lan",)))
    opened = Gateway(app)
    await opened.start(port=0)
    try:
        async with aiohttp.ClientSession() as http:
            for host, status in (("llm.lan", 503), ("other.lan", 403)):
                headers = {"Host": host, "Origin": f"https://{host}"}
                async with http.get(f"{opened.url}/healthz", headers=headers) as answer:
                    assert answer.status == status
    finally:
        await opened.stop()
