"""The gateway alone before an engine that runs already: `gateway_alone.py ENGINE_URL PORT SLOTS`.

As `up` runs it, but for the engine's process, the guard and the dashboard: slots, line, usage.
"""

import asyncio
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from workhorse.run.address import Address
from workhorse.serve.activity import Activity
from workhorse.serve.app import Gateway, build_app
from workhorse.serve.backend import READY, Capacity, Roster, Served
from workhorse.serve.usage import Usage


@dataclass(frozen=True, slots=True)
class RunningEngine:
    """A backend that is always there."""

    url: str
    state: str = READY
    restarts: int = 0

    async def address(self, _: float) -> Address:
        """Where the engine answers."""
        return Address(self.url)


async def serve(engine_url: str, port: int, slots: int, folder: Path) -> None:
    """Serve until SIGTERM."""
    engine = Served("m", RunningEngine(engine_url), Capacity(slots, 4096, 1000.0, 30.0))
    app = build_app(
        Roster((engine,)), activity=Activity(), usage=Usage(folder / "service-1.sqlite")
    )
    gateway = Gateway(app)
    await gateway.start(port=port)
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    await stopped.wait()
    await gateway.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as kept:
        asyncio.run(serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(kept)))
