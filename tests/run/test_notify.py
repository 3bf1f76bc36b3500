"""What systemd hears: a socket that plays its part."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from workhorse.run.notify import START_EXTENSION_S, Notify


@contextmanager
def manager(address: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listens:
        listens.bind(address.replace("@", "\0", 1))
        listens.settimeout(0.0)
        yield listens


def heard(listens: socket.socket) -> list[list[str]]:
    found = []
    with suppress(BlockingIOError):
        while True:
            found.append(listens.recv(4096).decode().split("\n"))
    return found


@pytest.mark.parametrize("abstract", [False, True], ids=["file", "abstract"])
def test_each_state_is_told(tmp_path: Path, abstract: bool) -> None:
    address = f"@workhorse-{tmp_path.name}" if abstract else str(tmp_path / "notify")
    with manager(address) as listens:
        notify = Notify({"NOTIFY_SOCKET": address})
        notify.status("loading\nREADY=1")
        notify.ready("here")
        notify.reloading()
        notify.stopping()
        loading, ready, reloading, stopping = heard(listens)
    assert loading == ["STATUS=loading READY=1"]  # a line end would have been another assignment
    assert ready == ["READY=1", "STATUS=here"]
    assert reloading[0] == "RELOADING=1"
    assert int(reloading[1].removeprefix("MONOTONIC_USEC=")) > 0
    assert stopping == ["STOPPING=1"]


async def fed(told: dict[str, str], alive: bool, pid: int = 7, ready: bool = True) -> list[str]:
    """What is heard at the first feeding."""
    address = told["NOTIFY_SOCKET"]
    with manager(address) as listens:
        notify = Notify(told, pid=pid)
        if ready:
            notify.ready("here")
        feeding = asyncio.create_task(notify.feed(lambda: alive))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
        return [line for lines in heard(listens) for line in lines]


async def test_the_watchdog_is_fed_only_while_all_is_well(tmp_path: Path) -> None:
    told = {"NOTIFY_SOCKET": str(tmp_path / "a"), "WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "7"}
    assert "WATCHDOG=1" in await fed(told, alive=True)
    told["NOTIFY_SOCKET"] = str(tmp_path / "b")
    assert "WATCHDOG=1" not in await fed(told, alive=False)
    told["NOTIFY_SOCKET"] = str(tmp_path / "c")
    assert "WATCHDOG=1" not in await fed(told, alive=True, pid=8)  # it is another process's


async def test_a_long_start_asks_for_more_time(tmp_path: Path) -> None:
    told = {"NOTIFY_SOCKET": str(tmp_path / "a")}
    extension = f"EXTEND_TIMEOUT_USEC={START_EXTENSION_S * 1_000_000}"
    assert extension in await fed(told, alive=True, ready=False)
    told["NOTIFY_SOCKET"] = str(tmp_path / "b")
    assert extension not in await fed(told, alive=True)


async def test_what_a_busy_manager_did_not_take_is_said_again(tmp_path: Path) -> None:
    told = {"NOTIFY_SOCKET": str(tmp_path / "a"), "WATCHDOG_USEC": "60000000"}
    with manager(told["NOTIFY_SOCKET"]) as listens:
        notify = Notify(told)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as others:
            others.setblocking(False)
            with suppress(BlockingIOError):
                while True:
                    others.sendto(b"full", told["NOTIFY_SOCKET"])
        notify.ready("here")
        assert {line for lines in heard(listens) for line in lines} == {"full"}
        notify.stopping()
        assert heard(listens) == [["READY=1", "STATUS=here"], ["STOPPING=1"]]


async def test_nobody_listens(tmp_path: Path) -> None:
    Notify({}).ready("here")
    await Notify({}).feed(lambda: True)
    Notify({"NOTIFY_SOCKET": str(tmp_path / "nobody")}).ready("here")
    assert Notify({"WATCHDOG_USEC": "soon"}).watchdog_s is None
