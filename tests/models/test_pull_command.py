"""`workhorse pull`, and `up` of what was pulled."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from checkpoint_builder import checkpoint
from file_server import Answer, FileServer
from gguf_builder import llama
from hub_server import publish_hf
from pulling import CONTENT, REPO

from workhorse.cli import main
from workhorse.cli.pull_progress import progress_words
from workhorse.errors import EXIT_FAILED, EXIT_GOOD, EXIT_USAGE
from workhorse.models.pull_record import RECORD
from workhorse.units import MIB
from workhorse.up.asks import checked
from workhorse.up.decide import Ask

TINY = llama().build()
QUANTS = ("m-Q8_0.gguf", "m-Q4_K_M.gguf")


@pytest.fixture(autouse=True)
def hub(server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileServer:
    """A hub with two quants, of which one is larger; a home of its own."""
    contents = (TINY + bytes(MIB), TINY)
    for name, value in publish_hf(server, REPO, dict(zip(QUANTS, contents, strict=True))).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WORKHORSE_HOME", str(tmp_path / "home"))
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    return server


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_quant_for_this_machine_is_told_and_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], language: str
) -> None:
    assert main(["pull", f"hf:{REPO}", "--lang", language]) == EXIT_GOOD
    shown = capsys.readouterr()
    taken = tmp_path / "home" / "models" / "hf--maker--Big-GGUF" / QUANTS[0]
    assert taken.is_file() and not taken.with_name(QUANTS[1]).exists()
    best, others = ("best quality", "Not taken") if language == "en" else ("最佳质量", "未采用")
    assert best in shown.err and others in shown.out and QUANTS[1] in shown.out
    assert checked(Ask(model=f"hf:{REPO}")).model == taken, "`up hf:…` takes what is here"
    with_quant = checked(Ask(model=REPO, quant="Q8_0"))
    assert (with_quant.model, with_quant.quant) == (taken, None)


def test_one_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["pull", f"hf:{REPO}", "--quant", "q4_k_m", "--to", str(tmp_path / "to"), "--json"]
    assert main(words) == EXIT_GOOD
    document = json.loads(capsys.readouterr().out)
    assert document["path"] == str(tmp_path / "to" / QUANTS[1])
    assert document["fetched_bytes"] == len(TINY) and document["unchecked"] == []


def test_an_engine_for_checkpoints_gets_the_checkpoint(hub: FileServer, tmp_path: Path) -> None:
    publish_hf(hub, REPO, {**checkpoint(), QUANTS[0]: TINY})
    words = ["pull", REPO, "--engine", "vllm", "--to", str(tmp_path / "to")]
    assert main(words) == EXIT_GOOD
    assert {p.name for p in (tmp_path / "to").iterdir()} == {*checkpoint(), RECORD}


def test_stopped_by_the_user_it_goes_on(hub: FileServer, tmp_path: Path) -> None:
    """SIGTERM, as systemd and a closing session send it."""
    hub.files["/m.gguf"] = CONTENT

    def once_more(answer: Answer) -> None:
        os.kill(process.pid, signal.SIGTERM)
        answer.server_state.closing.wait(600)

    hub.script = [Answer.whole, Answer.whole, once_more]
    words = ["pull", hub.url("/m.gguf"), "--to", str(tmp_path), "--connections", "1"]
    command = [sys.executable, "-m", "workhorse", *words]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    _, told = process.communicate(timeout=300)
    assert process.returncode == EXIT_FAILED
    assert told.splitlines()[-1] == "· stopped; the same command goes on from here"
    assert (tmp_path / "m.gguf.part.done").read_bytes().endswith(b"\n0\n")


def test_offline_uses_only_what_is_here(
    hub: FileServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.requests.clear()
    assert main(["pull", REPO, "--offline"]) == EXIT_FAILED
    assert "the network is not to be used" in capsys.readouterr().err
    assert not hub.requests
    assert main(["pull", REPO, "--quant", "Q4_K_M"]) == EXIT_GOOD
    hub.requests.clear()
    capsys.readouterr()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert main(["pull", REPO]) == EXIT_GOOD
    assert capsys.readouterr().out.strip().endswith(QUANTS[1])
    assert main(["pull", f"{REPO}:Q8_0"]) == EXIT_FAILED
    assert not hub.requests


def test_a_revision(hub: FileServer, tmp_path: Path) -> None:
    publish_hf(hub, REPO, {"dev-Q8_0.gguf": TINY}, revision="dev")
    assert main(["pull", REPO, "--revision", "dev", "--to", str(tmp_path / "to")]) == EXIT_GOOD
    assert (tmp_path / "to" / "dev-Q8_0.gguf").read_bytes() == TINY


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([f"{REPO}:Q8_0", "--quant", "Q8_0"], EXIT_USAGE, "names its file already"),
        ([f"{REPO}@dev", "--revision", "main2"], EXIT_USAGE, "does not go with"),
        (["./nowhere"], EXIT_USAGE, "is a path, and nothing is there"),
        (["."], EXIT_USAGE, "is on this machine already"),
        (["hf:nobody/nothing"], EXIT_FAILED, "has no model nobody/nothing"),
        ([REPO, "--quant", "Q2_K"], EXIT_FAILED, "has no Q2_K; it has m-Q4_K_M.gguf"),
        ([f"{REPO}:m-Q5.gguf"], EXIT_FAILED, "Near to it: m-Q"),
        ([REPO, "--revision", "none"], EXIT_FAILED, "has no model"),
    ],
)
def test_what_a_user_can_do_wrong(
    words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pull", *words]) == code
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("number", ["0", "17", "many"])
def test_connections_have_a_bound(number: str) -> None:
    with pytest.raises(SystemExit):
        main(["pull", REPO, "--connections", number])


def test_a_file_that_is_no_model(hub: FileServer, capsys: pytest.CaptureFixture[str]) -> None:
    hub.files["/x.gguf"] = b"GGUF" + os.urandom(9)
    assert main(["pull", hub.url("/x.gguf")]) == EXIT_FAILED
    assert "x.gguf" in capsys.readouterr().err


def test_up_of_what_is_not_here_names_the_pull() -> None:
    from workhorse.errors import AppError

    with pytest.raises(AppError, match=f"`workhorse pull hf:{REPO}` brings it here"):
        checked(Ask(model=f"hf:{REPO}"))


def test_progress_in_words() -> None:
    words = progress_words(256 * MIB, 1024 * MIB, 64 * MIB)
    assert words.en == "256 MiB of 1.00 GiB, 64.0 MiB/s, 12.0 s left"
    assert progress_words(MIB, None, MIB).en == "1.00 MiB, 1.00 MiB/s"
