"""A fleet without Ray: HAProxy, replicas, the cluster and Serve as stand-ins on loopback."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from aiohttp import web

import builders
from workhorse.codec import to_json
from workhorse.config import Places
from workhorse.fleet.deployed import DeploymentState
from workhorse.fleet.front import FleetFront
from workhorse.fleet.matching import Entry
from workhorse.fleet.node_facts import Node
from workhorse.fleet.pulse import Patience
from workhorse.fleet.spec import FACTS_PATH, REPLICA_HEADER, ReplicaFacts, ReplicaSpec
from workhorse.plan.planner import make_plan
from workhorse.plan.wish import Wish
from workhorse.text import Text

KEY = "the key of all replicas"
PATIENCE_S = 120.0  # for what must come true on a machine with other work
# Nothing is given up in a test that is not about giving up, however slow the machine is.
PATIENT = Patience(poll_s=PATIENCE_S, silent_s=PATIENCE_S, gone_s=PATIENCE_S)
PLAN = make_plan(
    builders.machine(), builders.model(), builders.EMBEDDED, Wish(context_tokens=1024, slots=2)
)

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def spec(name: str, node_id: str | None = None, **changes: Any) -> ReplicaSpec:
    """What a replica with two slots is told."""
    told = ReplicaSpec(name, "horse", PLAN, None, {"numa_0": 1.0}, "old-box", node_id)
    return replace(told, **changes)


def sse(*documents: Mapping[str, Any]) -> bytes:
    return b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in documents)


def piece(content: str | None, finish: str | None = None) -> dict[str, Any]:
    delta = {} if content is None else {"content": content}
    return {
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }


@dataclass
class StandInReplica:
    """One replica behind the stand-in proxy, and what a test does to it."""

    name: str
    state: str = "ready"
    boot: str = "1"
    slots: int = 2
    gone: bool = False  # HAProxy knows its route and has no server for it
    polled: int = 0
    asked: list[web.Request] = field(default_factory=list)
    most_at_once: int = 0
    running: int = 0
    # Set while its link works; cleared, nothing comes through any more.
    link: asyncio.Event = field(default_factory=asyncio.Event)
    answer: Answer | None = None
    key: str = KEY

    def __post_init__(self) -> None:
        self.link.set()

    def facts(self) -> ReplicaFacts:
        return ReplicaFacts(
            self.name,
            "horse",
            self.state,  # type: ignore[arg-type]
            "box",
            1,
            self.slots,
            1024,
            300.0,
            25.0,
            60.0,
            True,
            False,
            1.0,
            self.boot,
        )

    async def says_who(self, request: web.Request) -> web.StreamResponse:
        """The usual answer: its own name, as a stream."""
        response = await self.begin(request)
        await response.write(sse(piece(self.name)) + sse(piece(None, "stop")) + b"data: [DONE]\n\n")
        return response

    async def begin(self, request: web.Request) -> web.StreamResponse:
        headers = {REPLICA_HEADER: self.boot, "Content-Type": "text/event-stream"}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        return response


class StandInProxy:
    """A node's HAProxy: routes by path to the replicas that are shared by all proxies of a test."""

    def __init__(self, replicas: dict[str, StandInReplica], port: int | None = None) -> None:
        self.replicas = replicas
        self.port = free_port() if port is None else port
        self.requests = 0
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True).start()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.requests += 1
        if request.path == "/-/healthz":
            return web.Response(text="success")
        _, r, name, *rest = request.path.split("/")
        replica = self.replicas.get(name)
        if r != "r" or replica is None:
            return web.Response(status=404, text="Path not found.")
        if replica.gone:
            return web.Response(status=500, text="Internal Server Error")
        await replica.link.wait()
        if request.headers.get("Authorization") != f"Bearer {replica.key}":
            return web.Response(status=401, headers={REPLICA_HEADER: replica.boot})
        if "/" + "/".join(rest) == FACTS_PATH:
            replica.polled += 1
            headers = {REPLICA_HEADER: replica.boot}
            return web.Response(text=to_json(replica.facts()), headers=headers)
        return await self._compute(replica, request)

    async def _compute(self, replica: StandInReplica, request: web.Request) -> web.StreamResponse:
        replica.asked.append(request)
        replica.running += 1
        replica.most_at_once = max(replica.most_at_once, replica.running)
        try:
            await request.read()
            return await (replica.answer or replica.says_who)(request)
        finally:
            replica.running -= 1


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class StandInServe:
    """Serve: what is put runs at once, as a stand-in behind the proxies, unless it may not."""

    def __init__(self, replicas: dict[str, StandInReplica]) -> None:
        self.replicas = replicas
        self.told: dict[str, ReplicaSpec] = {}
        self.refused: dict[str, DeploymentState] = {}  # by name: what does not start
        self.started_at: int | None = None
        self.removed: list[str] = []

    def start(self, http_port: int) -> None:
        self.started_at = http_port

    def put(self, spec: ReplicaSpec) -> None:
        self.told[spec.name] = spec
        if spec.name not in self.refused:
            self.replicas[spec.name] = StandInReplica(spec.name)

    def remove(self, name: str) -> None:
        self.removed.append(name)
        self.told.pop(name, None)
        self.replicas.pop(name, None)

    def specs(self) -> dict[str, ReplicaSpec]:
        return dict(self.told)

    def states(self) -> dict[str, DeploymentState]:
        return {
            name: self.refused.get(name, DeploymentState("running", "", spec.node_id))
            for name, spec in self.told.items()
        }


class StandInCluster:
    """The nodes of a fleet; work on a node is done here and now."""

    def __init__(self, *nodes: Node) -> None:
        self.found = list(nodes)
        self.asked: list[str] = []

    def nodes(self) -> tuple[Node, ...]:
        return tuple(self.found)

    def set_draining(self, node_id: str, draining: bool) -> None:
        self.change(node_id, draining=draining)

    def change(self, node_id: str, **changes: Any) -> None:
        self.found = [replace(n, **changes) if n.id == node_id else n for n in self.found]

    def on_node(self, node: Node, function: Any, *args: Any, **kwargs: Any) -> Any:
        self.asked.append(node.id)
        return function(*args, **kwargs)


def node(name: str, *, head: bool = False, **labels: str) -> Node:
    """A living node; its id is its name with a number."""
    kind = {"workhorse.kind": "old-box"}
    return Node(f"{name}-1", name, "127.0.0.1", head, True, False, kind | labels, {"numa_0": 1.0})


class Listener:
    """Hears what is told."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.plans: list[Any] = []
        self.url: str | None = None

    def stage(self, words: Text) -> None:
        self.said.append(words.en)

    def progress(self, done: int, total: int | None) -> None:
        pass

    def planned(self, plan: Any) -> None:
        self.plans.append(plan)

    def ready(self, model_name: str, url: str, took_s: float, *, keyed: bool) -> None:
        self.url = url


async def until(condition: Callable[[], object]) -> None:
    """Wait for what must come true."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110  (what happens in a stand-in sets no event)
            await asyncio.sleep(0.01)


@asynccontextmanager
async def front_of(
    home: Path,
    *replicas: StandInReplica,
    patience: Mapping[str, Patience] | None = None,
    proxies: int = 1,
) -> AsyncIterator[tuple[FleetFront, list[StandInProxy]]]:
    """An open gateway in front of stand-ins that are all known to be ready or not."""
    shared = {one.name: one for one in replicas}
    ways = [StandInProxy(shared) for _ in range(proxies)]
    front = FleetFront(Places(home), Listener(), key=KEY, patience=PATIENT)
    front.mount_all()
    try:
        for way in ways:
            await way.start()
        front.entries.put([Entry(f"node{n}", way.url) for n, way in enumerate(ways)])
        await front.open(0)
        for one in replicas:
            front.patience = (patience or {}).get(one.name, PATIENT)
            front.add(spec(one.name))
        await until(
            lambda: all(
                front.replicas[one.name].state == one.state for one in replicas if one.link.is_set()
            )
        )
        yield front, ways
    finally:
        for one in replicas:
            one.link.set()
        await front.close()
        for way in ways:
            await way.stop()
