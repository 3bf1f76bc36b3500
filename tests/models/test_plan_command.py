"""`workhorse plan` for machines that are elsewhere, and several models side by side."""

import json
from pathlib import Path

import pytest
from file_server import FileServer
from gguf_builder import llama
from hub_server import publish_hf
from published_shapes import PUBLISHED

from workhorse.cli import main
from workhorse.codec import from_json
from workhorse.errors import EXIT_GOOD, EXIT_NO, EXIT_USAGE
from workhorse.models.every import read_every
from workhorse.plan.compare import quality_note
from workhorse.records import Plan

MACHINE_B = str(Path(__file__).parents[1] / "captures" / "machine_b.json")
PARTS = (
    "--gpu", "Tesla V100-PCIE-16GB", "--gpus", "2", "--ram", "128GiB", "--numa", "2",
    "--cpu", "Xeon E5-2690 v4", "--cores", "14",
)  # fmt: skip


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKHORSE_HOME", str(tmp_path / "home"))


def file_of(name: str, folder: Path) -> str:
    return str(PUBLISHED[name].header().write(folder / f"{name}.gguf"))


def planned(capsys: pytest.CaptureFixture[str], *words: str) -> Plan:
    code = main(["plan", *words, "--json"])
    plan = from_json(Plan, capsys.readouterr().out.encode(), what="plan")
    assert code == (EXIT_NO if plan.verdict.blocked else EXIT_GOOD)
    return plan


def test_a_machine_made_of_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = planned(capsys, file_of("Qwen3.5-27B", tmp_path), *PARTS)
    assert plan.gpu_indexes == (0, 1)
    assert sum(plan.layer_split) == plan.layers
    assert plan.engine.gpu_architectures == ("sm_70",)
    decode = plan.forecast.decode_tokens_per_s
    assert decode is not None and decode.low < decode.value < decode.high
    assert "probe.doubt" in {finding.code for finding in plan.verdict.findings}


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_table_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], language: str
) -> None:
    model = file_of("Mixtral-8x7B", tmp_path)
    words = ("--machine", MACHINE_B, "--explain", "--headroom", "60%", "--lang", language)
    assert main(["plan", model, *words]) == EXIT_GOOD
    shown = capsys.readouterr().out
    for part in (
        ("experts of layers 0", "One token, term by term", "node 0", "GPU 0")
        if language == "en"
        else ("专家（层） 0", "单个词元耗时明细", "节点 0", "GPU 0")
    ):
        assert part in " ".join(shown.split())
    if language == "zh":
        assert not any(word in shown for word in ("fitted to", "op/weight", "ideal", "rows"))


def test_models_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("Llama-3.3-70B", "Llama-3.1-8B", "Mistral-7B-v0.3", "Mixtral-8x7B")
    files = [file_of(name, tmp_path) for name in names]
    assert main(["plan", "--compare", *files, "--machine", MACHINE_B, "--json"]) == EXIT_GOOD
    rows = json.loads(capsys.readouterr().out)
    fits = [row["fit"] for row in rows]
    order = ["cards", "partly", "memory", "no"]
    assert fits == sorted(fits, key=order.index)
    by_name = {row["name"]: row for row in rows}
    assert by_name["Llama-3.1-8B"]["fit"] == "cards"
    assert by_name["Llama-3.3-70B"]["fit"] == "partly"
    assert by_name["Mistral-7B-v0.3"]["quality"]["en"].startswith("perplexity +0.0026")
    on_cards = [row["decode_tokens_per_s"]["value"] for row in rows if row["fit"] == "cards"]
    assert on_cards == sorted(on_cards, reverse=True)
    assert main(["plan", "--compare", *files, *PARTS, "--lang", "zh"]) == EXIT_GOOD
    assert "全部放入" in capsys.readouterr().out


def test_none_that_fits_is_a_no(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = file_of("Llama-3.3-70B", tmp_path)
    assert main(["plan", "--compare", model, "--ram", "8GiB"]) == EXIT_NO
    assert "does not fit" in " ".join(capsys.readouterr().out.split())


def test_no_speed_is_printed_for_what_cannot_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("plan", file_of("Llama-3.1-8B", tmp_path), "--cpu", "Xeon E5-2690 v4", "--ram")
    assert main([*words, "64GiB"]) == EXIT_GOOD
    assert "tok/s" in capsys.readouterr().out
    assert main([*words, "2GiB"]) == EXIT_NO
    assert "tok/s" not in capsys.readouterr().out


def test_what_it_is_for_sets_context_and_slots(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = file_of("Llama-3.1-8B", tmp_path)
    seen = {}
    for purpose in ("chat", "long", "batch"):
        plan = planned(capsys, model, "--machine", MACHINE_B, "--for", purpose)
        seen[purpose] = (plan.context_tokens, plan.slots)
        assert plan.gpu_layers == plan.layers
    assert seen == {"chat": (8192, 4), "long": (131072, 1), "batch": (4096, 8)}
    told = planned(
        capsys, model, "--machine", MACHINE_B, "--for", "long", "--context", "4096", "--slots", "3"
    )
    assert (told.context_tokens, told.slots) == (4096, 3)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--gpu", "Tesla V100", "--ram", "64GiB"), "Tesla V100-PCIE-16GB"),
        (("--gpu", "Tesla P40"), "--ram"),
        (("--gpus", "2", "--ram", "64GiB"), "--gpu"),
        (("--cpu", "Z80", "--ram", "64GiB"), "E5-2690 v4"),
        (("--gpu", "Tesla P40", "--ram", "64GiB", "--machine", MACHINE_B), "two machines"),
    ],
)
def test_a_wrong_machine_is_one_clear_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert main(["plan", file_of("Llama-3.1-8B", tmp_path), *words]) == EXIT_USAGE
    shown = capsys.readouterr().err
    assert said in shown and shown.count("workhorse:") == 1


@pytest.mark.parametrize(
    "words",
    [("--ram", "64"), ("--ram", "0GiB"), ("--ram", "9999999TiB"), ("--headroom", "95%"),
     ("--headroom", "-1"), ("--gpus", "0"), ("--for", "fun"), ("--bits", "four"),
     ("--bits", "0"), ("--bits", "nan"), ("--bits", "40"), ("--gpu", "P40", "--gpu", "T4")],
)  # fmt: skip
def test_a_wrong_figure_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["plan", "model.gguf", *words])
    assert ended.value.code == EXIT_USAGE


def test_what_nobody_published_has_no_quality_note() -> None:
    assert quality_note("mxfp4") is None
    note = quality_note("q4_k")
    assert note is not None and "0.1754" in note.en and "0.1754" in note.zh


def test_a_folder_counts_with_all_of_its_models(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    for name in ("Llama-3.1-8B", "Mistral-7B-v0.3"):
        file_of(name, folder)
    (folder / "mmproj-f16.gguf").write_bytes(b"GGUF")
    assert main(["plan", "--compare", str(folder), *PARTS, "--json"]) == EXIT_GOOD
    rows = json.loads(capsys.readouterr().out)
    assert {row["name"] for row in rows} == {"Llama-3.1-8B", "Mistral-7B-v0.3"}


def test_a_broken_file_does_not_stop_the_comparison(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    good = file_of("Llama-3.1-8B", folder)
    cut = folder / "half.gguf"
    cut.write_bytes(Path(good).read_bytes()[:300])
    for named in ((str(folder),), (str(cut), good)):
        assert main(["plan", "--compare", *named, *PARTS, "--json"]) == EXIT_GOOD
        shown = capsys.readouterr()
        assert [row["name"] for row in json.loads(shown.out)] == ["Llama-3.1-8B"]
        assert "half.gguf is incomplete" in shown.err
    assert main(["plan", "--compare", str(cut), *PARTS]) not in (EXIT_GOOD, EXIT_NO)


def test_a_comparison_tells_what_it_does_not_know(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = file_of("Llama-3.1-8B", tmp_path)
    assert main(["plan", "--compare", model, "--ram", "64GiB"]) == EXIT_GOOD
    assert "--cpu NAME" in " ".join(capsys.readouterr().out.split())


def test_a_repository_counts_with_all_of_its_quants(server: FileServer) -> None:
    names = ("tiny-Q4_K_M.gguf", "tiny-Q8_0.gguf")
    environment = publish_hf(server, "maker/tiny", dict.fromkeys(names, llama().build()))
    found = read_every("hf:maker/tiny", environment=environment)
    assert [model.path for model in found] == [f"hf:maker/tiny:{name}" for name in names]
    (one,) = read_every("hf:maker/tiny", quant="Q8_0", environment=environment)
    assert one.path.endswith("Q8_0.gguf")
    (named,) = read_every(f"hf:maker/tiny:{names[0]}", environment=environment)
    assert named.path.endswith(names[0])
