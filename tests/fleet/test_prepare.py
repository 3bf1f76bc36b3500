"""What a person can do wrong before a node starts: each is one clear error, and nothing started."""

import platform
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from builders import machine
from workhorse import __version__
from workhorse.config import Places
from workhorse.errors import AppError
from workhorse.fleet import connect, greeting, prepare
from workhorse.fleet.addresses import head_address, network_of
from workhorse.fleet.greeting import Greeting, Met, refuse_silence, refuse_unlike
from workhorse.fleet.member import temp_dir, token_path
from workhorse.fleet.node_facts import HTTP_PORT_LABEL, NAME, VERSION
from workhorse.fleet.prepare import Wish, prepared
from workhorse.fleet.ray_start import RAY_REQUIRED
from workhorse.fleet.secret import new_token, read_token, write_token
from workhorse.run.process import free_port

HEAD = Met("head", "10.0.0.1", True, True, {NAME: "head", VERSION: __version__})
LIKE = Greeting(ray=RAY_REQUIRED, python=platform.python_version(), nodes=(HEAD,))


@pytest.fixture(autouse=True)
def ray_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (connect, greeting):
        monkeypatch.setattr(module, "ray_version", lambda: RAY_REQUIRED)


@pytest.fixture
def where(tmp_path: Path) -> Iterator[Places]:
    where = Places(tmp_path / "home")
    yield where
    for path in (token_path(where), tmp_path / "token"):
        if path.exists():
            path.chmod(0o600)
            shutil.rmtree(temp_dir(read_token(path)), ignore_errors=True)


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    write_token(path, new_token())
    return path


@pytest.fixture
def head() -> Iterator[str]:
    """Somebody who takes connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def greets(monkeypatch: pytest.MonkeyPatch) -> Callable[[Greeting], None]:
    def answer(said: Greeting) -> None:
        monkeypatch.setattr(prepare, "ask_head", lambda *_: said)

    return answer


def free(**more: object) -> Wish:
    ports = {name: free_port("127.0.0.1") for name in ("http_port", "metrics_port", "stats_port")}
    return replace(Wish(head=None, address="127.0.0.1", port=free_row()), **(ports | more))  # type: ignore[arg-type]


def free_row() -> int:
    while prepare.taken_ports(range(first := free_port("127.0.0.1"), first + 9)):
        pass
    return first if first < 65000 else free_row()


def refusal(wish: Wish, where: Places) -> AppError:
    with pytest.raises(AppError) as told:
        prepared(wish, where, look=machine)
    return told.value


# --- what is well --------------------------------------------------------------------------------


def test_a_head_makes_its_token_once(where: Places) -> None:
    first = prepared(free(), where, look=machine)
    token = read_token(Path(first.token_file))
    assert first.head
    assert first.address == f"127.0.0.1:{first.ports.head}"
    assert first.labels[VERSION] == __version__
    assert "numa_0" in first.resources
    assert read_token(Path(prepared(free(), where, look=machine).token_file)) == token


def test_a_node_keeps_a_copy_of_the_token_and_takes_the_fleets_http_port(
    where: Places, token: Path, head: str, greets: Callable[[Greeting], None]
) -> None:
    http = free_port("127.0.0.1")
    label = {**HEAD.labels, HTTP_PORT_LABEL: str(http)}
    greets(replace(LIKE, nodes=(replace(HEAD, labels=label),)))
    start = prepared(free(head=head, token_file=token), where, look=machine)
    assert start.ports.http == http
    assert Path(start.token_file) == token_path(where).absolute()
    assert read_token(Path(start.token_file)) == read_token(token)
    assert not start.head


# --- what is not ---------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [None, "2.9.0"])
def test_no_ray_or_another_one(
    where: Places, monkeypatch: pytest.MonkeyPatch, version: str | None
) -> None:
    monkeypatch.setattr(connect, "ray_version", lambda: version)
    told = refusal(free(), where)
    assert f"ray[serve]=={RAY_REQUIRED}" in told.next_step.en
    assert (version or "not installed") in told.what.en


def test_no_token(where: Places, head: str) -> None:
    told = refusal(free(head=head), where)
    assert "--token-file" in told.next_step.en
    assert told.exit_code == 2


def test_a_token_that_others_can_read(where: Places, token: Path, head: str) -> None:
    token.chmod(0o644)
    assert "chmod 600" in refusal(free(head=head, token_file=token), where).next_step.en


def test_a_head_that_does_not_answer(where: Places, token: Path) -> None:
    nobody = f"127.0.0.1:{free_port('127.0.0.1')}"
    told = refusal(free(head=nobody, token_file=token), where)
    assert nobody in told.what.en
    assert "firewall" in told.next_step.en


@pytest.mark.parametrize("words", ["", "a b", "10.0.0.1:0", "10.0.0.1:99999", "http://one"])
def test_what_is_no_address_of_a_head(words: str) -> None:
    with pytest.raises(AppError, match="no address of a head"):
        head_address(words)


def test_a_token_that_the_head_refuses() -> None:
    with pytest.raises(AppError, match="refuses this token") as told:
        refuse_silence(Greeting(refused=True, said="AuthenticationError"), "10.0.0.1:6379")
    assert told.value.exit_code == 3


def test_somebody_else_at_the_heads_address() -> None:
    with pytest.raises(AppError, match="does not speak as the head"):
        refuse_silence(Greeting(said="RpcError: unavailable"), "10.0.0.1:6379")


@pytest.mark.parametrize(
    ("greeting", "what"),
    [
        (replace(LIKE, ray="2.50.0"), "Ray 2.50.0"),
        (replace(LIKE, python="3.11.0rc1"), "Python 3.11.0rc1"),
        (replace(LIKE, nodes=(replace(HEAD, labels={VERSION: "0.0.9"}),)), "workhorse 0.0.9"),
        (replace(LIKE, nodes=()), "workhorse ?"),
    ],
)
def test_other_versions_on_the_head(greeting: Greeting, what: str) -> None:
    with pytest.raises(AppError) as told:
        refuse_unlike(greeting, "new", "10.0.0.9")
    assert what in told.value.what.en
    assert told.value.exit_code == 3


def test_a_name_that_another_machine_has() -> None:
    refuse_unlike(LIKE, "head", "10.0.0.1")  # the same machine, back again
    with pytest.raises(AppError, match="has a node head already") as told:
        refuse_unlike(LIKE, "head", "10.0.0.9")
    assert "--name" in told.value.next_step.en
    gone = replace(LIKE, nodes=(HEAD, replace(HEAD, name="two", alive=False, labels={NAME: "two"})))
    refuse_unlike(gone, "two", "10.0.0.9")


@pytest.mark.parametrize("name", ["", "two words", "-", "名", "a" * 64])
def test_what_is_no_name_for_a_node(where: Places, name: str) -> None:
    assert "no name for a node" in refusal(free(name=name), where).what.en


def test_an_address_that_is_none_of_this_machines(where: Places) -> None:
    assert "no address of this machine" in refusal(free(address="203.0.113.7"), where).what.en


@pytest.mark.parametrize("option", ["--port", "--http-port", "--metrics-port", "--stats-port"])
def test_a_port_on_which_somebody_listens(where: Places, option: str) -> None:
    wish = free()
    number = {
        "--port": wish.port + 4,
        "--http-port": wish.http_port,
        "--metrics-port": wish.metrics_port,
        "--stats-port": wish.stats_port,
    }[option]
    assert number is not None
    with socket.create_server(("127.0.0.1", number)):
        told = refusal(wish, where)
    assert str(number) in told.what.en
    assert option in told.next_step.en


@pytest.mark.parametrize("port", [0, 65530])
def test_a_first_port_with_no_room_behind_it(where: Places, port: int) -> None:
    assert "no first of nine ports" in refusal(free(port=port), where).what.en


@pytest.mark.parametrize("option", ["http_port", "metrics_port", "stats_port"])
def test_a_port_that_the_node_needs_for_something_else(where: Places, option: str) -> None:
    wish = free()
    for port in (wish.port + 2, 30005, 8265):
        told = refusal(replace(wish, **{option: port}), where)  # type: ignore[arg-type]
        assert f"Port {port} would be taken twice" in told.what.en
    told = refusal(replace(wish, **{option: 0}), where)  # type: ignore[arg-type]
    assert "cannot be 0" in told.what.en


def test_a_file_in_the_place_of_the_folder_for_sockets(where: Places) -> None:
    write_token(token_path(where), new_token())
    folder = temp_dir(read_token(token_path(where)))
    folder.touch()
    try:
        assert "is no folder" in refusal(free(), where).what.en
    finally:
        folder.unlink()


def test_no_room_for_the_folder_for_sockets(
    where: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "temp_dir", lambda _: tmp_path / "none" / "folder")
    assert "cannot be made: No such file" in refusal(free(), where).what.en


def test_a_folder_of_somebody_else_is_not_used(where: Places) -> None:
    write_token(token_path(where), new_token())
    folder = temp_dir(read_token(token_path(where)))
    folder.mkdir()
    folder.chmod(0o777)
    assert "can be used by others" in refusal(free(), where).what.en


def test_the_network_of_an_address() -> None:
    assert network_of("127.0.0.1") == "127.0.0.0/8"
    assert network_of("203.0.113.7") is None
