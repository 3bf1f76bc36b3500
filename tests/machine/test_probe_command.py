"""`workhorse probe` as a user types it."""

import json
from pathlib import Path

import pytest
from captured_machines import CAPTURES, GOLDENS, packed, unpack

from workhorse.cli import main
from workhorse.cli.probe_tables import show_cpus
from workhorse.codec import from_json
from workhorse.records import Machine

A = str(CAPTURES / "machine_a.json")


def test_json_is_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "--root", A, "--json"]) == 0
    shown = from_json(Machine, capsys.readouterr().out, what="stdout")
    golden = (GOLDENS / "machine_a.json").read_bytes()
    assert shown == from_json(Machine, golden, what="the golden")


def test_a_directory_is_a_root_as_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "--root", str(unpack("machine_a", tmp_path)), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["gpus"][0]["name"] == "Tesla V100-PCIE-16GB"


def test_tables_in_both_languages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "--root", A, "--lang", "en"]) == 0
    english = capsys.readouterr().out
    assert "2 sockets, 24 physical cores, 48 threads" in english
    assert "0-46:2" in english and "898 GB/s" in english and "driver 550.144.03" in english
    assert main(["probe", "--root", A, "--lang", "zh"]) == 0
    chinese = capsys.readouterr().out
    assert "2 路，24 个物理核心，48 个线程" in chinese and "额定带宽" in chinese


def test_unknown_is_shown_as_unknown_and_doubts_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = packed("machine_a")
    del files["nvml.json"], files["proc/meminfo"]
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps(files))
    assert main(["probe", "--root", str(bare)]) == 0
    shown = capsys.readouterr().out
    assert "none found" in shown and "—" in shown
    assert "? NVIDIA card 0000:82:00.0" in shown and "? /proc/meminfo" in shown


def test_this_machine_without_measuring(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "--no-measure", "--json"]) == 0
    machine = from_json(Machine, capsys.readouterr().out, what="stdout")
    assert machine.memory.bandwidths == () and len(machine.disks) == 1


def test_this_machine_measured_says_how(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "--lang", "en"]) == 0
    shown = capsys.readouterr().out
    assert ("Measured read" in shown and "memchr over" in shown) or "was not measured" in shown


def test_a_wrong_root_is_one_sentence_and_a_next_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["probe", "--root", str(tmp_path / "nowhere")]) == 1
    out, err = capsys.readouterr()
    assert out == "" and "nowhere" in err and "→" in err and "Traceback" not in err


def test_brackets_in_names_are_no_markup(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = packed("machine_a")
    files["nvml.json"]["gpus"][0]["name"] = "[/red]V[bold]100"
    odd = tmp_path / "odd.json"
    odd.write_text(json.dumps(files))
    assert main(["probe", "--root", str(odd)]) == 0
    assert "[/red]V[bold]100" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("cpus", "shown"),
    [((), "—"), ((3,), "3"), ((0, 1, 2, 8), "0-2,8"), ((0, 24), "0,24"), ((1, 3, 5), "1-5:2"),
     ((0, 2, 4, 5), "0,2,4-5")],
)  # fmt: skip
def test_cpu_numbers(cpus: tuple[int, ...], shown: str) -> None:
    assert show_cpus(cpus) == shown
