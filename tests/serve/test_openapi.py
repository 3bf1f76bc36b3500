"""The OpenAPI document says what is so: every route is in it, and random requests bear it out."""

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from aiohttp import web
from fake_client import fake
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import load_all_checks
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi import checks
from stand_ins import StandInBackend

from workhorse.serve.activity import Activity
from workhorse.serve.app import Gateway, build_app
from workhorse.serve.auth import Access
from workhorse.serve.backend import Roster, Served
from workhorse.serve.key_store import KeyStore
from workhorse.serve.keys import Key
from workhorse.serve.openapi import document

EXAMPLES = 8  # of each route; more find nothing more
PATIENCE_S = 120.0
CHECKS = (
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.unsupported_method,
    checks.ignored_auth,
)


def test_every_route_is_described() -> None:
    app = build_app(Roster(), activity=Activity())
    routes = {
        (route.method.lower(), route.resource.canonical)
        for route in app.router.routes()
        if route.resource is not None and route.method != "HEAD"
    }
    described = {
        (method, path)
        for path, methods in document(asks_for_key=True)["paths"].items()
        for method in methods
    }
    assert described == routes


class Running:
    """A gateway with a key before a fake engine, in a thread of its own."""

    def __init__(self, folder: Path) -> None:
        store = KeyStore(folder / "service.sqlite")
        self.secret = store.add(Key("ann"), time.time())
        self.app: web.Application
        self.url: str = ""
        self._store = store
        self._open, self._stop = threading.Event(), asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))

    async def _run(self) -> None:
        async with fake(slots=4, answer_tokens=5, embeddings=True) as engine:
            served = Served("horse", StandInBackend(engine.url))
            access = Access(self._store)
            gateway = Gateway(build_app(Roster((served,)), activity=Activity(), access=access))
            await gateway.start(port=0)
            self.url = gateway.url or ""
            self._open.set()
            await self._stop.wait()
            await gateway.stop()

    def __enter__(self) -> "Running":
        self._thread.start()
        assert self._open.wait(PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE_S)
        self._loop.close()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    load_all_checks()
    with Running(tmp_path_factory.mktemp("keys")) as made:
        yield made


@pytest.fixture(scope="module")
def described(running: Running) -> Any:
    own = {"Authorization": f"Bearer {running.secret}"}
    config = SchemathesisConfig.from_dict({"headers": own})
    return schemathesis.openapi.from_url(f"{running.url}/openapi.json", headers=own, config=config)


OPERATIONS = [
    (method, path)
    for path, methods in document(asks_for_key=True)["paths"].items()
    for method in methods
]


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_random_requests(described: Any, running: Running, method: str, path: str) -> None:
    headers = {"Authorization": f"Bearer {running.secret}"}

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,  # the same requests on every machine
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(case=described[path][method].as_strategy())
    def ask(case: Any) -> None:
        response = case.call_and_validate(headers=headers, checks=CHECKS)
        if not response.headers["content-type"][0].startswith("application/json"):
            return
        found = response.json()
        error = found.get("error") if isinstance(found, dict) else None
        ours = isinstance(error, dict) and error.get("speaker") == "gateway"
        assert not (ours and response.status_code >= 500), found

    ask()
