"""The dry run on a file that has only a header: the command, the answer, every way to fail."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from gguf_builder import llama
from hypothesis import given
from hypothesis import strategies as st

import builders
from workhorse.errors import AppError
from workhorse.models.gguf import read_gguf
from workhorse.plan.planner import make_plan
from workhorse.plan.wish import Wish
from workhorse.records import BudgetLine, Plan
from workhorse.rehearse.memory import engine_memory, merged
from workhorse.rehearse.skeleton import (
    dry_run,
    dry_run_arguments,
    engine_budget,
    read_dry_run,
    write_skeleton,
)
from workhorse.rehearse.source import local_parts
from workhorse.text import Text
from workhorse.units import MIB

KNOWS = ("--model", "--ctx-size", "--parallel", "--ubatch-size", "--n-gpu-layers", "--no-repack")


def engine(folder: Path, answer: str, code: int = 0) -> Path:
    """A stand-in for llama-fit-params that writes down how it was asked."""
    program = folder / "llama-fit-params"
    program.write_text(f'#!/bin/sh\necho "$@" > {folder}/asked\necho "{answer}"\nexit {code}\n')
    program.chmod(0o755)
    return folder / "llama-server"


def plan_of(path: Path, server: Path) -> Plan:
    build = replace(builders.EMBEDDED, kind="binary", command=(str(server),), knows=KNOWS)
    return make_plan(builders.machine(), read_gguf(path), build, Wish(context_tokens=2048, slots=2))


def test_the_skeleton_has_the_size_and_the_header_and_takes_no_disk(tmp_path: Path) -> None:
    whole = llama(layers=4).write(tmp_path / "model.gguf")
    with whole.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\1")  # weights that a skeleton must not have
    (tmp_path / "out").mkdir()
    with local_parts(whole) as parts:
        skeleton = write_skeleton(parts, tmp_path / "out")
    assert skeleton.stat().st_size == whole.stat().st_size
    described, real = read_gguf(skeleton), read_gguf(whole)
    assert replace(described, path="") == replace(real, path="")
    assert skeleton.read_bytes()[-1] == 0
    assert skeleton.stat().st_blocks * 512 < 64 * 1024


def test_the_engine_is_asked_with_the_plans_settings_and_answers_a_budget(tmp_path: Path) -> None:
    path = llama(layers=4).write(tmp_path / "model.gguf")
    plan = plan_of(path, engine(tmp_path, "CUDA0 10 20 30\nHost 1 0 2"))
    with local_parts(path) as parts:
        lines = engine_memory(plan, parts, tmp_path / "scratch")
    asked = (tmp_path / "asked").read_text().split()
    assert asked[asked.index("--ctx-size") + 1] == "4096"
    assert asked[asked.index("--fit-print") + 1] == "on"
    assert "--no-repack" in asked
    assert not {"--port", "--host", "--alias", "--slots"} & set(asked)
    told = [(line.device, line.item, line.n_bytes) for line in lines if line.basis == "engine"]
    assert told == [
        ("GPU 0", "weights", 10 * MIB),
        ("GPU 0", "kv", 20 * MIB),
        ("GPU 0", "compute", 30 * MIB),
        ("RAM", "weights", MIB),
        ("RAM", "compute", 2 * MIB),
    ]
    assert {line.item for line in lines if line.basis != "engine"} >= {"runtime"}
    assert list((tmp_path / "scratch").iterdir()) == []


def test_only_settings_that_decide_memory_are_passed_on() -> None:
    plan = replace(plan_for_arguments(), layer_split=(3, 2), expert_layers_in_ram=4)
    words = dry_run_arguments(plan, Path("skeleton.gguf"))
    assert words[:2] == ("-m", "skeleton.gguf")
    assert "--threads" not in words
    assert words[words.index("--tensor-split") + 1] == "3,2"
    assert words[words.index("--n-cpu-moe") + 1] == "4"


def plan_for_arguments() -> Plan:
    knows = (*KNOWS, "--threads", "--tensor-split", "--split-mode", "--n-cpu-moe")
    build = replace(builders.EMBEDDED, knows=knows)
    return make_plan(builders.machine(), builders.model(), build, Wish())


@pytest.mark.parametrize(
    ("answer", "code"), [("", 0), ("error: bad", 1), ("Host x y z", 0), ("Host 1 2 3", 3)]
)
def test_an_engine_that_refuses_is_one_error_in_its_words(
    tmp_path: Path, answer: str, code: int
) -> None:
    path = llama().write(tmp_path / "model.gguf")
    plan = plan_of(path, engine(tmp_path, answer, code))
    with pytest.raises(AppError) as refused:
        dry_run(plan, path)
    assert refused.value.speaker == "engine"


def test_the_embedded_engine_has_no_dry_run_and_says_how_to_get_one(tmp_path: Path) -> None:
    path = llama().write(tmp_path / "model.gguf")
    plan = make_plan(builders.machine(), read_gguf(path), builders.EMBEDDED, Wish())
    with local_parts(path) as parts, pytest.raises(AppError, match="no dry run") as told:
        engine_memory(plan, parts, tmp_path / "scratch")
    assert "workhorse engine build" in told.value.next_step.en


def test_a_build_without_its_tools_says_so(tmp_path: Path) -> None:
    path = llama().write(tmp_path / "model.gguf")
    with pytest.raises(AppError, match="no dry run"):
        dry_run(plan_of(path, tmp_path / "llama-server"), path)


@given(st.text())
def test_any_answer_is_read_without_an_error(text: str) -> None:
    assert all(memory.model_bytes >= 0 for memory in read_dry_run(text))


def test_cards_are_those_that_the_engine_was_shown() -> None:
    found = read_dry_run("CUDA0 1 2 3 \nCUDA1 4 5 6 \nHost 7 8 9 \n")
    lines = engine_budget(found, gpu_indexes=(2, 5))
    assert [line.device for line in lines] == ["GPU 2"] * 3 + ["GPU 5"] * 3 + ["RAM"] * 3


def test_what_the_engine_does_not_say_stays_as_planned() -> None:
    words = Text("", "")
    planned = [
        BudgetLine("RAM", "weights", 5, "header", words),
        BudgetLine("RAM", "state", 5, "header", words),
        BudgetLine("RAM", "runtime", 7, "estimated", words),
        BudgetLine("GPU 0", "weights", 3, "header", words),
    ]
    told = [
        BudgetLine("RAM", "weights", 6, "engine", words),
        BudgetLine("RAM", "kv", 9, "engine", words),
    ]
    assert merged(planned, told) == (*told, planned[2], planned[3])
