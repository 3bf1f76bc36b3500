"""Which build lends devices, where it listens, that it ends: with a stand-in for the program."""

import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from workhorse.errors import AppError
from workhorse.fleet.rpc_server import (
    RPC_PROGRAM,
    RpcBuild,
    RpcServer,
    build_at,
    listens,
    same_build,
)

STAND_IN = """#!{python}
import os, socket, sys
words = dict(zip(sys.argv[1::2], sys.argv[2::2]))
if "--fail" in open(__file__).read().split("#", 2)[2]:
    sys.exit("no device was found")
server = socket.create_server((words["--host"], int(words["--port"])))
with open(os.environ["LLAMA_CACHE"] + ".told", "w") as told:
    told.write(f"{{words['--threads']}} {{os.environ['CUDA_VISIBLE_DEVICES']}} "
               f"{{'OMP_NUM_THREADS' in os.environ}}")
server.accept()
"""


def programs(folder: Path, more: str = "") -> Path:
    """A build with a stand-in; returns its llama-server."""
    folder.mkdir(parents=True)
    text = STAND_IN.format(python=sys.executable) + "#" + more
    (folder / RPC_PROGRAM).write_text(text)
    (folder / RPC_PROGRAM).chmod(0o755)
    (folder / "llama-server").write_text("the server")
    return folder / "llama-server"


def server(tmp_path: Path, build: RpcBuild, **more: object) -> RpcServer:
    told = {"threads": 3, "cards": (1, 2), "folder": tmp_path / "rpc"} | more
    return RpcServer(build, "127.0.0.3", **told)  # type: ignore[arg-type]


def test_it_listens_at_the_address_of_the_fleet_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    lent = server(tmp_path, build_at(programs(tmp_path / "build")))
    try:
        endpoint = lent.start()
        host, _, port = endpoint.rpartition(":")
        assert host == "127.0.0.3"
        assert listens(host, int(port))
        assert not listens("127.0.0.1", int(port))
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", int(port)), timeout=60)
        assert lent.pid is not None
    finally:
        lent.stop()
    assert lent.pid is None
    assert (tmp_path / "rpc" / "cache.told").read_text() == "3 1,2 False"


def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    build = build_at(programs(tmp_path / "build"))
    script = (
        "import sys; from pathlib import Path\n"
        "from workhorse.fleet.rpc_server import RpcBuild, RpcServer\n"
        "one = RpcServer(RpcBuild('', '', sys.argv[1]), '127.0.0.3', threads=1, cards=(), "
        "folder=Path(sys.argv[2]))\n"
        "print(one.start(), one.pid, flush=True); sys.stdin.read()\n"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", script, build.folder, str(tmp_path / "rpc")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert owner.stdout is not None
    assert owner.stdin is not None
    endpoint, pid = owner.stdout.readline().decode().split()
    lent = Path(f"/proc/{pid}")
    assert lent.exists()
    owner.kill()
    owner.wait()
    owner.stdin.close()
    owner.stdout.close()
    ended = threading.Event()
    for _ in range(6000):
        if not lent.exists() or "Z" in (lent / "stat").read_text().rpartition(")")[2].split()[0]:
            ended.set()
            break
        ended.wait(0.01)
    assert ended.is_set()
    host, _, port = endpoint.rpartition(":")
    assert not listens(host, int(port))


def test_a_program_that_does_not_start_says_why(tmp_path: Path) -> None:
    lent = server(tmp_path, build_at(programs(tmp_path / "build", "--fail")))
    with pytest.raises(AppError, match="it said: no device was found"):
        lent.start()
    assert lent.pid is None


def test_the_same_build_is_found_where_this_machine_has_it(tmp_path: Path) -> None:
    wanted = build_at(programs(tmp_path / "main"))
    programs(tmp_path / "other", "another build")
    there = programs(tmp_path / "same").parent
    elsewhere = RpcBuild(wanted.server_sha256, wanted.rpc_sha256, "/not/here")
    found = same_build(elsewhere, tmp_path / "engines", (tmp_path / "other", there))
    assert found.folder == str(there)
    with pytest.raises(AppError, match="has not the engine build that the main machine uses"):
        same_build(elsewhere, tmp_path / "engines", (tmp_path / "other",))


def test_a_build_without_it_is_refused(tmp_path: Path) -> None:
    program = programs(tmp_path / "build")
    (program.parent / RPC_PROGRAM).unlink()
    with pytest.raises(AppError, match="cannot lend devices"):
        build_at(program)
