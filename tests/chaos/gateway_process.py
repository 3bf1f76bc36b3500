"""A gateway and its supervisor in a process of their own, with the fake engine behind them.

`python gateway_process.py LOG FAKE_OPTION…` prints the gateway's URL and serves until SIGTERM.
The engine is started again at once however often it dies, so that many deaths fit into a test.
"""

import asyncio
import signal
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent))

from supervised import Supervised, fake_launch
from workhorse.run.supervisor import Supervisor
from workhorse.serve.activity import Activity
from workhorse.serve.app import Gateway, build_app
from workhorse.serve.backend import Capacity, Roster, Served

SLOTS, CONTEXT_TOKENS = 16, 4096


async def serve(log_path: Path, options: list[str]) -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    supervisor = Supervisor(
        lambda port: fake_launch(port, "--slots", str(SLOTS), *options),
        log_path,
        ready_timeout_s=300.0,
        next_delay=lambda *_: 0.0,
    )
    served = Served("fake", Supervised(supervisor), Capacity(SLOTS, CONTEXT_TOKENS))
    gateway = Gateway(build_app(Roster((served,)), activity=Activity()))
    await supervisor.start()
    await gateway.start(port=0)
    print(gateway.url, flush=True)
    await stopped.wait()
    await gateway.stop()
    await supervisor.stop()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), sys.argv[2:]))
