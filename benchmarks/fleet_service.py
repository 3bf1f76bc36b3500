"""A fleet on the hosts of `fleet_rig.py`, set up with the program's own commands."""

import json
import shutil
import signal
import sys
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from fleet_rig import HOME, Host, Lab, Running, wait_until
from workhorse.config import places
from workhorse.models.embedded import embedded_model

HERE = Path(__file__).resolve().parent
TOKEN = f"{HOME}/token"
ENGINE_PATH = f"{HOME}/llama-server"
MODEL_PATH = f"{HOME}/fleet.gguf"
PORT = 8080
START_S = 900.0

# What an engine is tuned by beside its arguments; its key is not among it.
TUNING = ("GLIBC_", "GOMP_", "KMP_", "OMP_", "GGML_", "LD_")

FAKE = """#!/bin/sh
case "$1" in
--help) printf "%s\\\\n" "--ctx-size N" "--parallel N" "--model F" "--port N" "--api-key K";;
--version) echo version: 1;;
*) exec {python} -m workhorse.engines.fake --ignore-unknown {options} "$@";;
esac
"""


ASK_HEALTH = "import sys, urllib.request as r; r.urlopen(sys.argv[1], timeout=10)"


class Fleet:
    """A head and nodes; `engine`: options of the fake engine of each, None: the embedded one."""

    def __init__(self, lab: Lab, *, engine: str | None, nodes: int, slots: int = 8) -> None:
        self._lab = lab
        self._engine = engine
        self._slots = slots
        self._service: Running | None = None
        self.head = self._host("head")
        self.key: str = self.workhorse(self.head, "keys", "add", "client", "--json")["key"]
        self.workhorse(self.head, "fleet", "init", "--address", self.head.address)
        self.nodes = [self.new_node(f"node{number + 1}") for number in range(nodes)]
        for node in self.nodes:
            self.join(node)

    def _host(self, name: str, address: str | None = None) -> Host:
        host = self._lab.host(name, address)
        if self._engine is not None:
            options = f"{self._engine} --slots {self._slots}"
            host.write(ENGINE_PATH, FAKE.format(python=sys.executable, options=options), 0o755)
        return host

    def new_node(self, name: str, address: str | None = None) -> Host:
        """A host that is no member yet but has the token, as an administrator brings it."""
        host = self._host(name, address)
        host.write(TOKEN, self.token())
        return host

    def token(self) -> str:
        """What the head keeps."""
        return self.head.read(f"{HOME}/workhorse/fleet/token")

    def join(self, node: Host) -> None:
        """Make it a node."""
        where = f"{self.head.address}:6379"
        self.workhorse(node, "fleet", "join", where, "--token-file", TOKEN)

    def workhorse(self, host: Host, *words: str, codes: Collection[int] = (0,)) -> Any:
        """What a command prints, read as JSON where it is; SystemExit for another exit code."""
        done = host.run([sys.executable, "-m", "workhorse", *words])
        if done.returncode not in codes:
            said = f"{done.stdout}\n{done.stderr}"
            raise SystemExit(f"{host.name}: {' '.join(words)}: exit {done.returncode}\n{said}")
        return json.loads(done.stdout) if "--json" in words else done.stdout

    def up(self, *options: str) -> None:
        """Serve the embedded model on all nodes; returns when the gateway answers."""
        model = Path(f"/proc/{self.head.space.pid}/root{MODEL_PATH}")
        shutil.copyfile(embedded_model(places().data), model)  # on the head alone
        words = ["fleet", "up", MODEL_PATH, "--host", "0.0.0.0", "--port", str(PORT), *options]
        if self._engine is not None:
            words += ["--engine", ENGINE_PATH, "--skip-golden"]
        self.said = model.with_name("up.txt")
        with self.said.open("wb") as out:
            command = [sys.executable, "-m", "workhorse", *words]
            self._service = self.head.start(command, out=out)
        wait_until(self._answers, START_S, "the gateway answers", 1.0)

    @property
    def url(self) -> str:
        """The gateway, for clients."""
        return f"http://{self.head.address}:{PORT}"

    @property
    def client_env(self) -> dict[str, str]:
        """What a client has to know."""
        return {"WORKHORSE_KEY": self.key}

    def status(self) -> Any:
        """What `fleet status` says on the head; 3: something is not as it should be."""
        return self.workhorse(self.head, "fleet", "status", "--json", codes=(0, 3))

    def ready(self) -> int:
        """How many replicas serve."""
        return sum(one["state"] == "ready" for one in self.status()["replicas"])

    def wait_replicas(self, count: int) -> float:
        """Wait until so many replicas serve; the moment, by the monotonic clock."""
        # Each look is a command that starts, and the machine has other work.
        wait_until(lambda: self.ready() >= count, START_S, f"{count} replicas serve", 2.0)
        return time.monotonic()

    def engine_start(self, node: Host) -> tuple[list[str], dict[str, str]]:
        """How the embedded engine of a node was started, and what it found in its environment."""
        (pid,) = node.pids("engines/embedded.py --")
        line = Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
        pairs = Path(f"/proc/{pid}/environ").read_text().rstrip("\0").split("\0")
        found = dict(pair.split("=", 1) for pair in pairs)
        return line, {name: found[name] for name in found if name.startswith(TUNING)}

    def down(self) -> None:
        """End the service and leave the fleet, in order; the hosts stay."""
        if self._service is not None:
            ended = self._service.end(signal.SIGINT)
            print(f"`fleet up` ended with exit code {ended}", file=sys.stderr)
        for host in (*self.nodes, self.head):
            self.workhorse(host, "fleet", "leave")

    def _answers(self) -> bool:
        assert self._service is not None
        if self._service.process.poll() is not None:
            raise SystemExit(f"the service ended:\n{self.said.read_text()}")
        asked = [sys.executable, "-c", ASK_HEALTH, f"{self.url}/healthz"]
        return self.head.run(asked).returncode == 0


def load(client: Host, what: str, fleet: Fleet, *options: str, url: str | None = None) -> Any:
    """Run `fleet_load.py` on a client's host; what it saw."""
    command = [sys.executable, str(HERE / "fleet_load.py"), what, url or fleet.url]
    done = client.run([*command, *options], env=fleet.client_env, timeout_s=3600)
    if done.returncode != 0:
        raise SystemExit(f"the load failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)
