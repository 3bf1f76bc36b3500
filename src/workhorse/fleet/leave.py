"""Ends this machine's node: what was started for it, and no other Ray of this machine."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Literal

from workhorse.config import Places
from workhorse.errors import EXIT_NO, AppError
from workhorse.fleet.descendants import end_processes
from workhorse.fleet.keeper import DRAIN_S, STOP_WITHIN_S, clear_dead_node, held, lock_path
from workhorse.fleet.member import Member, path_of, read_member
from workhorse.run.live_processes import LiveProcess, birthplace, carrying, read_process
from workhorse.text import Text

LEAVE_WITHIN_S = DRAIN_S + STOP_WITHIN_S + 30.0
LOOK_EVERY_S = 0.2

Ending = Literal["ended", "killed", "was dead"]


def leave(
    where: Places, *, on_wait: Callable[[float, float], None] = lambda _done, _most: None
) -> tuple[Member, Ending]:
    """End this machine's node; blocks until nothing of it is left. An AppError when there is none.

    `on_wait` is told for how many seconds it has waited, and the most that it will.
    """
    member = read_member(where)
    if member is None:
        refuse_while_starting(where)
    if member is None or member.birthplace != birthplace():
        path_of(where).unlink(missing_ok=True)  # of before a restart of the machine
        raise AppError(
            Text("This machine is a node of no fleet.", "本机不是任何集群的节点。"),
            Text(
                "There is nothing to end. A Ray that you started yourself is left alone.",
                "没有需要结束的内容；您自行启动的 Ray 不受影响。",
            ),
            exit_code=EXIT_NO,
        )
    if not member.lives():
        clear_dead_node(where)
        return member, "was dead"
    with suppress(ProcessLookupError):
        os.kill(member.keeper.pid, signal.SIGTERM)
    began_s = time.monotonic()
    while member.lives():
        waited_s = time.monotonic() - began_s
        if waited_s > LEAVE_WITHIN_S:
            kill(member)
            clear_dead_node(where)
            return member, "killed"
        on_wait(waited_s, LEAVE_WITHIN_S)
        time.sleep(LOOK_EVERY_S)
    return member, "ended"


def refuse_while_starting(where: Places) -> None:
    """An AppError when a keeper holds this machine's place and has no node yet."""
    starting = AppError(
        Text("A node is being started on this machine.", "本机正在启动一个节点。"),
        Text(
            "Wait until it runs, or end the `workhorse fleet` command that starts it.",
            "请等待启动完成，或结束正在启动它的 `workhorse fleet` 命令。",
        ),
        exit_code=EXIT_NO,
    )
    path = lock_path(where)
    if path.exists():
        with held(path, lambda: starting):
            pass


def kill(member: Member) -> None:
    """End a keeper that does not end, and what carries its mark."""

    def left() -> list[LiveProcess]:
        now = read_process(member.keeper.pid)
        keeper = [now] if now is not None and now == member.keeper else []
        return [*keeper, *carrying(member.marker)]

    end_processes(left, term_within_s=0.0)
