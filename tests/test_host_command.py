"""`workhorse host` as a user types it, on a tree that stands for a server."""

import io
import os
from functools import partial
from pathlib import Path

import pytest

from host_tree import CHANGING, NUMA, SWAPPINESS, Kernel, changed, grow, settings
from workhorse.cli import host, main
from workhorse.cli.host import HostView
from workhorse.codec import from_json
from workhorse.config import places
from workhorse.machine.host import Outcome, apply, undo
from workhorse.machine.host_journal import JOURNAL

Capture = pytest.CaptureFixture[str]


class Terminal(io.StringIO):
    """A terminal at which somebody has typed."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


@pytest.fixture
def root(tmp_path: Path, kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The server, in the place of this machine."""
    monkeypatch.setenv("WORKHORSE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("WORKHORSE_LANG", "en")
    monkeypatch.setattr(host, "ROOT", grow(tmp_path / "root"))
    monkeypatch.setattr(host, "apply", partial(apply, write=kernel))
    monkeypatch.setattr(host, "undo", partial(undo, write=kernel))
    monkeypatch.setattr("sys.stdin", io.StringIO())
    return tmp_path / "root"


# ---------------------------------------------------------------- show


def test_show_tells_each_setting_and_changes_none(
    root: Path, kernel: Kernel, capsys: Capture
) -> None:
    before = settings(root)
    assert main(["host", "show"]) == 0
    out = capsys.readouterr().out
    for words in ("CPU governor", "powersave", "performance", "to change", "Cost: More power",
                  "no matter", "not here", "by hand", "LimitMEMLOCK=infinity"):  # fmt: skip
        assert words in out
    assert main(["host", "show", "--lang", "zh"]) == 0
    out = capsys.readouterr().out
    assert "CPU 调速器" in out and "待更改" in out and "代价：" in out
    assert settings(root) == before and kernel.written == []
    assert not (places().data / "host").exists()


def test_show_as_json(root: Path, capsys: Capture) -> None:
    assert main(["host", "show", "--json"]) == 0
    view = from_json(HostView, capsys.readouterr().out, what="stdout")
    assert view.originals is None
    paths = {change.path for advice in view.advice for change in advice.changes}
    assert paths == CHANGING.keys()


def test_show_fits_eighty_columns(
    root: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but commands, which are there to be copied."""
    from rich.cells import cell_len
    from rich.console import Console

    monkeypatch.setattr("workhorse.cli.show.console", lambda **_: Console(width=80))
    monkeypatch.setattr(host, "console", lambda **_: Console(width=80))
    for language in ("en", "zh"):
        assert main(["host", "show", "--lang", language]) == 0
        lines = capsys.readouterr().out.splitlines()
        table = [line for line in lines if not line.strip().startswith("$")]
        assert len(table) > 20 and max(map(cell_len, table)) <= 80


def test_show_of_a_captured_machine(capsys: Capture) -> None:
    capture = Path(__file__).parent / "captures" / "machine_b.json"
    assert main(["host", "show", "--root", str(capture), "--json"]) == 0
    view = from_json(HostView, capsys.readouterr().out, what="stdout")
    assert {advice.knob: advice.state for advice in view.advice}["governor"] == "not here"


def test_show_after_apply_tells_what_is_kept(root: Path, capsys: Capture) -> None:
    main(["host", "apply", "--yes"])
    capsys.readouterr()
    assert main(["host", "show"]) == 0
    out = capsys.readouterr().out
    assert "keeps originals since" in out and "host undo" in out and "to change" not in out


# ---------------------------------------------------------------- apply


def test_apply_and_undo(root: Path, capsys: Capture) -> None:
    before = settings(root)
    assert main(["host", "apply", "--yes"]) == 0
    out = capsys.readouterr().out
    assert changed(root)
    assert "changed" in out and "(×2)" in out and "until the machine restarts" in out
    assert main(["host", "apply", "--yes"]) == 0
    assert "nothing to change" in capsys.readouterr().out
    assert main(["host", "undo"]) == 0
    assert "restored" in capsys.readouterr().out
    assert settings(root) == before
    assert main(["host", "undo"]) == 0
    assert "nothing to undo" in capsys.readouterr().out


def test_json_of_apply_and_undo(root: Path, capsys: Capture) -> None:
    kinds = []
    for words in (["apply", "--yes"], ["apply", "--yes"], ["undo"], ["undo"]):
        assert main(["host", *words, "--json"]) == 0
        out = capsys.readouterr().out
        kinds.append({o.ending for o in from_json(tuple[Outcome, ...], out, what="stdout")})
    assert kinds == [{"changed"}, set(), {"restored", "as it was"}, set()]


@pytest.mark.parametrize("words", [["apply"], ["apply", "--json"]])
def test_nobody_to_ask_changes_nothing(
    root: Path, kernel: Kernel, capsys: Capture, words: list[str]
) -> None:
    assert main(["host", *words]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "--yes" in err and kernel.written == []


@pytest.mark.parametrize(
    ("typed", "code"), [("y\n", 0), ("YES\n", 0), ("是\n", 0), ("n\n", 1), ("\n", 1), ("", 1)]
)
def test_it_asks(
    root: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, typed: str, code: int
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(typed))
    before = settings(root)
    assert main(["host", "apply"]) == code
    out, err = capsys.readouterr()
    assert "powersave" in out and "Cost:" in out and "Change these settings?" in err
    assert changed(root) if code == 0 else settings(root) == before and "Nothing was" in err


def test_only_the_settings_named(root: Path, capsys: Capture) -> None:
    assert main(["host", "apply", "--yes", "--only", "swappiness", "numa_balancing"]) == 0
    assert settings(root)[SWAPPINESS] == "10" and settings(root)[NUMA] == "0"
    assert not changed(root)
    assert main(["host", "undo", "--only", "swappiness"]) == 0
    assert settings(root)[SWAPPINESS] == "60" and settings(root)[NUMA] == "0"
    assert main(["host", "undo"]) == 0
    assert settings(root)[NUMA] == "1"


def test_a_setting_named_that_cannot_be_set_here_is_a_no(root: Path, capsys: Capture) -> None:
    assert main(["host", "apply", "--yes", "--only", "memlock"]) == 3
    assert "LimitMEMLOCK" in capsys.readouterr().out
    assert main(["host", "apply", "--yes", "--only", "zone_reclaim"]) == 0


def test_a_refused_setting_is_told_and_the_others_go_on(
    root: Path, kernel: Kernel, capsys: Capture
) -> None:
    kernel.refusing = (NUMA,)
    assert main(["host", "apply", "--yes"]) == 1
    out = capsys.readouterr().out
    assert "Operation not" in out and settings(root)[NUMA] == "1"
    assert settings(root)[SWAPPINESS] == "10"


def test_what_somebody_else_set_needs_force(root: Path, capsys: Capture) -> None:
    before = settings(root)
    main(["host", "apply", "--yes"])
    (root / SWAPPINESS).write_text("33\n")
    capsys.readouterr()
    assert main(["host", "undo"]) == 3
    assert "--force" in capsys.readouterr().out
    assert settings(root) == {**before, SWAPPINESS: "33"}
    assert main(["host", "undo", "--force"]) == 0
    assert settings(root) == before


@pytest.mark.parametrize("action", ["apply", "undo"])
def test_without_root_it_gives_the_command(
    root: Path, kernel: Kernel, capsys: Capture, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    if action == "undo":
        assert main(["host", "apply", "--yes"]) == 0
        kernel.written.clear()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert main(["host", action, "--only", "swappiness"]) == 1
    err = capsys.readouterr().err
    assert "root" in err and "sudo env WORKHORSE_HOME=" in err
    assert f"-m workhorse host {action} --only swappiness" in err
    assert kernel.written == []


def test_broken_off_it_tells_how_to_go_back(
    root: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = settings(root)

    def interrupted(path: Path, value: str) -> None:
        Kernel()(path, value)
        if path.name == "numa_balancing":
            raise KeyboardInterrupt

    monkeypatch.setattr(host, "apply", partial(apply, write=interrupted))
    assert main(["host", "apply", "--yes"]) == 1
    assert "host undo" in capsys.readouterr().err and settings(root) != before
    assert main(["host", "undo"]) == 0
    assert settings(root) == before


def test_a_broken_journal_is_one_sentence_and_a_next_step(root: Path, capsys: Capture) -> None:
    folder = places().host
    folder.mkdir(parents=True)
    (folder / JOURNAL).write_text("{")
    for words in (["show"], ["apply", "--yes"], ["undo"]):
        assert main(["host", *words]) == 1
        err = capsys.readouterr().err
        assert JOURNAL in err and "→" in err and "Traceback" not in err


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["change"],
        ["show", "--only", "overclocking"],
        ["show", "--only"],
        ["show", "--force"],
        ["apply", "--force", "--yes"],
        ["apply", "--root", "/"],
        ["undo", "--root", "/"],
    ],
)
def test_wrong_usage(root: Path, kernel: Kernel, capsys: Capture, words: list[str]) -> None:
    try:
        code = main(["host", *words])
    except SystemExit as ended:  # argparse
        code = int(ended.code or 0)
    out, err = capsys.readouterr()
    assert code == 2 and out == "" and err and "Traceback" not in err
    assert kernel.written == []


def test_the_originals_are_the_machines_and_not_a_users() -> None:
    assert places({"HOME": "/nowhere", "XDG_DATA_HOME": "/a"}).host == Path(
        "/var/lib/workhorse/host"
    )
    assert places({"WORKHORSE_HOME": "/b"}).host == Path("/b/host")
