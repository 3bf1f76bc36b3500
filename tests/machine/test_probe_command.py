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
    assert "none usable" in shown and "—" in shown
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


def shown(capsys: pytest.CaptureFixture[str], name: str, language: str = "en") -> str:
    """What the command prints for a captured machine, blanks squeezed."""
    assert main(["probe", "--root", str(CAPTURES / name), "--lang", language]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_eight_equal_cards_are_told_once_and_their_links_as_a_square(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = shown(capsys, "eight_v100.json")
    assert out.count("Tesla V100-SXM2-32GB") == 1 and "all 8 GPUs" in out
    assert "What differs between the GPUs" in out and "0000:b3:00.0" in out
    assert "0 · NV1 NV2 NV1 SYS SYS SYS NV2" in out


def test_modules_channels_and_a_hot_card_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, "p40_box.json")
    assert "4 × 32.0 GiB DDR4 2133/2400 MT/s; 4 of 16 slots filled" in out
    assert "2, 2 of 4" in out and "68.3 GB/s" in out
    assert "91 °C" in out and "SW thermal slowdown" in out and "llama-server" in out
    chinese = shown(capsys, "p40_box.json", "zh")
    assert "16 个插槽用了 4 个" in chinese and "温度" in chinese


def test_a_lost_link_and_a_resting_one_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, "two_links.json")
    assert "PCIe now 3.0 x8 1.0 x16" in out and "PCIe under load 3.0 x8 3.0 x16" in out
    assert "packets sent again 4211 0" in out


def test_a_driver_that_refuses_is_shown_with_what_to_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = shown(capsys, "mismatch.json")
    assert "none usable" in out and "580.159.03" in out and "mismatch" in out
    assert "Errors in the kernel's log" in out and "API mismatch" in out


def test_what_was_measured_of_a_captured_machine_is_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = shown(capsys, "h200.json")
    assert "130 GB/s" in out and "within 2024 GB/s" in out and "memchr over 2400 MiB" in out


def test_what_is_not_known_takes_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, "texts/two_nodes")
    assert "Settings of the kernel, not known: governor" in out
    assert "? Which CPUs share a physical core is inferred" in out


def test_copies_between_cards_that_were_tried_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = packed("two_v100")
    copies = [
        {"direct": False, "right": True, "bytes_per_s": 9.4e9, "latency_s": 15e-6},
        {"direct": True, "right": False},
    ]
    files["measured.json"] = {"links": [{"first": 0, "second": 1, "copies": copies}]}
    tried = tmp_path / "tried.json"
    tried.write_text(json.dumps(files), encoding="utf-8")
    assert main(["probe", "--root", str(tried), "--lang", "en"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "0–1 through main memory 9.40 GB/s 15 µs right" in out
    assert "0–1 direct — — WRONG" in out
