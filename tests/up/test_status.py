"""How a service is: in a word, in a table, in an exit code."""

import json
import signal
from dataclasses import replace
from types import SimpleNamespace

import pytest
from service_process import StartService

from workhorse.cli import main
from workhorse.cli.status import show
from workhorse.records import Alarm, EngineReading, Finding
from workhorse.serve.auth import is_from_here
from workhorse.text import Text, same
from workhorse.up.status import EngineStatus, ServiceState, ServiceStatus, service_state

pytestmark = pytest.mark.timeout(1800)  # a service starts in seconds, on a busy machine in more

HOT = Alarm(Finding("gpu.hot", "warning", same("85 °C"), same("why"), same("remedy"), "test"), 1.0)
READING = EngineReading(
    model_name="horse",
    state="ready",
    restarts=2,
    generating=3,
    waiting=1,
    slots=4,
    decode_tokens_per_s=21.0,
    total_tokens_per_s=60.0,
    prefill_tokens_per_s=300.0,
    ttft_s=0.4,
    depth_tokens=100,
    streams=3,
)
ENGINE = EngineStatus("horse", "ready", None, 2, 42, "RAM", 4096, 22.0, READING)
STATUS = ServiceStatus("ready", "http://127.0.0.1:1", 41, "1", 0.0, (ENGINE,), 4, 1)


@pytest.mark.parametrize(
    ("states", "word"),
    [
        (["ready", "ready"], "ready"),
        (["ready", "restarting"], "degraded"),
        (["ready", "given_up"], "degraded"),
        (["given_up", "given_up"], "failed"),
        (["restarting"], "down"),
        (["given_up", "restarting"], "down"),
        (["planning", "starting"], "starting"),
        ([], "down"),
    ],
)
def test_one_word_for_all_engines(states: list[str], word: ServiceState) -> None:
    assert service_state(states) == word
    assert service_state(states, reloading=True) == "reloading"
    assert service_state(states, reloading=True, draining=True) == "draining"


def test_the_exit_code_says_whether_somebody_has_to_look() -> None:
    assert STATUS.exit_code == 0
    assert replace(STATUS, state="degraded").exit_code == 3
    assert replace(STATUS, alarms=(HOT,)).exit_code == 3
    assert replace(STATUS, alarms=(replace(HOT, over_unix_s=2.0),)).exit_code == 0


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    down = replace(ENGINE, state="given_up", reason=Text("It died.", "它退出了。"), reading=None)
    show(replace(STATUS, state="degraded", engines=(ENGINE, down), alarms=(HOT,)), "en")
    said = capsys.readouterr().out
    for words in ("degraded", "3 / 4", "21.0 tok/s", "400 ms", "horse: It died.", "85 °C"):
        assert words in said
    show(replace(STATUS, state="failed", engines=(down,)), "zh")
    said = capsys.readouterr().out
    assert "引擎反复退出" in said
    assert "它退出了。" in said


@pytest.mark.parametrize(
    ("remote", "local", "here"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("10.0.0.5", "10.0.0.5", True),  # it listens on this address, and asks itself
        ("10.0.0.6", "10.0.0.5", False),
        ("", "", False),
    ],
)
def test_the_token_counts_on_this_machine_alone(remote: str, local: str, here: bool) -> None:
    transport = SimpleNamespace(get_extra_info=lambda _: (local, 80) if local else None)
    assert is_from_here(SimpleNamespace(remote=remote, transport=transport)) is here  # type: ignore[arg-type]


def test_no_service_runs(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("WORKHORSE_HOME", str(tmp_path_factory.mktemp("empty")))
    assert main(["status"]) == 1
    assert "No service runs" in capsys.readouterr().err


def test_a_service_that_does_not_answer_and_one_that_wants_keys(
    start_service: StartService,
) -> None:
    service = start_service()
    made = service.command("keys", "add", "somebody")
    assert made.returncode == 0, made.stderr
    service.until(lambda: service.get("/workhorse/status")[0] == 401)
    service.answering("status")  # it may read the service's own file
    service.process.send_signal(signal.SIGSTOP)
    try:
        silent = service.command("status", "--json")
    finally:
        service.process.send_signal(signal.SIGCONT)
    assert silent.returncode == 3
    assert json.loads(silent.stdout)["state"] == "silent"
    service.stop()
    gone = service.command("status", "--port", str(service.port))
    assert gone.returncode == 1
