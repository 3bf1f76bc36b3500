"""A running service: the open port, the engines behind it, and what runs beside them.

Each part is wired here in a few lines: what answers requests in `Service.__init__`, what runs on
its own once an engine is ready in `Service.run`.
"""

import asyncio
from collections.abc import Coroutine

from workhorse.config import Places
from workhorse.errors import EXIT_NO, AppError
from workhorse.serve.activity import Activity
from workhorse.serve.app import Gateway, build_app
from workhorse.serve.backend import Roster
from workhorse.serve.routes import LOOPBACK
from workhorse.settings import Settings, read_settings
from workhorse.text import Text
from workhorse.up.asks import asks_of, checked
from workhorse.up.decide import Ask
from workhorse.up.engine import Engine
from workhorse.up.measuring import measure_when_quiet
from workhorse.up.teller import Teller


class Service:
    """Everything that lives while one port is open; `close` ends it in order."""

    def __init__(self, ask: Ask, where: Places, tell: Teller) -> None:
        self.ask, self.where, self.tell = ask, where, tell
        self.settings = read_settings(ask.config) if ask.config else Settings()
        asks = tuple(checked(one) for one in asks_of(ask, self.settings))
        self.activity = Activity()
        self.roster = Roster()
        self.gateway = Gateway(build_app(self.roster, activity=self.activity))
        self.engines = tuple(Engine(one, where, tell, self.roster) for one in asks)
        self.port: int | None = None  # once it is open
        self._beside: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """Where clients reach it, without a slash at the end."""
        host = self.ask.host or self.settings.serve.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    async def open(self) -> None:
        """Open the port; an AppError names who holds it."""
        serve = self.settings.serve
        refuse_open_address(self.ask.host or serve.host)
        port = serve.port if self.ask.port is None else self.ask.port
        self.port = await self.gateway.start(self.ask.host or serve.host, port)

    def log_name(self, engine: Engine) -> str:
        """The name of an engine's log file: by the port, and by its place when there are more."""
        place = self.engines.index(engine)
        return f"engine-{self.port}-{place + 1}.log" if place else f"engine-{self.port}.log"

    def beside(self, work: Coroutine[object, object, None], name: str) -> None:
        """Run something beside the service until it closes; what fails there ends only itself."""
        task = asyncio.create_task(work, name=name)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    async def run(self) -> None:
        """Serve until cancelled, with everything that runs on its own."""
        if self.ask.measure:
            self.beside(self._measure(), "measuring")
        await asyncio.Event().wait()

    async def _measure(self) -> None:
        for engine in self.engines:
            if engine.decision is not None and engine.supervisor is not None:
                await measure_when_quiet(
                    engine.decision, engine.supervisor, self.activity, self.where, self.tell
                )

    async def close(self) -> None:
        """End everything in order: first the gateway, so that running answers may end."""
        for task in self._beside:
            task.cancel()
        await asyncio.gather(*self._beside, return_exceptions=True)
        await self.gateway.stop()
        await asyncio.gather(*(engine.stop() for engine in self.engines))


def refuse_open_address(host: str) -> None:
    """Without keys only this machine is served."""
    if host not in LOOPBACK:
        raise AppError(
            Text(
                f"{host} can be reached from other machines, and no key is asked for.",
                f"{host} 可被其他机器访问，而服务未设置密钥。",
            ),
            Text(f"Listen on {LOOPBACK[0]}.", f"请监听 {LOOPBACK[0]}。"),
            exit_code=EXIT_NO,
        )
