"""The memory arithmetic against llama.cpp's dry run: 29 published shapes, 128 architectures.

The engine's figures are in engine_memory.json; benchmarks/memory_arithmetic.py asks it anew.
"""

import json
import lzma
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from memory_table import rows_of
from odd_shapes import ODD
from published_shapes import PUBLISHED

from workhorse.knowledge.architectures import known_architecture
from workhorse.models.gguf import describe, read_gguf
from workhorse.models.header import read_header
from workhorse.plan.compute_buffers import compute_error
from workhorse.records import Model

HERE = Path(__file__).parent
SAID: dict[str, Any] = json.loads((HERE / "engine_memory.json").read_text("utf-8"))
TOTAL_ERROR = 0.02


@cache
def header_bytes() -> dict[str, bytes]:
    with lzma.open(HERE / "every_architecture.tar.xz") as packed, tarfile.open(fileobj=packed) as t:
        return {member.name: t.extractfile(member).read() for member in t}  # type: ignore[union-attr]


def small_model(name: str) -> Model:
    raw, size = header_bytes()[name], SAID["architectures"][name]["file_bytes"]
    header = read_header(lambda at, count: raw[at : at + count], size, name=name)
    return describe([header], Path(f"{name}.gguf"))


@pytest.mark.parametrize("name", [*PUBLISHED, *ODD])
def test_a_published_shape_takes_what_the_engine_says(name: str, tmp_path: Path) -> None:
    make = PUBLISHED[name].header if name in PUBLISHED else ODD[name]
    model = read_gguf(make().write(tmp_path / "model.gguf"))
    rows = rows_of(name, model, SAID, "published")
    assert len(rows) >= 4
    for row in rows:
        assert row.weights[0] == row.weights[1]
        assert row.buffer[0] == row.buffer[1]
        assert row.kept[0] == row.kept[1]
        assert row.compute[0] == pytest.approx(row.compute[1], rel=compute_error(model))
        assert abs(row.total_error) < TOTAL_ERROR
    assert model.known


@pytest.mark.parametrize("name", SAID["architectures"])
def test_every_architecture_keeps_what_the_engine_says(name: str) -> None:
    model = small_model(name)
    rows = rows_of(name, model, SAID, "architectures")
    assert rows
    for row in rows:
        assert row.weights[0] == row.weights[1]
        assert row.buffer[0] == row.buffer[1]
        assert row.kept[0] == row.kept[1]
    assert known_architecture(model.architecture)


def test_the_engines_figures_cover_all_kinds_of_layers() -> None:
    models = [small_model(name) for name in SAID["architectures"]]
    attention = [a for model in models for a in model.attention if a is not None]
    assert len({model.architecture for model in models}) > 110
    assert any(a.window_tokens for a in attention)
    assert any(not a.value_size for a in attention)
    assert any(a.side for a in attention)
    assert any(any(model.recurrent) for model in models)
    assert any(None in model.attention and any(model.attention) for model in models)
