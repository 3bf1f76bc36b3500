"""This machine as a node of a fleet: what is written down of it, and whether it lives."""

import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from workhorse.codec import from_json, to_json
from workhorse.config import Places
from workhorse.errors import EXIT_NO, AppError
from workhorse.fleet.node_facts import label_value
from workhorse.fleet.ray_start import Ports
from workhorse.fleet.secret import folder_mark
from workhorse.run.live_processes import PROC, LiveProcess, birthplace, read_process
from workhorse.text import Text
from workhorse.units import MIB

LARGEST_BYTES = MIB


@dataclass(frozen=True, slots=True)
class Member:
    """One node of a fleet on this machine, as it was started."""

    birthplace: str  # the start of this host and its process namespace: elsewhere ids mean others
    keeper: LiveProcess  # ends the node when it is told to end
    marker: str  # in the environment of every process of the node
    name: str  # of the node
    address: str  # of the head, such as 10.0.0.1:6379
    node_address: str  # of this node, an IP
    head: bool
    token_file: str
    temp_dir: str
    ports: Ports
    started_unix_s: float
    http_port: int = 8000

    def lives(self, proc: Path = PROC) -> bool:
        """Whether the keeper of the node still runs here."""
        if self.birthplace != birthplace(proc):
            return False
        now = read_process(self.keeper.pid, proc)
        return now is not None and now.start_ticks == self.keeper.start_ticks


def host_name() -> str:
    """The name of this machine, as a label takes it."""
    return label_value(socket.gethostname()) or "node"


def path_of(where: Places) -> Path:
    """Where this machine's node is written down; a home folder may be shared by several."""
    return where.run / f"fleet-{host_name()}.json"


def token_path(where: Places) -> Path:
    """Where this machine keeps the fleet's token."""
    return where.data / "fleet" / "token"


def temp_dir(token: str) -> Path:
    """Where Ray and HAProxy keep their sockets and logs: the same path on every node of a fleet.

    The head decides for all nodes where HAProxy's control socket lies, which anybody may use who
    can reach it. HAProxy takes at most 97 bytes for its path, and Ray adds 68 of them to ours; a
    home folder may lie on a network, and TMPDIR may be long.
    """
    return Path("/tmp") / f"workhorse-{folder_mark(token)}"  # noqa: S108


def read_member(where: Places) -> Member | None:
    """What is written down of this machine's node, dead or alive; None: nothing."""
    path = path_of(where)
    try:
        if path.stat().st_size > LARGEST_BYTES:
            return None
        return from_json(Member, path.read_text(encoding="utf-8"), what="fleet node file")
    except (OSError, UnicodeDecodeError, AppError):
        return None


def this_member(where: Places, proc: Path = PROC) -> Member:
    """This machine's living node; an AppError when it is a node of no fleet."""
    member = read_member(where)
    if member is None or not member.lives(proc):
        raise AppError(
            Text("This machine is a node of no fleet.", "本机不是任何集群的节点。"),
            Text(
                "Start a fleet with `workhorse fleet init`, or join one: "
                "workhorse fleet join HEAD --token-file FILE",
                "用 `workhorse fleet init` 新建集群，或加入已有集群："
                "workhorse fleet join 主节点 --token-file 文件",
            ),
            exit_code=EXIT_NO,
        )
    return member


def write_member(where: Places, member: Member) -> None:
    """Write it whole or not at all, for this user alone; an AppError when that cannot be done."""
    path = path_of(where)
    new = path.with_suffix(f".{os.getpid()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            out.write(to_json(member))
        new.replace(path)
    except OSError as error:
        with suppress(OSError):
            new.unlink()
        raise AppError(
            Text(f"{path} cannot be written: {error}.", f"无法写入 {path}：{error}。"),
            Text(
                "Without it `fleet leave` cannot find the node: make the folder writable.",
                "缺少该文件时 `fleet leave` 无法找到节点：请确保目录可写。",
            ),
        ) from error
