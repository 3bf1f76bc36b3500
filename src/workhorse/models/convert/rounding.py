"""BF16 to FP16, rounded to nearest even, at the speed of memory; and what the rounding did.

BF16 has 8 exponent bits and 7 of fraction, FP16 5 and 10 (IEEE 754-2019). Between 2⁻¹⁴ and 65280
every BF16 number is an FP16 number: the same fraction, another bias, so integers are enough. All
else (zeros, small, too large, infinite, NaN) is rare in weights and looked up in a table.
"""

from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.uint16]

MAGNITUDE: Final = 0x7FFF
SIGN: Final = 0x8000
NORMAL: Final = 0x3880  # BF16 of 2⁻¹⁴, the smallest normal FP16 number
NORMALS: Final = 0x0F00  # how many magnitudes from there on are FP16 numbers; the last is 65280
TO_ZERO: Final = 0x3300  # BF16 of 2⁻²⁵: half of the smallest FP16 number, a tie, to even
TOO_LARGE: Final = NORMAL + NORMALS  # BF16 of 65536
INFINITE: Final = 0x7F80
LARGEST_FP16: Final = 0x7BFF  # 65504
QUIET_NAN: Final = 0x7E00
# (code << 3) + this, in 16 bits: the fraction moves up, the exponent's bias falls from 127 to 15.
_REBIAS: Final = 0x4000


@dataclass(frozen=True, slots=True)
class Tally:
    """What rounding did to some values; counts, and `largest_code` the BF16 of the largest one.

    `relative_error` is the worst of the values that became neither zero nor infinite.
    """

    values: int = 0
    largest_code: int = 0
    overflowed: int = 0
    became_zero: int = 0
    subnormal: int = 0
    nan: int = 0
    infinite: int = 0
    relative_error: float = 0.0

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            self.values + other.values,
            max(self.largest_code, other.largest_code),
            self.overflowed + other.overflowed,
            self.became_zero + other.became_zero,
            self.subnormal + other.subnormal,
            self.nan + other.nan,
            self.infinite + other.infinite,
            max(self.relative_error, other.relative_error),
        )

    @property
    def largest_magnitude(self) -> float:
        """The largest finite value without its sign."""
        return float(_as_float(np.array([self.largest_code], np.uint16))[0])


def _as_float(codes: Codes) -> NDArray[np.float32]:
    return (codes.astype(np.uint32) << np.uint32(16)).view(np.float32)


@cache
def fp16_table(*, clamp: bool = False) -> Codes:
    """The FP16 code of each of the 65,536 BF16 codes; with `clamp` 65504 for what is too large.

    A NaN stays one, quiet, with its sign and the top of its payload, as processors convert it.
    """
    codes = np.arange(1 << 16, dtype=np.uint16)
    magnitude, sign = codes & MAGNITUDE, codes & SIGN
    with np.errstate(over="ignore", invalid="ignore"):
        table: Codes = _as_float(codes).astype(np.float16).view(np.uint16)
    nan = magnitude > INFINITE
    table[nan] = sign[nan] | QUIET_NAN | ((magnitude[nan] & 0x7F) << 3)
    if clamp:
        large = (magnitude >= TOO_LARGE) & (magnitude < INFINITE)
        table[large] = sign[large] | LARGEST_FP16
    table.flags.writeable = False
    return table


@cache
def _relative_errors() -> NDArray[np.float64]:
    """By magnitude; 0 where the result is zero, infinite or no number."""
    first, last = TO_ZERO + 1, TOO_LARGE
    exact = _as_float(np.arange(first, last, dtype=np.uint16)).astype(np.float64)
    rounded = fp16_table()[first:last].view(np.float16).astype(np.float64)
    errors = np.zeros(SIGN)
    errors[first:last] = np.abs(rounded - exact) / exact
    return errors


class Rounder:
    """Rounds blocks of at most `values_max` values; its buffers serve one thread."""

    def __init__(self, values_max: int, *, clamp: bool) -> None:
        self._table = fp16_table(clamp=clamp)
        self._scratch = np.empty(values_max, np.uint16)
        self._rare = np.empty(values_max, np.bool_)

    def round(self, codes: Codes, out: Codes) -> Tally:
        """Write the FP16 codes of the BF16 `codes` to `out`, as long; says what that did."""
        scratch, rare = self._scratch[: codes.size], self._rare[: codes.size]
        np.bitwise_and(codes, MAGNITUDE, out=scratch)
        largest = int(scratch.max(initial=0))
        # One comparison finds what is below and what is above: below wraps round.
        np.subtract(scratch, NORMAL, out=scratch)
        np.greater_equal(scratch, NORMALS, out=rare)
        places = np.flatnonzero(rare)
        np.left_shift(codes, 3, out=out)
        np.add(out, _REBIAS, out=out)
        np.bitwise_and(codes, SIGN, out=scratch)
        np.bitwise_or(out, scratch, out=out)
        if not places.size:
            return Tally(values=codes.size, largest_code=largest)
        special = codes[places]
        out[places] = self._table[special]
        if largest >= INFINITE:
            np.bitwise_and(codes, MAGNITUDE, out=scratch)
            largest = int(scratch[scratch < INFINITE].max(initial=0))
        return _tally(codes.size, largest, special & np.uint16(MAGNITUDE))


def _tally(values: int, largest: int, magnitudes: Codes) -> Tally:
    def count(first: int, last: int) -> int:
        return int(np.count_nonzero((magnitudes >= first) & (magnitudes < last)))

    return Tally(
        values=values,
        largest_code=largest,
        overflowed=count(TOO_LARGE, INFINITE),
        became_zero=count(1, TO_ZERO + 1),
        subnormal=count(TO_ZERO + 1, NORMAL),
        nan=count(INFINITE + 1, SIGN),
        infinite=count(INFINITE, INFINITE + 1),
        relative_error=float(_relative_errors()[magnitudes].max()),
    )


def widen(codes: Codes, out: NDArray[np.uint32]) -> None:
    """Write the F32 codes of the BF16 `codes` to `out`: exact, for each of them."""
    np.left_shift(codes, 16, out=out, dtype=np.uint32)
