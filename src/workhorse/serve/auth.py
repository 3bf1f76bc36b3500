"""Who is let in: the keys in force, and the one place where every request is judged."""

import asyncio
import hmac
import ipaddress
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from urllib.parse import unquote

from aiohttp import web
from aiohttp.typedefs import Middleware

from workhorse.errors import EXIT_NO, AppError
from workhorse.serve.key_store import KeyStore
from workhorse.serve.keys import Key, KeyRing, WhyNot
from workhorse.serve.origin import LOOPBACK, refused_by
from workhorse.serve.refusal import json_response, refusal
from workhorse.serve.who import ENDED, KEY
from workhorse.text import Text

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

# An edit by `workhorse keys` is in force within a second: half of it may pass before it is seen.
READ_EVERY_S = 0.5
# Without a key: is the service well, and the page that asks for a key.
OPEN = frozenset({"/", "/favicon.ico", "/healthz"})
OPEN_FOLDER = "/dashboard/"
# What the commands of the user who runs the service may ask with the token in its run file.
OWN = "/workhorse/"
# The service's own batches ask in the name of the key that ordered them: its name, percent-encoded;
# empty for what was ordered before there were keys. It counts with the token alone.
FOR_HEADER = "X-Workhorse-For"
# What is nobody else's, even to read: plans name folders of this machine.
OWN_ALONE = frozenset({"/workhorse/plans"})

_WHY: dict[WhyNot, Text] = {
    "none": Text("A key is needed here, and none was sent.", "此处需要密钥，但请求未携带。"),
    "unknown": Text("This key is not known here.", "此密钥无效。"),
    "revoked": Text("This key was revoked.", "此密钥已被吊销。"),
    "expired": Text("This key has expired.", "此密钥已过期。"),
}
_NEXT = Text(
    "Send `Authorization: Bearer KEY`; who runs this service makes keys with `workhorse keys add`.",
    "请发送 `Authorization: Bearer 密钥`；服务的管理员可用 `workhorse keys add` 创建密钥。",
)
_ONLY_OWN = Text(
    "Only who runs this service may ask for this or change how it runs.",
    "仅服务的运行者可查询此项或更改其运行方式。",
)
_ASK_OWN = Text(
    "Use the `workhorse` command on the machine itself.", "请在本机使用 `workhorse` 命令。"
)

log = logging.getLogger(__name__)


class NotLetIn(AppError):
    """A request that is refused for who asks: HTTP status 401 (no key that counts) or 403."""

    def __init__(self, status: int, what: Text, next_step: Text) -> None:
        super().__init__(what, next_step, speaker="gateway")
        self.status = status

    def answer(self) -> web.Response:
        """The answer that the client gets."""
        response = json_response(refusal(self.status, str(self)), status=self.status)
        if self.status == 401:
            response.headers["WWW-Authenticate"] = "Bearer"
        return response


class Access:
    """Who may ask this gateway; follows the keys while `running` does.

    `token`: opens what is below `/workhorse/` from this machine, for the service's own commands.
    `names`: under which clients reach the gateway besides loopback, such as behind a proxy.
    """

    def __init__(
        self,
        store: KeyStore | None = None,
        *,
        token: str | None = None,
        names: Sequence[str] = (),
    ) -> None:
        self.token = token
        self.names = tuple(name.lower() for name in names)
        self._store = store
        self._ring = KeyRing() if store is None else store.ring()
        self._file = None if store is None else store.file()
        self._lost = False  # the file that the keys were read from has gone
        self._exposed = False
        self._running: dict[asyncio.Task[object], web.Request] = {}  # those that came with a key

    @property
    def asks_for_key(self) -> bool:
        """True once a key was made, and wherever other machines can ask."""
        return self._exposed or bool(self._ring)

    def key_named(self, name: str) -> Key | None:
        """The key in force of that name; None: there is none."""
        return self._ring.named(name, time.time())

    def expose(self, host: str) -> None:
        """Note where the gateway will listen; AppError when others could ask without a key."""
        self.names = (*self.names, host.lower())  # 127.0.0.2 is asked under its own address
        if is_loopback(host):
            return
        if not self._ring:
            raise AppError(
                Text(
                    f"Other machines can reach {host}, and there is no key: everybody could use "
                    "this service.",
                    f"其他机器可以访问 {host}，而尚无任何密钥：任何人都能使用本服务。",
                ),
                Text(
                    f"Make a key first (workhorse keys add NAME), or listen on {LOOPBACK[0]}.",
                    f"请先创建密钥（workhorse keys add 名称），或监听 {LOOPBACK[0]}。",
                ),
                speaker="gateway",
                exit_code=EXIT_NO,
            )
        self._exposed = True

    async def running(self, _: web.Application) -> AsyncIterator[None]:
        """Follows what other processes do to the keys."""
        if self._store is None:
            yield
            return
        following = asyncio.create_task(self._follow(self._store), name="keys")
        yield
        following.cancel()
        await asyncio.wait({following})

    async def _follow(self, store: KeyStore) -> None:
        told = False
        while True:
            await asyncio.sleep(READ_EVERY_S)
            try:
                ring, file = await asyncio.to_thread(lambda: (store.ring(), store.file()))
                self._lost = self._lost or file != self._file
                if self._ring and not ring and self._lost:
                    raise lost_keys(store)
                changed = ring.kept != self._ring.kept
                self._ring, self._file, self._lost, told = ring, file, False, False
                if self.asks_for_key and changed:
                    self._end_the_revoked(ring)
            except Exception as error:  # noqa: BLE001 - a watch that ends misses each revocation
                if not told:
                    log.warning("The keys that were read last stay in force: %s", error)
                told = True

    @property
    def middleware(self) -> Middleware:
        """Judges each request before its body is read; puts its key where `KEY` finds it."""

        @web.middleware
        async def judge(request: web.Request, handler: Handler) -> web.StreamResponse:
            self._refuse_foreign_page(request)
            self._judge(request)
            return await self._while_in_force(request, handler)

        return judge

    async def _while_in_force(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        task = asyncio.current_task()
        if task is None or KEY not in request:
            return await handler(request)
        self._running[task] = request
        try:
            return await handler(request)
        except asyncio.CancelledError:
            if (why := request.get(ENDED)) is None:  # the client has left
                raise
            task.uncancel()
            raise why from None
        finally:
            del self._running[task]

    def _end_the_revoked(self, ring: KeyRing) -> None:
        """Ends what runs for a key that was taken back; one that expires lets it end by itself."""
        for task, request in self._running.items():
            verdict = ring.judge(sent_secret(request), time.time())
            if FOR_HEADER in request.headers and self._is_own(request, sent_secret(request)):
                gone = ring.named(request[KEY].name, time.time()) is None
            else:
                gone = verdict in ("revoked", "unknown")
            if gone and ENDED not in request:
                request[ENDED] = NotLetIn(401, _WHY["revoked"], _NEXT)
                task.cancel()

    def _refuse_foreign_page(self, request: web.Request) -> None:
        headers = request.headers
        refused = refused_by(
            headers.get("Host"), headers.get("Origin"), names=self.names, keyed=self.asks_for_key
        )
        if refused is not None:
            raise NotLetIn(
                403,
                Text(
                    f"{refused[:200]} is not this machine: only its own programs may ask.",
                    f"{refused[:200]} 不是本机：仅限本机程序访问。",
                ),
                Text(
                    "Name it in `[serve] names` of the settings if it is yours.",
                    "若确属本服务，请写入配置的 `[serve] names`。",
                ),
            )

    def _judge(self, request: web.Request) -> None:
        resource = request.match_info.route.resource
        path = resource.canonical if resource is not None else ""
        own = path.startswith(OWN) and self.token is not None
        alone = own and (request.method not in ("GET", "HEAD") or path in OWN_ALONE)
        if not self.asks_for_key and not alone:
            return
        secret = sent_secret(request)
        if own and self._is_own(request, secret):
            return
        if alone:
            raise NotLetIn(403, _ONLY_OWN, _ASK_OWN)
        if FOR_HEADER in request.headers and self._is_own(request, secret):
            self._ask_for(request, unquote(request.headers[FOR_HEADER]))
            return
        verdict = self._ring.judge(secret, time.time())
        if isinstance(verdict, Key):
            request[KEY] = verdict
        elif path not in OPEN and not path.startswith(OPEN_FOLDER):
            raise NotLetIn(401, _WHY[verdict], _NEXT)

    def _ask_for(self, request: web.Request, name: str) -> None:
        """Have a request of the service itself count as one of the key's."""
        if not name:
            return
        key = self.key_named(name)
        if key is None:
            raise NotLetIn(401, _WHY["revoked"], _NEXT)
        request[KEY] = key

    def _is_own(self, request: web.Request, secret: str | None) -> bool:
        """Is it a command of the user who runs the service, on this machine?"""
        return (
            self.token is not None
            and secret is not None
            and is_from_here(request)
            and hmac.compare_digest(secret.encode(errors="replace"), self.token.encode())
        )


def lost_keys(store: KeyStore) -> AppError:
    """Keys that went with their file: nobody said that everybody may come in from now on."""
    return AppError(
        Text(f"The file {store.path} was taken away.", f"文件 {store.path} 已被移走。"),
        Text(
            "Make a key anew, or start the service again to go without.",
            "请重新创建密钥；若不再需要密钥，请重启服务。",
        ),
    )


def sent_secret(request: web.Request) -> str | None:
    """The key that a request brings, as OpenAI's or Anthropic's clients send it.

    Two different ones are none: nobody can say which was meant. Any other `Authorization` is
    for a proxy in front.
    """
    sent = {value.strip() for value in request.headers.getall("X-Api-Key", ())}
    for value in request.headers.getall("Authorization", ()):
        scheme, _, secret = value.strip().partition(" ")
        if scheme.lower() == "bearer":
            sent.add(secret.strip())
    return sent.pop() if len(sent) == 1 else None


def is_from_here(request: web.Request) -> bool:
    """Did this machine send a request? A service that others reach may not listen on loopback."""
    local = request.transport.get_extra_info("sockname") if request.transport else None
    remote = request.remote or ""
    return is_loopback(remote) or bool(local and local[0] == remote)


def is_loopback(host: str) -> bool:
    """Can only this machine reach an address?"""
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def known_as(host: str, names: Sequence[str]) -> str:
    """The address that clients ask for: `host`, or the first name where it is every address."""
    try:
        return names[0] if ipaddress.ip_address(host).is_unspecified else host
    except ValueError:
        return host


ACCESS = web.AppKey("access", Access)
