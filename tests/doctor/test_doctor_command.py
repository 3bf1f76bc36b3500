"""`workhorse doctor` as a user types it."""

import json
from pathlib import Path

import pytest

from workhorse.cli import doctor, main
from workhorse.codec import from_json
from workhorse.doctor.judge import judge
from workhorse.machine.probe import probe
from workhorse.records import Verdict

CAPTURES = Path(__file__).parent.parent / "captures"
OLDEST = CAPTURES / "avx_only.json"
SOUND = CAPTURES / "machine_b.json"


def test_json_is_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--machine", str(OLDEST), "--json"]) == 3
    shown = from_json(Verdict, capsys.readouterr().out, what="stdout")
    assert shown == judge(probe(OLDEST)) and shown.blocked


def test_a_sound_machine_is_said_to_be_sound(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--machine", str(SOUND), "--lang", "en"]) == 0
    said = capsys.readouterr().out
    assert "✓ PCIe links: 1 × 3.0 x16." in said
    assert said.rstrip().splitlines()[-1].startswith("Nothing blocks.")
    assert said.index("\nWell\n") < said.index("\nNot looked at\n")


def test_each_finding_comes_with_remedy_command_evidence_and_source(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["doctor", "--machine", str(OLDEST), "--lang", "en"])
    said = capsys.readouterr().out
    block = said.split("\n\n")[0].splitlines()
    assert block[0].startswith("no ") and block[0].endswith("cpu.no-avx2")
    starts = [line.strip()[0] for line in block[1:]]
    assert {"→", "$", "·"} <= set(starts) and block[-1].strip().startswith("source: ")
    assert "1 blocker" in said.splitlines()[-1]


def test_chinese_readers_read_chinese(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--machine", str(OLDEST), "--lang", "zh"]) == 3
    said = capsys.readouterr().out
    assert "不可行" in said and "来源：" in said and "正常" in said and "1 项阻碍运行" in said
    for english in ("source:", "Nothing blocks", "Not looked at", "Well"):
        assert english not in said


def test_lines_end_where_the_terminal_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from rich.cells import cell_len
    from rich.console import Console

    def narrow(*, stderr: bool = False) -> Console:
        return Console(width=80, highlight=False)

    monkeypatch.setattr(doctor, "console", narrow)
    for language in ("en", "zh"):
        main(["doctor", "--machine", str(CAPTURES / "texts/four_nodes"), "--lang", language])
        lines = capsys.readouterr().out.splitlines()
        # A command is one line, whole, to be copied.
        long = [line for line in lines if cell_len(line) > 80 and not line.startswith("      $ ")]
        assert lines and long == []
        assert [line for line in lines if line != line.rstrip() and "$" not in line] == []


@pytest.mark.parametrize("kind", ["missing", "binary", "json", "folder", "empty"])
def test_what_is_no_capture_is_refused(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "capture"
    match kind:
        case "binary":
            place.write_bytes(b"\x00\xff\x00")
        case "json":
            place.write_text('{"proc/uptime": "12 13"}')
        case "folder":
            (place / "proc").mkdir(parents=True)
        case "empty":
            place.mkdir()
    assert main(["doctor", "--machine", str(place), "--lang", "en"]) == 1
    captured = capsys.readouterr()
    assert str(place) in captured.err and "probe --save" in captured.err
    assert captured.out == "" and "Traceback" not in captured.err


@pytest.mark.parametrize("content", [None, b"", b"not a model", b"GGUF\x03\x00"])
def test_what_is_no_model_is_refused_before_anything_is_measured(
    content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "model.gguf"
    if content is not None:
        place.write_bytes(content)
    assert main(["doctor", "--model", str(place), "--lang", "en"]) == 1
    captured = capsys.readouterr()
    assert "model.gguf" in captured.err and captured.out == ""


def test_an_engine_without_a_model_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--engine", "/bin/true", "--lang", "en"]) == 2
    assert "--model" in capsys.readouterr().err


@pytest.mark.real
def test_a_real_model_is_judged_on_a_captured_machine(
    real_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["doctor", "--machine", str(SOUND), "--model", str(real_model), "--json"]
    assert main(words) == 0
    verdict = from_json(Verdict, capsys.readouterr().out, what="stdout")
    told = {f.code: f for f in verdict.findings}
    # The embedded engine has no code for the card, which is what a user should know.
    assert told["gpu.no_code"].level == "warning" and "good.model" not in told


def test_this_machine_is_examined(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORKHORSE_HOME", str(tmp_path))
    code = main(["doctor", "--quick", "--json"])
    document = json.loads(capsys.readouterr().out)
    levels = {finding["level"] for finding in document["findings"]}
    assert code == (3 if "blocker" in levels else 0)
    assert any(f["code"] == "good.room" or f["code"].startswith(("memory.", "disk."))
               for f in document["findings"])  # fmt: skip


PASTED = {
    "no devices": ("No devices were found\n", 0, "gpu.none-found"),
    "a table beside the kernel's refusal": (
        "05:00.0 3D controller: NVIDIA Corporation GV100GL [Tesla V100 PCIe 16GB] (rev a1)\n"
        "[    9.100001] NVRM: The NVIDIA GPU 0000:05:00.0 (PCI ID: 10de:1db4)\n"
        "[    9.100002] NVRM: installed in this system is not supported by the\n"
        "[    9.100003] NVRM: NVIDIA 590.44.01 driver release.\n",
        3,
        "nvrm.support",
    ),
    "lspci alone": (
        "05:00.0 3D controller: NVIDIA Corporation GK210GL [Tesla K80] (rev a1)\n",
        0,
        "gpu.driver-not-told",
    ),
}


@pytest.mark.parametrize(("said", "exit_code", "code"), PASTED.values(), ids=PASTED)
def test_a_few_pasted_lines_are_enough(
    said: str, exit_code: int, code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "paste.txt").write_text(said, encoding="utf-8")
    assert main(["doctor", "--machine", str(tmp_path), "--json"]) == exit_code
    shown = from_json(Verdict, capsys.readouterr().out, what="stdout")
    assert code in {finding.code for finding in shown.findings}
    assert "gpu.no-driver" not in {finding.code for finding in shown.findings}
