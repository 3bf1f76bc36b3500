"""Gives weights to other nodes: files by their hash alone, and on the head who fetches from whom.

What is asked, each time with the fleet's replica key:

    GET  /weights/SHA256        the file, or a stretch of it (Range)
    POST /weights/SHA256/turn   {"node", "failed"} -> {"url"} or {"wait_s"}   on the head
    POST /weights/SHA256/kept   {"node", "done_bytes"}: it still fetches      on the head
    POST /weights/SHA256/have   {"node", "port"}: it has the file, serves it  on the head
"""

import asyncio
import hmac
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec
from aiohttp import web

from workhorse.errors import AppError
from workhorse.fleet.weights_turns import Fetching, Turns
from workhorse.models.pull_record import PulledFile, inside, read_record, untouched
from workhorse.text import Text

# In the order in which they are tried: a second service of a machine finds the first one taken.
PORTS = tuple(range(8090, 8098))
BODY_BYTES_MAX = 4096
FOLDERS_MAX = 10_000
ORIGIN = "origin"
_ROUTE = "/weights/{sha256:[0-9a-f]{64}}"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class SharedFile:
    """A file as it was when it was hashed; changed since, it is not given to anybody."""

    path: Path
    sha256: str
    n_bytes: int
    changed_ns: int

    @property
    def is_untouched(self) -> bool:
        """Whether it is still the file that was hashed, as far as size and time tell."""
        return untouched(self.path, PulledFile("", self.n_bytes, self.changed_ns))


class _Asked(msgspec.Struct):
    node: str = ""
    failed: str | None = None
    done_bytes: int = 0
    port: int | None = None


class WeightsShare:
    """A small server in a thread of its own, open from `start` to `stop`.

    It gives the files that were added, and those that were fetched into `folder`. With `head`
    it also hands out turns, so that the nodes fetch from one another.
    """

    def __init__(
        self,
        key: str,
        *,
        folder: Path | None = None,
        head: bool = False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.host: str | None = None  # once it is open
        self.port: int | None = None
        self._key = key
        self._folder = folder
        self._files: dict[str, SharedFile] = {}
        self._turns = Turns(ORIGIN) if head else None
        self._now = now
        self._guard = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """Its address; files are below it."""
        return base_url(self.host or "", self.port or 0)

    def url_of(self, sha256: str) -> str:
        """Where it gives the file with this hash."""
        return f"{self.url}/weights/{sha256}"

    def add(self, files: Iterable[SharedFile]) -> None:
        """Give these too."""
        with self._guard:
            self._files.update({file.sha256: file for file in files})

    def fetching(self) -> tuple[Fetching, ...]:
        """Who fetches what from whom; nothing on a node that hands out no turns."""
        with self._guard:
            return () if self._turns is None else self._turns.fetching(self._now())

    def start(self, host: str, ports: Iterable[int] = PORTS) -> str:
        """Listen on this address of the machine alone, at the first port that is free."""
        opened = threading.Event()
        failed: list[BaseException] = []
        self._thread = threading.Thread(
            target=self._serve, args=(host, tuple(ports), opened, failed), daemon=True
        )
        self._thread.start()
        opened.wait()
        if failed:
            self._thread.join()
            self._thread = None
            raise _cannot_share(host, failed[0]) from failed[0]
        return self.url

    def stop(self) -> None:
        """Close; transfers that are under way are cut, and go on elsewhere. Safe more than once."""
        if self._thread is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._thread = self._loop = None

    # ------------------------------------------------------------ the thread

    def _serve(
        self,
        host: str,
        ports: tuple[int, ...],
        opened: threading.Event,
        failed: list[BaseException],
    ) -> None:
        loop = self._loop = asyncio.new_event_loop()
        runner = web.AppRunner(self.app(), access_log=None, shutdown_timeout=0.0)
        try:
            loop.run_until_complete(runner.setup())
            self.port = loop.run_until_complete(_listen(runner, host, ports))
            self.host = host
            opened.set()
            loop.run_forever()
        except OSError as error:
            failed.append(error)
        finally:
            loop.run_until_complete(runner.cleanup())
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()
            opened.set()

    def app(self) -> web.Application:
        """The routes, each behind the key."""
        app = web.Application(middlewares=[self._keyed], client_max_size=BODY_BYTES_MAX)
        app.router.add_get(_ROUTE, self._give)
        for name, answer in (("turn", self._turn), ("kept", self._kept), ("have", self._have)):
            app.router.add_post(f"{_ROUTE}/{name}", answer)
        return app

    @web.middleware
    async def _keyed(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        sent = request.headers.get("Authorization", "")
        # surrogateescape: what aiohttp does with bytes that are no UTF-8
        if not hmac.compare_digest(
            sent.encode("utf-8", "surrogateescape"), f"Bearer {self._key}".encode()
        ):
            raise web.HTTPUnauthorized(text="The fleet's key is needed here.\n")
        return await handler(request)

    async def _give(self, request: web.Request) -> web.StreamResponse:
        file = await asyncio.to_thread(self._find, request.match_info["sha256"])
        if file is None:
            raise web.HTTPNotFound(text="No such file here.\n")
        if "Accept-Encoding" in request.headers and (
            request.headers["Accept-Encoding"].lower() != "identity"
        ):
            # aiohttp would look for a packed file beside it, which nobody has shared.
            raise web.HTTPNotAcceptable(text="Only as it is: Accept-Encoding: identity.\n")
        return web.FileResponse(file.path, headers={"Content-Type": "application/octet-stream"})

    def _find(self, sha256: str) -> SharedFile | None:
        with self._guard:
            file = self._files.get(sha256)
        if file is None:
            file = None if self._folder is None else fetched_file(self._folder, sha256)
        return file if file is not None and file.is_untouched else None

    async def _turn(self, request: web.Request) -> web.Response:
        sha256, asked = request.match_info["sha256"], await _asked(request)
        if await asyncio.to_thread(self._find, sha256) is None:
            raise web.HTTPNotFound(text="No such file here.\n")
        own = self.url_of(sha256)
        failed = ORIGIN if asked.failed == own else asked.failed
        with self._guard:
            turn = self._own_turns().ask(sha256, _who(request, asked), self._now(), failed=failed)
        url = own if turn.url == ORIGIN else turn.url
        return web.json_response({"url": url, "wait_s": turn.wait_s})

    async def _kept(self, request: web.Request) -> web.Response:
        asked = await _asked(request)
        with self._guard:
            self._own_turns().keep(
                request.match_info["sha256"], _who(request, asked), asked.done_bytes, self._now()
            )
        return web.json_response({})

    async def _have(self, request: web.Request) -> web.Response:
        sha256, asked = request.match_info["sha256"], await _asked(request)
        url = None
        if asked.port is not None and 0 < asked.port < 65536 and request.remote:
            # Only of itself: nobody can name another's address.
            url = f"{base_url(request.remote, asked.port)}/weights/{sha256}"
        with self._guard:
            self._own_turns().done(sha256, _who(request, asked), url)
        return web.json_response({})

    def _own_turns(self) -> Turns:
        if self._turns is None:
            raise web.HTTPNotFound(text="Turns are given on the head.\n")
        return self._turns


def base_url(host: str, port: int) -> str:
    """The address of a share."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def fetched_file(folder: Path, sha256: str) -> SharedFile | None:
    """The file with this hash among those that were fetched into `folder`."""
    try:
        places = sorted(path for path in folder.iterdir() if path.is_dir())[:FOLDERS_MAX]
    except OSError:
        return None
    for place in places:
        for name, file in read_record(place).files.items():
            if file.digest is not None and file.digest.value == sha256 and inside(name):
                return SharedFile(place / name, sha256, file.size_bytes, file.changed_ns)
    return None


async def _asked(request: web.Request) -> _Asked:
    try:
        asked = msgspec.json.decode(await request.read(), type=_Asked)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise web.HTTPBadRequest(text="Not what is asked here.\n") from error
    if len(asked.node) > 100:
        raise web.HTTPBadRequest(text="A name has at most 100 letters.\n")
    return asked


def _who(request: web.Request, asked: _Asked) -> str:
    return f"{asked.node} ({request.remote})"


async def _listen(runner: web.AppRunner, host: str, ports: tuple[int, ...]) -> int:
    last: OSError | None = None
    for port in ports:
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except OSError as error:
            last = error
            continue
        opened: int = runner.addresses[0][1]
        return opened
    raise last or OSError("no port was given")


def _cannot_share(host: str, error: BaseException) -> AppError:
    return AppError(
        Text(
            f"The weights cannot be shared at {host}: {error}.",
            f"无法在 {host} 共享权重：{error}。",
        ),
        Text(
            f"Free one of the ports {PORTS[0]} to {PORTS[-1]}, or check the address.",
            f"请空出 {PORTS[0]} 到 {PORTS[-1]} 中的一个端口，或检查地址。",
        ),
    )
