"""The gateway alone before an engine that runs already: `gateway_alone.py ENGINE_URL PORT`."""

import asyncio
import signal
import sys
from dataclasses import dataclass

from workhorse.serve.activity import Activity
from workhorse.serve.app import Gateway, build_app
from workhorse.serve.backend import READY, Roster, Served


@dataclass(frozen=True, slots=True)
class RunningEngine:
    """A backend that is always there."""

    url: str
    state: str = READY
    restarts: int = 0

    async def address(self, _: float) -> str:
        """Where the engine answers."""
        return self.url


async def serve(engine_url: str, port: int) -> None:
    """Serve until SIGTERM."""
    gateway = Gateway(
        build_app(Roster((Served("m", RunningEngine(engine_url)),)), activity=Activity())
    )
    await gateway.start(port=port)
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    await stopped.wait()
    await gateway.stop()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2])))
