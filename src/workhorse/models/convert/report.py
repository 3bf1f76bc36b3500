"""What a conversion found and did: a table, a JSON document, a file beside the model."""

from dataclasses import dataclass
from typing import Literal

from workhorse.models.convert.rounding import Tally
from workhorse.records import Verdict

OnOverflow = Literal["fail", "keep-f32", "clamp"]


@dataclass(frozen=True, slots=True)
class TensorRange:
    """One BF16 tensor: counts of its values, and what rounding to FP16 does to them.

    `largest_relative_error` is of the values that became neither zero nor infinite; `nan` and
    `infinite` were in the checkpoint before.
    """

    name: str
    stored_as: Literal["F16", "F32"]
    values: int
    largest_magnitude: float
    overflowed: int
    became_zero: int
    subnormal: int
    largest_relative_error: float
    nan: int
    infinite: int

    @property
    def wants_attention(self) -> bool:
        """True for what a reader must not miss."""
        return bool(self.overflowed or self.nan or self.infinite)


def range_of(name: str, stored_as: Literal["F16", "F32"], tally: Tally) -> TensorRange:
    """The range of the tensor that `tally` is of."""
    return TensorRange(
        name=name,
        stored_as=stored_as,
        values=tally.values,
        largest_magnitude=tally.largest_magnitude,
        overflowed=tally.overflowed,
        became_zero=tally.became_zero,
        subnormal=tally.subnormal,
        largest_relative_error=tally.relative_error,
        nan=tally.nan,
        infinite=tally.infinite,
    )


@dataclass(frozen=True, slots=True)
class ShardDone:
    """One finished file, and what it was made from: a later run may take it as it is."""

    file: str
    source_file: str
    source_n_bytes: int
    source_mtime_ns: int
    on_overflow: OnOverflow
    n_bytes: int
    mtime_ns: int
    write_s: float  # until the disk had it
    read_back_s: float
    verified_blocks: int
    copied_tensors: int
    ranges: tuple[TensorRange, ...]

    @property
    def overflows(self) -> tuple[TensorRange, ...]:
        """The tensors with values that FP16 cannot hold."""
        return tuple(found for found in self.ranges if found.overflowed)


@dataclass(frozen=True, slots=True)
class Conversion:
    """A finished conversion; `left_out` are weights of other formats, not carried along."""

    source: str
    target: str
    on_overflow: OnOverflow
    duration_s: float
    n_bytes: int
    resumed_files: int
    shards: tuple[ShardDone, ...]
    carried: tuple[str, ...]
    left_out: tuple[str, ...]
    verdict: Verdict

    @property
    def ranges(self) -> tuple[TensorRange, ...]:
        """Every BF16 tensor, in the order of the files."""
        return tuple(found for shard in self.shards for found in shard.ranges)
