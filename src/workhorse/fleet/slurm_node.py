"""One node of a Slurm job becomes a node of its fleet: this process turns into Ray's."""

import os
import secrets
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from workhorse.config import Places
from workhorse.errors import AppError
from workhorse.fleet.addresses import head_address, own_address, parted
from workhorse.fleet.keeper import clear_dead_node
from workhorse.fleet.member import Member, write_member
from workhorse.fleet.prepare import Wish, prepared
from workhorse.fleet.ray_start import NodeStart, arguments, cluster_environment, without_ray
from workhorse.fleet.slurm import CLUSTER_WAIT_S, symmetric_run
from workhorse.run.live_processes import MARKER_NAME, birthplace, read_process
from workhorse.text import Text

LOOK_EVERY_S = 2.0
# The head's store answers a moment before the head's own node is in it.
TRIES = 10
UP_PID = "up.pid"
# `fleet up` can be told to drain by the batch script, which knows its process by this file.
_KNOWN = 'echo "$$" > "$0" && exec "$@"'


def become_node(
    address: str, nodes: int, token_file: Path, up: tuple[str, ...], where: Places
) -> None:
    """Write down the node, then execute `ray symmetric-run`; returns only by raising AppError.

    On the head it runs `workhorse fleet up` with the words of `up` once all nodes are there, and
    ends the nodes with it.
    """
    clear_dead_node(where)
    start = _start_of(head_address(address), token_file, where)
    marker = secrets.token_hex(16)
    write_member(where, _member(start, marker))
    words = (sys.executable, "-m", "workhorse", "fleet", "up", *up)
    known = ("/bin/sh", "-c", _KNOWN, str(token_file.with_name(UP_PID)), *words)
    ray = symmetric_run(arguments(start), start.address, nodes, known, head=start.head)
    environment = _environment(start, marker, where)
    argv = [sys.executable, "-m", "ray.scripts.scripts", *ray]
    try:
        os.execve(sys.executable, argv, environment)  # noqa: S606 - an argv list, no shell
    except OSError as error:
        raise AppError(
            Text(f"Ray cannot be started: {error}.", f"无法启动 Ray：{error}。"),
            Text("Is its environment on every node?", "请确认每个节点上都有该环境。"),
        ) from error


def _start_of(head: str, token_file: Path, where: Places) -> NodeStart:
    host, port = parted(head)
    wish = Wish(head=None, address=host, port=port, token_file=token_file)
    if own_address(host) == host:
        return prepared(wish, where)
    wait_for_head(host, port)
    return patiently(lambda: prepared(replace(wish, head=head, address=None), where))


def wait_for_head(host: str, port: int, *, within_s: float = CLUSTER_WAIT_S) -> None:
    """Return once the head takes connections; an AppError when it does not in time."""
    began_s = time.monotonic()
    while True:
        try:
            with socket.create_connection((host, port), timeout=LOOK_EVERY_S):
                return
        except OSError as error:
            if time.monotonic() - began_s > within_s:
                raise AppError(
                    Text(
                        f"The head at {host} did not begin within {within_s:.0f} s: {error}.",
                        f"主节点 {host} 在 {within_s:.0f} 秒内没有启动：{error}。",
                    ),
                    Text(
                        "Look at the first lines of the job's log, and name the network of the "
                        "nodes with --interface.",
                        "请查看作业日志的开头，并用 --interface 指定节点间的网络接口。",
                    ),
                ) from error
        time.sleep(LOOK_EVERY_S)


def patiently(
    prepare: Callable[[], NodeStart], pause: Callable[[float], None] = time.sleep
) -> NodeStart:
    """What `prepare` gives, asked again while the head is not ready."""
    for _ in range(TRIES - 1):
        try:
            return prepare()
        except AppError:
            pause(LOOK_EVERY_S)
    return prepare()


def _member(start: NodeStart, marker: str) -> Member:
    me = read_process(os.getpid())
    if me is None:
        raise AppError(
            Text("/proc does not show this process.", "/proc 中没有本进程。"),
            Text("Mount /proc on the node.", "请在节点上挂载 /proc。"),
        )
    return Member(
        birthplace=birthplace(),
        keeper=me,  # it stays this process when it becomes another program
        marker=marker,
        name=start.name,
        address=start.address,
        node_address=start.node_address,
        head=start.head,
        token_file=start.token_file,
        temp_dir=start.temp_dir,
        ports=start.ports,
        started_unix_s=time.time(),
        http_port=start.ports.http,
    )


def _environment(start: NodeStart, marker: str, where: Places) -> dict[str, str]:
    environment = without_ray(os.environ)
    environment.update(cluster_environment(start.token_file, start.temp_dir, start.ports))
    environment[MARKER_NAME] = marker
    environment["WORKHORSE_HOME"] = str(where.data.absolute())
    # It starts `ray` by that name, and counts the nodes of the fleet that this address leads to.
    programs = str(Path(sys.executable).parent)
    environment["PATH"] = f"{programs}:{environment.get('PATH', os.defpath)}"
    environment["RAY_ADDRESS"] = start.address
    environment["RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT"] = str(CLUSTER_WAIT_S)
    return environment
