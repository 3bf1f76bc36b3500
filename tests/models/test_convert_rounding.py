"""BF16 to FP16, bit for bit, and what is counted on the way."""

import math

import numpy as np
import pytest
from bf16_checkpoints import bf16, reference, value_of, weights
from hypothesis import given
from hypothesis import strategies as st

from workhorse.models.convert.rounding import Rounder, Tally, widen

EVERY = list(range(1 << 16))


def rounded(codes: list[int], *, clamp: bool = False) -> tuple[list[int], Tally]:
    out = np.empty(len(codes), np.uint16)
    tally = Rounder(len(codes), clamp=clamp).round(np.array(codes, np.uint16), out)
    return out.tolist(), tally


def test_every_bf16_value_is_rounded_as_python_rounds_it() -> None:
    made, _ = rounded(EVERY)
    wanted = [reference(code) for code in EVERY]
    assert [c for c in EVERY if wanted[c] is not None and made[c] != wanted[c]] == []


def test_every_nan_stays_a_quiet_nan_of_its_sign() -> None:
    nans = [code for code in EVERY if math.isnan(value_of(code))]
    made, _ = rounded(nans)
    assert len(nans) == 254
    assert all(new & 0x7E00 == 0x7E00 for new in made)
    assert all(new & 0x8000 == old & 0x8000 for old, new in zip(nans, made, strict=True))


def test_what_is_counted_of_every_value() -> None:
    """Counted again from the reference, value by value."""
    _, tally = rounded(EVERY)
    pairs = [(value_of(code), reference(code)) for code in EVERY]
    finite = [(v, f) for v, f in pairs if f is not None and math.isfinite(v)]
    small = [(abs(v), f & 0x7FFF) for v, f in finite if 0 < f & 0x7FFF < 0x400]
    assert tally.values == 65536
    assert tally.nan == sum(f is None for _, f in pairs)
    assert tally.infinite == sum(math.isinf(v) for v, _ in pairs)
    assert tally.overflowed == sum(f & 0x7FFF == 0x7C00 for _, f in finite)
    assert tally.became_zero == sum(v != 0 and f & 0x7FFF == 0 for v, f in finite)
    assert tally.subnormal == len(small)
    assert tally.relative_error == max(abs(f * 2.0**-24 - v) / v for v, f in small)
    assert tally.largest_magnitude == max(abs(v) for v, _ in finite)


def test_normal_values_lose_nothing() -> None:
    _, tally = rounded([bf16(value) for value in (1.0, -2.5, 65280.0, 2.0**-14)])
    assert tally == Tally(values=4, largest_code=bf16(65280.0))


def test_clamping_stops_at_the_largest_number_and_leaves_infinity() -> None:
    large, infinite = bf16(131072.0), bf16(math.inf)
    made, tally = rounded([large, large | 0x8000, infinite, bf16(1.0)], clamp=True)
    assert made == [0x7BFF, 0xFBFF, 0x7C00, 0x3C00]
    assert (tally.overflowed, tally.infinite) == (2, 1)
    assert tally.largest_magnitude == 131072.0


def test_infinity_is_no_largest_value() -> None:
    _, tally = rounded([bf16(math.inf), bf16(3.0), bf16(math.nan), 0])
    assert tally.largest_magnitude == 3.0


def test_nothing_is_nothing() -> None:
    assert rounded([]) == ([], Tally())


@given(st.lists(st.integers(0, 65535), max_size=200), st.integers(0, 200))
def test_blocks_add_up_to_the_whole(codes: list[int], cut: int) -> None:
    whole, tally = rounded(codes)
    parts = [rounded(codes[:cut]), rounded(codes[cut:])]
    assert parts[0][0] + parts[1][0] == whole
    assert parts[0][1] + parts[1][1] == tally


@pytest.mark.parametrize("codes", [weights(5000), EVERY], ids=["weights", "every"])
def test_f32_is_exact(codes: list[int]) -> None:
    out = np.empty(len(codes), np.uint32)
    widen(np.array(codes, np.uint16), out)
    assert out.tolist() == [code << 16 for code in codes]
