"""The commands that take any model by its name: what a user sees."""

import json
from pathlib import Path

import pytest
from checkpoint_builder import checkpoint, llama_config, write_all
from file_server import FileServer
from gguf_builder import llama
from hub_server import publish_hf

from workhorse.cli import main
from workhorse.errors import EXIT_FAILED, EXIT_GOOD, AppError
from workhorse.models.read import local_folder, servable
from workhorse.plan.planner import served_name

CAPTURE = Path(__file__).parents[1] / "captures" / "machine_b.json"
CARD = ("--gpu", "Tesla V100-PCIE-16GB", "--ram", "64GiB")


@pytest.fixture
def hub(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> FileServer:
    """Hugging Face with one GGUF model and one checkpoint."""
    monkeypatch.delenv("HF_TOKEN", raising=False)
    files = {"tiny-Q4_0.gguf": llama().build(), "tiny-Q8_0.gguf": llama(layers=3).build()}
    environment = publish_hf(server, "maker/tiny-GGUF", files)
    publish_hf(server, "maker/tiny-1.5B", checkpoint(llama_config()))
    monkeypatch.setenv("HF_ENDPOINT", environment["HF_ENDPOINT"])
    return server


@pytest.mark.usefixtures("hub")
def test_a_plan_before_the_download(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "hf:maker/tiny-GGUF:Q8_0", "--json", *CARD]) == EXIT_GOOD
    plan = json.loads(capsys.readouterr().out)
    assert plan["model_path"] == "hf:maker/tiny-GGUF:tiny-Q8_0.gguf"
    assert plan["model_name"] == "tiny-Q8_0"


@pytest.mark.usefixtures("hub")
def test_a_plan_for_a_checkpoint_says_that_it_is_an_estimate(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan", "maker/tiny-1.5B", "--quant", "Q8_0", "--json", *CARD]) == EXIT_GOOD
    plan = json.loads(capsys.readouterr().out)
    assert plan["model_name"] == "tiny-1.5B"
    weights = [line for line in plan["budget"] if line["item"] == "weights"]
    assert weights and all(line["basis"] == "estimated" for line in weights)
    codes = [finding["code"] for finding in plan["verdict"]["findings"]]
    assert "model.not_converted" in codes and "model.no_chat_template" not in codes


@pytest.mark.usefixtures("hub")
def test_quants_of_one_checkpoint_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["maker/tiny-1.5B:Q8_0", "maker/tiny-1.5B:Q4_0"]
    assert main(["plan", "--compare", *names, "--json", *CARD]) == EXIT_GOOD
    rows = json.loads(capsys.readouterr().out)
    assert {row["quantisation"] for row in rows} == {"q8_0", "q4_0"}


@pytest.mark.usefixtures("hub")
def test_the_doctor_judges_it_too(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["doctor", "--machine", str(CAPTURE), "--json"]
    assert main([*words, "--model", "maker/tiny-GGUF:Q8_0"]) == EXIT_GOOD
    with_model = json.loads(capsys.readouterr().out)["findings"]
    assert main(words) == EXIT_GOOD
    assert len(with_model) != len(json.loads(capsys.readouterr().out)["findings"])


@pytest.mark.usefixtures("hub")
def test_up_wants_the_weights_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", "hf:maker/tiny-GGUF:Q8_0", "--port", "0"]) == EXIT_FAILED
    said = capsys.readouterr().err
    assert "is not on this machine" in said and "workhorse plan hf:maker/tiny-GGUF:Q8_0" in said


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/m/Qwen2.5-7B-Q4_K_M-00001-of-00002.gguf", "Qwen2.5-7B-Q4_K_M"),
        ("hf:Qwen/Qwen2.5-7B", "Qwen2.5-7B"),
        ("hf:a/b:sub/Qwen2.5-7B.gguf", "Qwen2.5-7B"),
        ("ms:a/b@v1.0:x,y.gguf", "x-y"),
        ("https://example.org/a/tiny.gguf", "tiny"),
        ("/models/Qwen3-8B", "Qwen3-8B"),
    ],
)
def test_the_name_that_clients_use(path: str, name: str) -> None:
    assert served_name(path) == name


def test_what_a_service_can_be_made_of(tmp_path: Path) -> None:
    file = llama().write(tmp_path / "tiny-Q8_0.gguf")
    llama().write(tmp_path / "tiny-Q4_K_M.gguf")
    assert servable(file) == file
    assert servable(tmp_path) == tmp_path / "tiny-Q4_K_M.gguf"
    assert servable(tmp_path, "q8_0") == file
    original = write_all(tmp_path / "original", checkpoint())
    for reference in (original, original / "model.safetensors", original / "config.json"):
        with pytest.raises(AppError, match=r"llama\.cpp reads GGUF files"):
            servable(reference)


def test_what_is_on_this_machine() -> None:
    assert local_folder("/a/b.gguf") is not None
    assert local_folder("hf:a/b") is None
    assert local_folder("https://example.org/b.gguf") is None
