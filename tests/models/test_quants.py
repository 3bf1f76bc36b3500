"""The table of tensor types, against the engine that will read them and the gguf package."""

import json
import os
import subprocess
import sys

import gguf
import pytest

from workhorse.engines.openmp import ensure_openmp
from workhorse.knowledge.quants import quant, quants, removed_quants

# In a child, as the engine itself runs: only there is libgomp found on a system without it.
ASK_THE_ENGINE = """
import ctypes, json, pathlib, sys
import xllamacpp
[library] = pathlib.Path(xllamacpp.__file__).parent.glob("*.so")
ggml = ctypes.CDLL(str(library))
ggml.ggml_type_name.restype = ctypes.c_char_p
ggml.ggml_type_size.restype = ctypes.c_size_t
ggml.ggml_blck_size.restype = ctypes.c_int64
def known(i):
    name = ggml.ggml_type_name(i)
    return name and name.decode().lower(), ggml.ggml_blck_size(i), ggml.ggml_type_size(i)
print(json.dumps([known(i) for i in range(int(sys.argv[1]))]))
"""


def test_every_type_is_as_the_installed_engine_has_it() -> None:
    count = len(quants()) + len(removed_quants())
    env = os.environ | {"LD_LIBRARY_PATH": str(ensure_openmp() or "")}
    said = subprocess.run(
        [sys.executable, "-c", ASK_THE_ENGINE, str(count)],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    engine = json.loads(said)
    for kind in quants().values():
        assert engine[kind.id] == [kind.name, kind.block_elements, kind.block_bytes]
    for removed in removed_quants().values():
        assert engine[removed.id][2] == 0, removed.name
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
