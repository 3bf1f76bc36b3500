"""The port: opened, kept, named when it is somebody else's."""

import os
import socket
from pathlib import Path

import pytest
from stand_ins import StandInBackend

from workhorse.errors import AppError
from workhorse.serve.activity import Activity
from workhorse.serve.app import Gateway, build_app
from workhorse.serve.auth import Access
from workhorse.serve.backend import Roster, Served
from workhorse.serve.key_store import KeyStore
from workhorse.serve.keys import Key
from workhorse.serve.port import PortHolder, find_port_holder, port_taken


def a_gateway() -> Gateway:
    return Gateway(build_app(Roster((Served("m", StandInBackend(None)),)), activity=Activity()))


def test_finds_this_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        holder = find_port_holder(port)
    assert holder is not None
    assert holder.pid == os.getpid()
    assert holder.command
    assert find_port_holder(port) is None


def captured_proc(root: Path, *, readable: bool) -> Path:
    """A /proc in which process 77 listens on [::]:8080; 78 has the port only as a client."""
    (root / "net").mkdir(parents=True)
    head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n"
    rest = "00000000:00000000 00:00000000 00000000  1000        0"
    (root / "net/tcp").write_text(f"{head}   0: 0100007F:1F90 0100007F:9999 01 {rest} 11 1 0 20\n")
    anywhere = "0" * 32
    (root / "net/tcp6").write_text(
        f"{head}   0: {anywhere}:1F90 {anywhere}:0000 0A {rest} 22 1 0 100\n"
    )
    for pid, inode in ((77, 22), (78, 11)):
        (root / f"{pid}/fd").mkdir(parents=True)
        (root / f"{pid}/fd/3").symlink_to(f"socket:[{inode}]")
        if readable:
            (root / f"{pid}/cmdline").write_bytes(b"llama-server\0--port\0008080\0")
    return root


def test_reads_a_captured_proc(tmp_path: Path) -> None:
    proc = captured_proc(tmp_path, readable=True)
    assert find_port_holder(8080, proc=proc) == PortHolder(77, "llama-server --port 8080")
    assert find_port_holder(9090, proc=proc) is None


def test_a_process_whose_command_is_hidden(tmp_path: Path) -> None:
    proc = captured_proc(tmp_path, readable=False)
    assert find_port_holder(8080, proc=proc) == PortHolder(77, "?")


def test_a_process_that_may_not_be_looked_into(tmp_path: Path) -> None:
    proc = captured_proc(tmp_path, readable=True)
    (proc / "77/fd/3").unlink()
    (proc / "77/fd").rmdir()
    assert find_port_holder(8080, proc=proc) is None
    assert find_port_holder(8080, proc=tmp_path / "nowhere") is None


def test_an_unseen_holder_is_another_process() -> None:
    error = port_taken("127.0.0.1", 8080, None)
    assert "another process" in error.what.en
    assert "--port 0" in error.next_step.en


async def test_a_taken_port_is_named_with_its_holder() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AppError) as refused:
            await a_gateway().start(port=port)
    assert str(port) in refused.value.what.en
    assert f"process {os.getpid()}" in refused.value.what.en
    assert str(os.getpid()) in refused.value.what.zh
    assert refused.value.speaker == "gateway"


# With a key any address may be asked for; 203.0.113.1 is one of nobody's (RFC 5737).
@pytest.mark.parametrize(("host", "port"), [("203.0.113.1", 0), ("127.0.0.1", 70_000)])
async def test_an_address_that_is_not_ours(host: str, port: int, tmp_path: Path) -> None:
    store = KeyStore(tmp_path / "service.sqlite")
    store.add(Key("anna"), 0.0)
    roster = Roster((Served("m", StandInBackend(None)),))
    gateway = Gateway(build_app(roster, activity=Activity(), access=Access(store)))
    with pytest.raises(AppError) as refused:
        await gateway.start(host, port)
    assert f"{host} port {port}" in refused.value.what.en


async def test_stops_without_start_and_twice() -> None:
    gateway = a_gateway()
    await gateway.stop()
    port = await gateway.start(port=0)
    assert gateway.url == f"http://127.0.0.1:{port}"
    await gateway.stop()
    await gateway.stop()
    with socket.create_server(("127.0.0.1", port)):
        pass  # it is free again


async def test_ipv6_loopback() -> None:
    gateway = a_gateway()
    try:
        port = await gateway.start("::1", 0)
    except AppError:
        pytest.skip("this machine has no IPv6")
    assert gateway.url == f"http://[::1]:{port}"
    await gateway.stop()
