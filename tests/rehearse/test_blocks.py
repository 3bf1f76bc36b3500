"""Random blocks against the gguf package, which dequantises them."""

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize
from hypothesis import given
from hypothesis import strategies as st

from workhorse.knowledge.quants import quant, quants
from workhorse.rehearse.blocks import fill, pool, prime_below

# No dequantisation in the package (0.19.0): their scales are looked at below.
NOT_IN_THE_PACKAGE = {"q8_1", "q8_k", "q1_0", "q2_0"}
PLAIN = {"f32": "<f4", "f16": "<f2", "f64": "<f8"}
INTEGERS = {"i8", "i16", "i32", "i64"}
FLOATS = sorted(kind.name for kind in quants().values() if kind.name not in INTEGERS)


def values_of(name: str, deviation: float) -> np.ndarray:
    raw = np.frombuffer(pool(name, deviation), dtype=np.uint8)
    if name in PLAIN:
        return raw.view(PLAIN[name]).astype(np.float64)
    kind = gguf.GGMLQuantizationType[name.upper()]
    return dequantize(raw.reshape(-1, quant(name).block_bytes), kind).astype(np.float64)


@pytest.mark.parametrize("name", sorted(set(FLOATS) - NOT_IN_THE_PACKAGE))
@pytest.mark.parametrize("deviation", [1.0, 0.02])
def test_every_type_gives_finite_weights_of_the_deviation_asked_for(
    name: str, deviation: float
) -> None:
    values = values_of(name, deviation)
    assert np.isfinite(values).all()
    spread = values.std()
    # The smallest normal scale bounds the grids with the largest values from below.
    assert deviation / 2 < spread < deviation * 2.5
    # Subnormal singles are what slows a CPU down.
    assert (np.abs(values[values != 0]) > 2.0**-120).all()


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("deviation", [1e-9, 1e-3, 1.0, 1e6])
def test_no_scale_is_denormal_or_infinite_whatever_is_asked(name: str, deviation: float) -> None:
    kind = quant(name)
    blocks = np.frombuffer(pool(name, deviation), dtype=np.uint8).reshape(-1, kind.block_bytes)
    for field in kind.scales:
        if field.form == "f16":
            scale = np.abs(blocks[:, field.at : field.at + 2].copy().view("<f2"))
            assert np.isfinite(scale).all()
            assert (scale >= np.finfo(np.float16).smallest_normal).all()
        elif field.form == "ue4m3":
            assert ((blocks[:, field.at] >> 3) >= 1).all()
            assert (blocks[:, field.at] < 0x7F).all()
        elif field.form == "e8m0":
            assert (blocks[:, field.at] < 255).all()


@pytest.mark.parametrize("name", sorted(INTEGERS))
def test_integers_are_zeros_because_they_name_places(name: str) -> None:
    assert not any(pool(name, 1.0))


@given(
    name=st.sampled_from([kind.name for kind in quants().values()]),
    blocks=st.integers(0, 200_000),
    start=st.integers(0, 10**9),
)
def test_a_tensor_is_filled_with_whole_blocks_of_the_pool(
    name: str, blocks: int, start: int
) -> None:
    size = quant(name).block_bytes
    filled = b"".join(fill(name, 0.02, blocks * size, start))
    assert len(filled) == blocks * size
    source = pool(name, 0.02)
    at = start * size % len(source)
    assert filled == (source[at:] + source * (len(filled) // len(source) + 1))[: len(filled)]


def test_rows_do_not_repeat_with_the_pool() -> None:
    assert [prime_below(n) for n in (2, 3, 4, 100, 7919)] == [2, 3, 3, 97, 7919]
    row = 2048 * 4
    filled = b"".join(fill("f32", 1.0, 512 * row))
    assert len({filled[at : at + row] for at in range(0, len(filled), row)}) == 512


def test_the_same_pool_every_time() -> None:
    first = pool("q4_k", 0.5)
    pool.cache_clear()
    assert pool("q4_k", 0.5) == first
