"""Clients that vanish, dawdle, lie and attack: nobody gets in, and every slot comes back.

What must be so in the end is waited for, with a bound; nothing is asserted of how long it took.
"""

import asyncio
import json
import random
import resource
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fake_client import Client, fake, until
from stand_ins import Exchange, ScriptedEngine, StandInBackend, scripted

from workhorse.serve.activity import Activity
from workhorse.serve.app import QUEUE, Gateway, build_app
from workhorse.serve.auth import Access
from workhorse.serve.backend import Capacity, Roster, Served
from workhorse.serve.door import Limits
from workhorse.serve.key_store import KeyStore
from workhorse.serve.keys import Key, make_secret
from workhorse.units import MIB

PATIENCE_S = 120.0
SLOTS = 4
VANISHING = 500
AT_ONCE = 50
CHAT = {"messages": [{"role": "user", "content": "Tell a long story. " * 20}]}


@dataclass
class Besieged:
    """A gateway with one key, in front of an engine with few slots."""

    url: str
    secret: str
    store: KeyStore
    activity: Activity
    app: Any
    served: Served
    engine: Client | None = None
    script: ScriptedEngine | None = None
    chance: random.Random = field(default_factory=lambda: random.Random(6))

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.url.removeprefix("http://").split(":")
        return host, int(port)

    async def connect(
        self, words: bytes = b""
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*self.address)
        writer.write(words)
        return reader, writer

    async def say(self, words: bytes) -> bytes:
        """What comes back until the connection closes; half of it may be lost when it is cut."""
        reader, writer = await self.connect(words)
        said = b""
        with suppress(ConnectionError):
            while block := await asyncio.wait_for(reader.read(2**16), PATIENCE_S):
                said += block
        writer.close()
        return said

    def post(
        self, body: bytes, headers: str = "", *, path: str = "/v1/chat/completions", key: str = ""
    ) -> bytes:
        head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key or self.secret}"
        )
        head += f"\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
        return head.encode() + body

    def chat(self, headers: str = "", **more: Any) -> bytes:
        return self.post(json.dumps(CHAT | more).encode(), headers)

    async def serves(self) -> None:
        """A client that behaves gets its whole answer."""
        said = await self.say(self.chat("Connection: close\r\n", max_tokens=3, stream=True))
        assert b" 200 " in said.split(b"\r\n")[0], said[:300]
        assert b"data: [DONE]" in said

    async def all_slots_are_back(self) -> None:
        """Nobody is served, nobody waits, in the gateway and in the engine."""
        assert self.engine is not None
        await until(lambda: not self.activity.in_flight, PATIENCE_S)
        await until(lambda: not self.app[QUEUE].waiting(self.served), PATIENCE_S)
        slots = self.engine.server.decoder.slots
        await until(lambda: not any(slots.busy) and not slots.waiting, PATIENCE_S)


@asynccontextmanager
async def besieged(url: str, folder: Path, **limits: Any) -> AsyncIterator[Besieged]:
    store, activity = KeyStore(folder / "service.sqlite"), Activity()
    secret = store.add(Key("ann"), time.time())
    served = Served("horse", StandInBackend(url), Capacity(SLOTS, 4096))
    app = build_app(
        Roster((served,)),
        activity=activity,
        access=Access(store),
        limits=Limits(**limits),
        queue_length=VANISHING,
        longest_wait_s=1e9,
    )
    opened = Gateway(app)
    await opened.start(port=0)
    try:
        yield Besieged(opened.url or "", secret, store, activity, app, served)
    finally:
        await opened.stop()


@asynccontextmanager
async def before_the_fake(folder: Path, **limits: Any) -> AsyncIterator[Besieged]:
    told = {"slots": SLOTS, "gap_s": 0.002, "prefill_s_per_token": 0.0001, "deaf": True}
    async with fake(**told) as engine, besieged(engine.url, folder, **limits) as made:
        made.engine = engine
        yield made


@pytest.fixture
async def before_a_script(tmp_path: Path) -> AsyncIterator[Besieged]:
    async def answers(to: Exchange) -> None:
        await to.whole({"tokens": [len(to.body)]})

    async with scripted(answers) as (engine, url), besieged(url, tmp_path) as made:
        made.script = engine
        yield made


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def vanish(at: Besieged) -> None:
    """Sends some of a request or all of it, reads some of the answer or none, and is gone."""
    chance = at.chance
    words = at.chat(stream=chance.random() < 0.5, max_tokens=chance.choice((1, 50, 2000)))
    if chance.random() < 0.3:
        words = words[: chance.randrange(len(words))]
    reader, writer = await at.connect(words)
    with suppress(ConnectionError):
        if chance.random() < 0.5:
            await asyncio.sleep(chance.random() * 0.05)
        if chance.random() < 0.5:
            with suppress(TimeoutError):
                await asyncio.wait_for(reader.read(chance.randrange(1, 5000)), 0.05)
        if chance.random() < 0.3:
            writer.write_eof()  # half open: it would still listen
            await asyncio.sleep(0.01)
    if chance.random() < 0.5:
        writer.transport.abort()
    writer.close()


async def test_hundreds_of_clients_that_vanish(tmp_path: Path) -> None:
    async with before_the_fake(tmp_path) as at:
        await at.serves()
        await at.all_slots_are_back()
        files = open_files()
        room = asyncio.Semaphore(AT_ONCE)

        async def one() -> None:
            async with room:
                await vanish(at)

        await asyncio.gather(*(one() for _ in range(VANISHING)))
        await at.all_slots_are_back()
        await at.serves()
        await until(lambda: open_files() <= files, PATIENCE_S)


async def test_readers_that_stop_reading_hold_no_slot(tmp_path: Path) -> None:
    async with before_the_fake(tmp_path, stalled_s=0.2) as at:
        # More than the system takes in for a reader that sleeps, again and again.
        words = at.chat(stream=True, max_tokens=3000, logprobs=True)
        held = [await at.connect(words) for _ in range(3 * SLOTS)]

        async def falls_asleep(reader: asyncio.StreamReader) -> None:
            with suppress(ConnectionError):  # cut before it could even begin
                await asyncio.wait_for(reader.read(1), PATIENCE_S)
                reader._transport.pause_reading()  # type: ignore[attr-defined]

        await asyncio.gather(*(falls_asleep(reader) for reader, _ in held))
        await at.serves()
        await at.all_slots_are_back()
        for _, writer in held:
            writer.transport.abort()


async def test_senders_that_dawdle_hold_no_slot(tmp_path: Path) -> None:
    async with before_the_fake(tmp_path, body_s=1.0) as at:
        words = at.chat(max_tokens=3)
        held = [await at.connect(words[:-n]) for n in range(1, 10 * SLOTS)]
        await at.serves()
        assert at.activity.in_flight == 0, "half a request makes nobody work"
        for reader, writer in held:
            assert b" 408 " in await asyncio.wait_for(reader.readline(), PATIENCE_S)
            writer.close()
        await at.all_slots_are_back()


async def test_bodies_of_a_hundred_megabytes(tmp_path: Path) -> None:
    block = b"x" * MIB
    async with before_the_fake(tmp_path, body_bytes=MIB) as at:
        await at.serves()
        peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

        async def send(announced: bool) -> bytes:
            framing = f"Content-Length: {100 * MIB}" if announced else "Transfer-Encoding: chunked"
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n{framing}\r\n"
            reader, writer = await at.connect(
                f"{head}Authorization: Bearer {at.secret}\r\n\r\n".encode()
            )
            # Read while sending: what comes is lost once the door is shut on who still sends.
            line = asyncio.create_task(reader.readline())
            with suppress(ConnectionError):
                for _ in range(100):
                    writer.write(block if announced else b"%x\r\n%s\r\n" % (MIB, block))
                    await writer.drain()
            writer.close()
            return await asyncio.wait_for(line, PATIENCE_S)

        lines = await asyncio.gather(*(send(n % 2 == 0) for n in range(10)))
        assert {line.split(b" ")[1] for line in lines} == {b"413"}
        grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak_kib
        assert grown_kib < 100 * 1024, "a thousand megabytes were sent"
        await at.all_slots_are_back()
        await at.serves()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"hello"',
        b"{}",
        b'{"messages": 5}',
        b'{"messages": [null]}',
        b'{"messages": [], "stream": "maybe"}',
        b'{"model": {}, "messages": []}',
        b'{"model": "\\ud800", "messages": []}',
        b'{"messages": [], "max_tokens": "many"}',
        b'{"a":' * 50_000,
        b"\xff\xfe{\x00}\x00",
        b"\x00" * 1000,
        b'{"messages": [], "messages": 7}',
    ],
)
async def test_bodies_that_are_no_request(tmp_path: Path, body: bytes) -> None:
    async with before_the_fake(tmp_path) as at:
        said = await at.say(at.post(body, "Connection: close\r\n"))
        head, _, answer = said.partition(b"\r\n\r\n")
        status = int(head.split(b" ")[1])
        assert status == 200 or 400 <= status < 600
        document = json.loads(answer)
        assert ("error" in document) == (status != 200)
        await at.all_slots_are_back()
        await at.serves()


async def test_pipelined_requests_each_need_their_own_key(before_a_script: Besieged) -> None:
    at = before_a_script
    words, expected = b"", []
    for n in range(40):
        good = at.chance.random() < 0.5
        key = at.secret if good else make_secret()
        last = "Connection: close\r\n" if n == 39 else ""
        words += at.post(b"{}" + b" " * n, last, path="/tokenize", key=key)
        expected.append(b"200" if good else b"401")
    said = await at.say(words)
    found = [part[:3] for part in said.split(b"HTTP/1.1 ")[1:]]
    assert found == expected
    assert at.script is not None
    assert len(at.script.exchanges) == expected.count(b"200")


SMUGGLED = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8\r\n\r\nSMUGGLED"


@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n",
        b"Content-Length: 0\r\nContent-Length: 99\r\n\r\n",
        b"Content-Length: 0, 99\r\n\r\n",
        b"Content-Length: +2\r\n\r\n{}",
        b"Content-Length: 0x2\r\n\r\n{}",
        b"Content-Length: -1\r\n\r\n",
        b"Content-Length: 2 \r\n\r\n{}",
        b"Content-Length : 2\r\n\r\n{}",
        b"Content-Length: 99999999999999999999999\r\n\r\n{}",
        b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: identity\r\nContent-Length: 2\r\n\r\n{}",
        b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
        b" Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n{}",
        b"X: y\r\n Content-Length: 0\r\nContent-Length: 2\r\n\r\n{}",
        b"X: y\nContent-Length: 2\r\n\r\n{}",
        b"X: y\rContent-Length: 2\r\n\r\n{}",
        b"X: y\x00z\r\nContent-Length: 2\r\n\r\n{}",
        b"Transfer-Encoding: chunked\r\n\r\n2;a=b\r\n{}\r\n0\r\nX: y\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n-2\r\n{}\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n2\n{}\n0\n\n",
        b"Transfer-Encoding: chunked\r\n\r\n0\r\nAuthorization: Bearer x\r\n\r\n",
        b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n{}",
        b"Connection: Authorization\r\nContent-Length: 2\r\n\r\n{}",
        b"Upgrade: websocket\r\nConnection: Upgrade\r\nContent-Length: 2\r\n\r\n{}",
        b"X-Original-URL: /workhorse/reload\r\nX-HTTP-Method-Override: DELETE\r\n"
        b"Content-Length: 2\r\n\r\n{}",
    ],
)
async def test_nothing_is_smuggled_past_the_key(before_a_script: Besieged, framing: bytes) -> None:
    """A second request hidden in or behind the first is either refused or asked for its key."""
    at = before_a_script
    head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "
    reader, writer = await at.connect(head + at.secret.encode() + b"\r\n" + framing + SMUGGLED)
    writer.write_eof()
    with suppress(ConnectionError):
        await asyncio.wait_for(reader.read(), PATIENCE_S)
    writer.close()
    ask = at.post(b"{}", "Connection: close\r\n", path="/tokenize")
    assert b" 200 " in (await at.say(ask)).split(b"\r\n")[0]
    assert at.script is not None
    asked = at.script.exchanges
    assert not any(b"SMUGGLED" in one.body or "SMUGGLED" in one.head for one in asked)
    assert all(one.head.startswith("POST /tokenize ") for one in asked)


@pytest.mark.parametrize(
    "line",
    [
        b"POST http://evil.example/tokenize HTTP/1.1",
        b"POST //evil.example/tokenize HTTP/1.1",
        b"POST /tokenize/../workhorse/reload HTTP/1.1",
        b"POST /%2e%2e/tokenize HTTP/1.1",
        b"POST /tokenize#x HTTP/1.1",
        b"POST /dashboard/../tokenize HTTP/1.1",
        b"POST /healthz/../tokenize HTTP/1.1",
        b"POST /healthz%2f..%2ftokenize HTTP/1.1",
        b"POST /TOKENIZE HTTP/1.1",
        b"POST /tokenize\t HTTP/1.1",
        b"POST /tokenize HTTP/1.1 HTTP/1.1",
        b"POST /tokenize HTTP/9.9",
        b"CONNECT 127.0.0.1:22 HTTP/1.1",
        b"PRI * HTTP/2.0",
    ],
)
async def test_no_spelling_of_a_path_goes_around_the_key(
    before_a_script: Besieged, line: bytes
) -> None:
    at = before_a_script
    said = await at.say(
        line + b"\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
    )
    assert not said or said.split(b" ")[1] in (b"400", b"401", b"403", b"404", b"405"), said[:200]
    assert at.script is not None
    assert at.script.exchanges == []


async def test_a_query_is_no_way_into_the_engines_header(before_a_script: Besieged) -> None:
    at = before_a_script
    for query in (
        "a=%0d%0aX-Evil:%20y",
        "a=%0aX-Evil:y",
        "a=b%20HTTP/1.1%0d%0a%0d%0aX-Evil",
        "%00",
    ):
        path = f"/tokenize?{query}"
        said = await at.say(at.post(b"{}", "Connection: close\r\n", path=path))
        assert b" 200 " in said.split(b"\r\n")[0]
    assert at.script is not None
    for one in at.script.exchanges:
        line, *fields = one.head.split("\r\n")
        assert line.count(" ") == 2
        assert not any("evil" in field.lower() for field in fields)
        assert one.body == b"{}"


async def test_wrong_expired_and_revoked_keys_under_load(tmp_path: Path) -> None:
    async with before_the_fake(tmp_path) as at:
        now_s = time.time()
        late = at.store.add(Key("late", expires_unix_s=now_s - 3600), now_s)
        gone = at.store.add(Key("gone"), now_s)
        at.store.revoke("gone", now_s)

        def wrong() -> str:
            spoilt = list(at.secret)
            spoilt[at.chance.randrange(3, len(spoilt))] = "!"
            return at.chance.choice((late, gone, make_secret(), "".join(spoilt), "wh-", "none"))

        async def knock() -> bytes:
            words = at.post(json.dumps(CHAT).encode(), "Connection: close\r\n", key=wrong())
            return (await at.say(words)).split(b" ")[1]

        found = await asyncio.gather(*(knock() for _ in range(200)), at.serves(), at.serves())
        assert set(found[:-2]) == {b"401"}
        await at.all_slots_are_back()
