"""A replica on any node, as the gateway sees it: asked over a node's HAProxy, polled for life.

Requests tell at once when it fails, polls when it is back; answers of one that is gone are ended
here, since a machine that has lost its link closes no connection.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from workhorse.codec import from_json
from workhorse.errors import AppError
from workhorse.fleet.entries import Entries
from workhorse.fleet.pulse import Patience, Pulse
from workhorse.fleet.spec import FACTS_PATH, REPLICA_HEADER, ReplicaFacts, ReplicaSpec
from workhorse.run.address import Address, Asking, Link
from workhorse.run.supervisor import EngineUnavailable
from workhorse.serve.backend import READY, Capacity, Served, capacity_of
from workhorse.serve.engine_socket import RefusesError
from workhorse.serve.upstream import ask_the_engine
from workhorse.serve.wire import BrokenAnswerError
from workhorse.text import Text

POLL_EVERY_S = 1.0
LARGEST_FACTS_BYTES = 64 * 1024
MARK = REPLICA_HEADER.lower()


class RemoteReplica:
    """One replica: a `Backend` of the gateway; `watch` has to run beside it."""

    def __init__(
        self,
        spec: ReplicaSpec,
        key: str,
        entries: Entries,
        changed: Callable[["RemoteReplica"], None] = lambda _: None,
        patience: Patience | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.spec, self._patience = spec, patience or Patience()
        self.served = Served(
            spec.model_name, self, capacity_of(spec.plan), spec.plan.engine.engine, spec.name
        )
        self.reason: Text | None = None  # why it is not ready, as Serve says
        self.draining = False  # it gets no new request
        self.away_since_s: float | None = None  # when it was ready before and is not now
        self._key, self._entries, self._changed, self._clock = key, entries, changed, clock
        self._pulse = Pulse(self._patience)
        self._link = Link(self._failed, lambda headers: MARK in headers)
        self._received: dict[Asking, int] = {}
        self._ready, self._look = asyncio.Event(), asyncio.Event()

    # what the gateway asks

    @property
    def state(self) -> str:
        """`ready`, or one word for what it does instead."""
        return self._pulse.state

    @property
    def restarts(self) -> int:
        """How often it was started again; what it had cached is gone then."""
        return self._pulse.restarts

    @property
    def facts(self) -> ReplicaFacts | None:
        """What it said of itself last; None: nothing yet."""
        return self._pulse.facts

    @property
    def capacity(self) -> Capacity:
        """What it can take, as it was measured there, or planned."""
        return self.served.capacity or capacity_of(self.spec.plan)

    async def address(self, wait_s: float) -> Address:
        """Where it answers; waits up to `wait_s` seconds for it to be ready."""
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._ready.wait()
        found = self._address() if self._ready.is_set() else None
        if found is None:
            raise self._unavailable()
        return found

    def _address(self, *, poll: bool = False) -> Address | None:
        entry = self._entries.best
        if entry is None:
            return None
        link = Link(lambda _: None, self._link.is_its_own) if poll else self._link
        return Address(entry.url + self.spec.route, self._key, link)

    def _unavailable(self) -> EngineUnavailable:
        name, state = self.spec.name, _STATES[self.state]
        why = self.reason or Text("", "")
        return EngineUnavailable(
            Text(
                f"Replica {name} {state.en}. {why.en}".strip(),
                f"副本 {name} {state.zh}。{why.zh}",
            ),
            Text("Ask again in a minute.", "请一分钟后重试。"),
            speaker="gateway",
        )

    # what shows whether it lives

    async def watch(self) -> None:
        """Poll it until cancelled."""
        while True:
            self._look.clear()
            await self.poll()
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_EVERY_S):
                    await self._look.wait()

    async def poll(self) -> None:
        """Ask it once how it is; through another entry when the one that was asked is dead."""
        for _ in range(2):
            address = self._address(poll=True)
            if address is None:
                self._pulse.absent()
                break
            try:
                async with asyncio.timeout(self._patience.poll_s):
                    self._pulse.answered(await self._facts(address), self._clock())
                break
            except (RefusesError, BrokenAnswerError, AppError):
                self._pulse.absent()
            except TimeoutError:
                self._pulse.unanswered(self._clock())
            if await self._entries.answers(address.url.removesuffix(self.spec.route)):
                break
        self._hear()
        self._give_up()
        self._show()

    def _give_up(self) -> None:
        """End the answers that will not come.

        What has no answer yet is asked for elsewhere, and soon: while a replica is started again,
        Serve keeps requests to it in a line of its own.
        """
        gone, lost = self._pulse.is_gone(self._clock()), self._pulse.state in ("silent", "away")
        for one in tuple(self._link.asking):
            if gone or (lost and not one.received_bytes):
                one.lose("nothing is heard of the replica any more")

    async def _facts(self, address: Address) -> ReplicaFacts:
        answer = await ask_the_engine(address, "GET", FACTS_PATH, b"")
        try:
            document = b""
            while part := await answer.read_some():
                document += part
                if len(document) > LARGEST_FACTS_BYTES:
                    raise BrokenAnswerError("facts that do not end")
        finally:
            answer.close()
        if answer.head.status != 200:
            raise BrokenAnswerError(f"HTTP {answer.head.status}")
        return from_json(ReplicaFacts, document, what="replica")

    def _hear(self) -> None:
        """A piece of an answer since the last look is as good as an answered poll."""
        now = {one: one.received_bytes for one in self._link.asking}
        if any(count > self._received.get(one, 0) for one, count in now.items()):
            self._pulse.heard(self._clock())
        self._received = now

    def _failed(self, _: str) -> None:
        """A request got no answer of the engine's: until a poll says better, it is away."""
        if self.state != "silent":  # then it was we who gave the request up
            self._pulse.absent()
            self._show()
        self._look.set()

    def _show(self) -> None:
        """Let the gateway see what has changed."""
        state, facts = self._pulse.state, self._pulse.facts
        if state in (READY, "starting"):
            self.away_since_s = None
        elif self.away_since_s is None:
            self.away_since_s = self._clock()
        if (state == READY) != self._ready.is_set():
            (self._ready.set if state == READY else self._ready.clear)()
        if facts is not None:
            told = replace(self.served, capacity=capacity_told(self.spec, facts))
            self.served = told if told != self.served else self.served
        self._changed(self)


def capacity_told(spec: ReplicaSpec, facts: ReplicaFacts) -> Capacity:
    """What a replica can take, as it was measured on its node; the plan's figures fill gaps."""
    planned = capacity_of(spec.plan)
    return Capacity(
        facts.slots,
        facts.context_tokens,
        facts.prefill_tokens_per_s or planned.prefill_tokens_per_s,
        facts.decode_tokens_per_s or planned.decode_tokens_per_s,
        facts.total_tokens_per_s or planned.total_tokens_per_s,
        planned.images if facts.images is None else facts.images,
    )


_STATES: Mapping[str, Text] = {
    "starting": Text("is still being started", "仍在启动"),
    "ready": Text("was ready a moment ago", "刚才还处于就绪状态"),
    "draining": Text("is being taken out of service", "正在停止服务"),
    "silent": Text("does not answer", "没有应答"),
    "away": Text("is not there: it is being started again", "不在线：正在重新启动"),
}
