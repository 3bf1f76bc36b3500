"""The table of tensor types, against the engine that will read them and the gguf package."""

import ctypes
from collections.abc import Iterator
from pathlib import Path

import gguf
import pytest
import xllamacpp

from workhorse.knowledge.quants import quant, quants, removed_quants


@pytest.fixture(scope="module")
def engine() -> Iterator[ctypes.CDLL]:
    [library] = Path(xllamacpp.__file__).parent.glob("*.so")
    ggml = ctypes.CDLL(str(library))
    ggml.ggml_type_name.restype = ctypes.c_char_p
    ggml.ggml_type_size.restype = ctypes.c_size_t
    ggml.ggml_blck_size.restype = ctypes.c_int64
    yield ggml


def test_every_type_is_as_the_installed_engine_has_it(engine: ctypes.CDLL) -> None:
    for kind in quants().values():
        assert engine.ggml_type_name(kind.id).decode().lower() == kind.name
        assert engine.ggml_blck_size(kind.id) == kind.block_elements, kind.name
        assert engine.ggml_type_size(kind.id) == kind.block_bytes, kind.name
    for removed in removed_quants().values():
        assert engine.ggml_type_size(removed.id) == 0, removed.name
        assert quant(removed.use)


def test_no_id_is_left_out() -> None:
    ids = sorted([*quants(), *removed_quants()])
    assert ids == list(range(len(ids)))


def test_the_gguf_package_agrees() -> None:
    known = {int(kind): sizes for kind, sizes in gguf.GGML_QUANT_SIZES.items()}
    # The package counts 40 bytes for q8_1; the engine's structure has 36 (see the table).
    del known[int(gguf.GGMLQuantizationType.Q8_1)]
    for type_id, sizes in known.items():
        kind = quants()[type_id]
        assert (kind.block_elements, kind.block_bytes) == sizes, kind.name
        assert gguf.GGMLQuantizationType(type_id).name.lower() == kind.name


def test_an_unknown_name_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        quant("q99_0")
