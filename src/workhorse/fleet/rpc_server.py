"""Lends this machine's devices to a llama.cpp server on another one: its own RPC server.

It asks for no key, and who reaches its port can have it read and write its memory: for a link that
nobody else is on. It listens on the fleet's address of this machine alone, and ends with the
process that started it.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from workhorse.engines.llamacpp import SPIN_COUNT
from workhorse.engines.supply.builds import Builds
from workhorse.engines.supply.manifest import PROGRAM
from workhorse.errors import EXIT_NO, AppError
from workhorse.models.part_file import sha256_of
from workhorse.run import enter
from workhorse.run.process import free_port
from workhorse.text import Text

RPC_PROGRAM = "ggml-rpc-server"
READY_WITHIN_S = 120.0  # a CUDA context on an old machine takes seconds
LOOK_EVERY_S = 0.1
STOP_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True)
class RpcBuild:
    """A build by the hashes of what has to be the same on all machines, and where it is here."""

    server_sha256: str  # of llama-server
    rpc_sha256: str  # of ggml-rpc-server
    folder: str

    def same_as(self, other: "RpcBuild") -> bool:
        """Whether both are byte for byte the same programs."""
        return (self.server_sha256, self.rpc_sha256) == (other.server_sha256, other.rpc_sha256)


def build_at(program: Path) -> RpcBuild:
    """The build of a llama-server, with its RPC server beside it; AppError when there is none."""
    rpc = program.with_name(RPC_PROGRAM)
    if not rpc.is_file():
        raise AppError(
            Text(
                f"{program.parent} has no {RPC_PROGRAM}: this build cannot lend devices.",
                f"{program.parent} 中没有 {RPC_PROGRAM}：该构建无法出借设备。",
            ),
            Text(
                "Build it with `workhorse engine build`, which makes both.",
                "请用 `workhorse engine build` 构建，会同时生成两者。",
            ),
            exit_code=EXIT_NO,
        )
    return RpcBuild(sha256_of(program), sha256_of(rpc), str(program.parent))


def same_build(wanted: RpcBuild, engines: Path, also: Sequence[Path] = ()) -> RpcBuild:
    """The same build on this machine: among the installed ones, or at one of the folders `also`.

    Raises AppError: other programs would speak another protocol, or the same one wrongly.
    """
    folders = [Path(wanted.folder), *also]
    folders += [build.program.parent for build in Builds(engines).all()[0]]
    for folder in folders:
        with suppress(AppError, OSError):
            found = build_at(folder / PROGRAM)
            if found.same_as(wanted):
                return found
    raise AppError(
        Text(
            f"{socket.gethostname()} has not the engine build that the main machine uses "
            f"({RPC_PROGRAM} {wanted.rpc_sha256[:12]}).",
            f"{socket.gethostname()} 上没有与主机器相同的引擎构建"
            f"（{RPC_PROGRAM} {wanted.rpc_sha256[:12]}）。",
        ),
        Text(
            "Export it on the main machine and install it here: workhorse engine install FILE",
            "请在主机器导出后在本机安装：workhorse engine install 文件",
        ),
        exit_code=EXIT_NO,
    )


class RpcServer:
    """One RPC server of this machine; `start` it once, `stop` it.

    Start it on a thread that lives as long as it shall: the kernel ends it with that thread.
    """

    def __init__(
        self, build: RpcBuild, host: str, *, threads: int, cards: Sequence[int], folder: Path
    ) -> None:
        self.endpoint: str | None = None  # host:port, once it listens
        self._build = build
        self._host = host
        self._threads = threads
        self._cards = cards
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Its process; None before the start and after its end."""
        return (
            None
            if self._process is None or self._process.poll() is not None
            else (self._process.pid)
        )

    def start(self) -> str:
        """Return where it listens; AppError when it does not. Blocks for seconds."""
        port = free_port(self._host)
        self._folder.mkdir(parents=True, exist_ok=True)
        log = self._folder / "rpc-server.log"
        # Weights that a helper has seen are kept, so that the next start need not send them.
        command = [
            *(sys.executable, "-I", "-S", enter.__file__, "--parent", str(os.getpid()), "--"),
            str(Path(self._build.folder) / RPC_PROGRAM),
            *("--host", self._host, "--port", str(port)),
            *("--threads", str(self._threads), "--cache"),
        ]
        environment = {**os.environ, "LLAMA_CACHE": str(self._folder / "cache")}
        environment.pop("OMP_NUM_THREADS", None)  # Ray sets it to 1
        environment["GOMP_SPINCOUNT"] = SPIN_COUNT
        environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, self._cards))
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        self._wait_ready(port, log)
        self.endpoint = f"{self._host}:{port}"
        return self.endpoint

    def _wait_ready(self, port: int, log: Path) -> None:
        began_s = time.monotonic()
        while self.pid is not None and time.monotonic() - began_s < READY_WITHIN_S:
            # Looked at in the kernel's table: a connection would be served as a client's.
            if listens(self._host, port):
                return
            time.sleep(LOOK_EVERY_S)
        lines = log.read_text(errors="replace").splitlines()
        self.stop()
        said = next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
        raise AppError(
            Text(
                f"The RPC server of {self._host} did not start; it said: {said[:200]}",
                f"{self._host} 的 RPC 服务未能启动，输出：{said[:200]}",
            ),
            Text(f"Read its log: {log}", f"请查看日志：{log}"),
            speaker="engine",
        )

    def stop(self) -> None:
        """End it; safe more than once."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def listens(host: str, port: int, table: Path = Path("/proc/net/tcp")) -> bool:
    """Whether somebody listens there, by the kernel's table (proc(5)); IPv4."""
    try:
        address = int.from_bytes(socket.inet_aton(host), sys.byteorder)
        lines = table.read_text().splitlines()[1:]
    except OSError:
        return False
    wanted = f"{address:08X}:{port:04X}"
    return any(
        fields[1] == wanted and fields[3] == "0A" for line in lines if (fields := line.split())
    )
