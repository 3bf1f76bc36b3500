"""Random blocks that are valid ones of any tensor type: what a twin is filled with.

The bits are random but for the scales (`knowledge/quants.toml`), which are finite, not denormal
and give the weights the deviation asked for. Computing with such weights takes the time that it
takes with trained ones; NaN, infinity and denormals may not.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from math import exp, isqrt
from random import Random

from workhorse.knowledge.quants import Quant, Scale, quant
from workhorse.units import KIB

# A pool is repeated over a tensor, each time cut at another place. Big enough that a row of a
# router meets no copy of itself among its neighbours, small enough to be made in milliseconds.
POOL_BYTES = 512 * KIB

# Scales are as alike as those of a trained model (135M Q4_1: natural logarithm within 0.25, offsets
# within 18 % of a fixed share of the scale; measured 2026-11-30). llama.cpp looks halves up in a
# table of 256 KiB: scales all over it cost that model 17 % of its decode, scales too much alike
# gave 23 % too much.
SCALE_DEVIATION = 0.25
OFFSET_SPREAD = (0.7, 1.3)
# The smallest normal half is 2^-14.
HALF_SCALE_MIN = 2.0**-13
# A sum of some thousand products has to stay below 65504.
HALF_SCALE_MAX = 2.0**6
E8M0_BIAS = 128  # a value of the grid counts twice, so 2^(e - 128)
UE4M3_BIAS = 7
UE4M3_EXPONENTS = (1, 14)  # 0 is denormal, 15 holds the NaN


@lru_cache(maxsize=16)
def pool(type_name: str, deviation: float, seed: int = 1) -> bytes:
    """Random valid blocks of a type whose weights have about this standard deviation.

    A prime number of blocks, so that rows do not repeat where the pool does. Zeros for types of
    integers: the positions and ids that they hold must exist. The same arguments give the same
    bytes. KeyError for an unknown type.
    """
    kind = quant(type_name)
    count = prime_below(max(POOL_BYTES // max(kind.block_bytes, 8), 3))
    if not kind.scales:
        return bytes(count * kind.block_bytes)
    random = Random(f"{seed} {type_name} {deviation}")  # noqa: S311 noise that can be repeated
    blocks = bytearray(random.randbytes(count * kind.block_bytes))
    for limit in kind.limits:
        table = bytes(byte & limit.keep | limit.set for byte in range(256))
        for at in range(limit.at, limit.at + limit.bytes):
            blocks[at :: kind.block_bytes] = blocks[at :: kind.block_bytes].translate(table)
    scale = deviation / (kind.deviation or 1.0)
    # Of one sign, but where a scale is the weight itself.
    signs = (-1, 1) if kind.block_elements == 1 else (1,)
    drawn = [scale * random.choice(signs) * exp(bounded_gauss(random)) for _ in range(count)]
    for field in kind.scales:
        values = drawn
        if field.times != 1:
            values = [v * field.times * random.uniform(*OFFSET_SPREAD) for v in drawn]
        put_scales(blocks, kind, field, values, scale)
    return bytes(blocks)


def bounded_gauss(random: Random) -> float:
    """A draw from a normal distribution, cut at twice its deviation."""
    most = 2 * SCALE_DEVIATION
    return min(max(random.gauss(0.0, SCALE_DEVIATION), -most), most)


def put_scales(
    blocks: bytearray, kind: Quant, field: Scale, values: Sequence[float], scale: float
) -> None:
    """Write one number into the same field of every block."""
    if field.form == "f16 in nibbles":
        # iq1_m keeps its scale in the upper halves of four 16-bit words, lowest digit first.
        halves = packed("e", values, bounded_half(scale))
        for digit in range(4):
            at = field.at + 2 * digit + 1
            half = halves[digit // 2 :: 2]
            upper = [byte >> 4 if digit % 2 else byte & 15 for byte in half]
            kept = blocks[at :: kind.block_bytes]
            blocks[at :: kind.block_bytes] = bytes(
                (old & 15) | (new << 4) for old, new in zip(kept, upper, strict=True)
            )
        return
    raw = FORMS[field.form](values, scale)
    size = len(raw) // len(values)
    for byte in range(size):
        blocks[field.at + byte :: kind.block_bytes] = raw[byte::size]


def packed(form: str, values: Sequence[float], factor: float = 1.0) -> bytes:
    """Little-endian numbers, each times `factor`."""
    return struct.pack(f"<{len(values)}{form}", *(value * factor for value in values))


def bounded_half(scale: float) -> float:
    """What scales must be multiplied with to be normal halves that no sum overflows."""
    return min(max(scale, HALF_SCALE_MIN), HALF_SCALE_MAX) / scale


def halves(values: Sequence[float], scale: float) -> bytes:
    """IEEE halves within the bounds; those of a factor above one may be larger, never infinite."""
    return packed("e", values, bounded_half(scale))


def brain_floats(values: Sequence[float], _: float) -> bytes:
    """The upper halves of single-precision numbers."""
    singles = packed("f", values)
    both = bytearray(len(values) * 2)
    both[0::2], both[1::2] = singles[2::4], singles[3::4]
    return bytes(both)


def exponents(values: Sequence[float], _: float) -> bytes:
    """Powers of two in one byte, without a sign (MXFP4)."""
    return bytes(min(max(E8M0_BIAS + exponent(value), 64), 192) for value in values)


def small_floats(values: Sequence[float], _: float) -> bytes:
    """Four bits of exponent, three of mantissa, no sign (NVFP4)."""
    least, most = UE4M3_EXPONENTS
    return bytes(min(max(UE4M3_BIAS + exponent(value), least), most) << 3 for value in values)


def exponent(value: float) -> int:
    """The power of two that is next below a number's size."""
    return struct.unpack("<I", struct.pack("<f", abs(value)))[0] // 2**23 - 127  # type: ignore[no-any-return]


FORMS: dict[str, Callable[[Sequence[float], float], bytes]] = {
    "f16": halves,
    "bf16": brain_floats,
    "f32": lambda values, _: packed("f", values),
    "f64": lambda values, _: packed("d", values),
    "e8m0": exponents,
    "ue4m3": small_floats,
}


def fill(type_name: str, deviation: float, n_bytes: int, start_block: int = 0) -> Iterator[bytes]:
    """`n_bytes` of valid blocks in pieces of bounded size, beginning anywhere in the pool."""
    blocks = pool(type_name, deviation)
    at = start_block * quant(type_name).block_bytes % len(blocks)
    left = n_bytes
    while left:
        piece = blocks[at : at + left]
        yield piece
        left -= len(piece)
        at = 0


def prime_below(bound: int) -> int:
    """The largest prime that is not above the bound (at least 2)."""
    for candidate in range(bound, 2, -1):
        if all(candidate % divisor for divisor in range(2, isqrt(candidate) + 1)):
            return candidate
    return 2
