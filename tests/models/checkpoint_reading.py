"""How the tests of checkpoints read them, and what llama-quantize made of some."""

import json
import tracemalloc
from pathlib import Path

import pytest

from workhorse.errors import AppError
from workhorse.models.read import read_model
from workhorse.records import Model
from workhorse.units import MIB

MEMORY_BYTES_MAX = 100 * MIB
GOLDEN = json.loads((Path(__file__).parent / "quantised.json").read_text(encoding="utf-8"))


def read(reference: str | Path, environment: dict[str, str] | None = None, **options: str) -> Model:
    return read_model(
        reference,
        environment=environment or {},
        pause=lambda _: None,
        quant=options.get("quant"),
    )


def refusal(path: Path, **options: str) -> str:
    """The one error, in both languages, with little memory taken."""
    tracemalloc.start()
    try:
        with pytest.raises(AppError) as caught:
            read(path, **options)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < MEMORY_BYTES_MAX
    for words in (caught.value.what, caught.value.next_step):
        assert words.en and words.zh
        assert words.en.isprintable() and words.zh.isprintable()
    return f"{caught.value.what.en} {caught.value.next_step.en}"
