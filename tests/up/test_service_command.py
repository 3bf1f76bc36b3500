"""`workhorse service` as its user meets it, with a service manager that only takes notes."""

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from service_process import fake_server

import pooled
from workhorse.cli import main
from workhorse.cli.arguments import cards
from workhorse.cli.service import cards_word
from workhorse.machine.probe import probe


@pytest.fixture(autouse=True)
def a_home_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKHORSE_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("WORKHORSE_LANG", "en")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    machine = probe(measure_s=0)
    monkeypatch.setattr("workhorse.up.decide.probe", lambda *_, **__: machine)


@pytest.fixture
def asked(tmp_path: Path, small_model: Path) -> list[str]:
    """The words that install a service on the small model."""
    return [str(small_model), "--engine", str(fake_server(tmp_path / "bin")), "--user"]


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A systemctl that writes down what it is told, and a machine that seems to run systemd."""
    notes, folder = tmp_path / "notes", tmp_path / "path"
    folder.mkdir()
    program = folder / "systemctl"
    program.write_text(f'#!/bin/sh\necho "$@" >> {notes}\necho active\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr("workhorse.run.systemd.RUNS", tmp_path)
    return notes


def test_a_dry_run_changes_nothing(
    tmp_path: Path, asked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["service", "install", *asked, "--slots", "2", "--port", "8123", "--headroom", "30%"]
    words += ["--engines", "1", "--split", "one"]
    assert main([*words, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "$ systemctl --user enable --now workhorse.service" in said
    assert "--slots 2 --headroom 30%% --engines 1 --split one --port 8123" in said
    assert f"Environment=WORKHORSE_HOME={tmp_path}/data" in said
    assert not (tmp_path / "config").exists()
    assert main([*words, "--json", "--dry-run"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["path"] == f"{tmp_path}/config/systemd/user/workhorse.service"
    assert "Type=notify" in document["unit"]


@pytest.mark.parametrize("table", ["[serve]", "[[template]]"])
def test_files_of_the_settings_may_lie_in_a_home_folder(
    tmp_path: Path,
    asked: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    table: str,
) -> None:
    monkeypatch.setattr("workhorse.cli.service.HOMES", ("/homes",))
    config = tmp_path / "settings.toml"
    lines = {
        "[serve]": 'certificate = "/homes/c.pem"\nprivate_key = "/etc/k.pem"',
        "[[template]]": 'name = "a"\nsystem_file = "/homes/a.txt"',
    }
    words = ["service", "install", *asked[:-1], "--dry-run", "--config", str(config)]
    for document, said in (("", "ProtectHome=yes"), (f"{table}\n{lines[table]}", "read-only")):
        config.write_text(document)
        assert main(words) == 0
        assert said in capsys.readouterr().out


def test_what_the_program_stands_on_is_not_hidden_from_it(
    asked: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment in /opt may stand on a Python that lies in a home folder."""
    words = ["service", "install", *asked[:-1], "--dry-run"]
    monkeypatch.setattr("workhorse.cli.service.HOMES", ("/homes",))
    monkeypatch.setattr("workhorse.cli.service.TEMPORARY", ("/temporary/",))
    for base, home, temporary in (
        ("/usr", "yes", "yes"),
        ("/homes/me/python", "read-only", "yes"),
        ("/temporary/python", "yes", "no"),
    ):
        monkeypatch.setattr("sys.base_prefix", base)
        assert main(words) == 0
        said = capsys.readouterr().out
        assert f"\nProtectHome={home}\n" in said
        assert f"\nPrivateTmp={temporary}\n" in said


@pytest.mark.parametrize("word", ["2", "all", "1,", "0,3"])
def test_cards_come_back_as_they_were_asked_for(word: str) -> None:
    assert cards(cards_word(cards(word)) or "") == cards(word)


def test_an_engine_that_compiles_may_without_a_card(
    asked: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["service", "install", *asked[:-1], "--dry-run"]
    assert main(words) == 0
    assert "\nMemoryDenyWriteExecute=yes\n" in capsys.readouterr().out
    plan = pooled.plan(pooled.vllm())
    part = SimpleNamespace(decision=SimpleNamespace(plan=plan))
    monkeypatch.setattr("workhorse.up.several.decide_parts", lambda *_: (part,))
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "\nMemoryDenyWriteExecute=no\n" in said
    assert "\nReadWritePaths=-/engines/vllm-0.32.0/cache\n" in said


def test_installed_shown_and_removed(
    tmp_path: Path, asked: list[str], notes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config/systemd/user/workhorse.service"
    assert main(["service", "install", *asked]) == 0
    assert "--port" not in next(
        line for line in path.read_text().splitlines() if "ExecStart=" in line
    )
    assert main(["service", "show", "--user"]) == 0
    said = capsys.readouterr().out
    assert f"# {path}: active" in said
    assert "WatchdogSec" in said
    assert main(["service", "remove", "--user", "--dry-run"]) == 0
    assert path.exists()
    assert main(["service", "remove", "--user"]) == 0
    assert not path.exists()
    assert notes.read_text().splitlines() == [
        "--user daemon-reload",
        "--user enable --now workhorse.service",
        "--user is-active workhorse.service",
        "--user disable --now workhorse.service",
        "--user daemon-reload",
    ]


def test_what_systemctl_says_is_told(
    asked: list[str], notes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = shutil.which("systemctl")
    assert program is not None
    Path(program).write_text("#!/bin/sh\necho no bus >&2\nexit 1\n")
    assert main(["service", "install", *asked]) == 1
    assert "no bus" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["install", "--name", "Not A Name"], 2, "no name for a unit"),
        (["install", "--user", "--as", "somebody"], 2, "--as does not go with --user"),
        (["show", "--user"], 1, "There is no unit"),
        (["remove", "--user"], 1, "There is no unit"),
        (["install", "--user", "--config", "/none.toml"], 2, "none.toml"),
        (["install", "/none.gguf", "--user"], 1, "none.gguf"),
    ],
)
def test_wrong_use_is_one_clear_error(
    words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["service", *words]) == code
    error = capsys.readouterr().err
    assert said in error
    assert "→" in error


def test_a_port_of_its_own(asked: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["service", "install", *asked, "--port", "0"]) == 2
    assert "fixed port" in capsys.readouterr().err


def test_a_plan_that_says_no_installs_nothing(
    tmp_path: Path, asked: list[str], notes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["service", "install", *asked, "--context", "100000000"]) == 3
    assert "smallest settings" in capsys.readouterr().err
    assert not (tmp_path / "config").exists()


def test_without_systemd_it_says_so(
    asked: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("workhorse.run.systemd.RUNS", tmp_path / "none")
    assert main(["service", "install", *asked]) == 3
    assert "systemd does not run here" in capsys.readouterr().err
    assert not (tmp_path / "config").exists()
