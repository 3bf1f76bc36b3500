"""A real supervisor of a fake engine, as the gateway sees it."""

import sys

from workhorse.records import Launch
from workhorse.run.supervisor import Supervisor

STOP_GRACE_S = 60.0


class Supervised:
    """The backend that a supervisor is."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self.address = supervisor.address

    @property
    def state(self) -> str:
        return self._supervisor.status.state

    @property
    def restarts(self) -> int:
        return self._supervisor.status.restarts


def fake_launch(port: int, *options: str) -> Launch:
    """A fake engine with a key of its own."""
    return Launch(
        argv=(sys.executable, "-m", "workhorse.engines.fake", "--port", str(port), *options),
        env={},
        cpus=(),
        memory_nodes=None,
        host="127.0.0.1",
        port=port,
        health_path="/health",
        stop_grace_s=STOP_GRACE_S,
        key_variable="LLAMA_API_KEY",
    )
