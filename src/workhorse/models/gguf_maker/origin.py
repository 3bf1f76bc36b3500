"""Which checkpoint a converted one is compared with, and the type that holds its values exactly."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from workhorse.errors import AppError
from workhorse.models.convert.job import REPORT
from workhorse.models.stored import read_stored
from workhorse.records import Dtype

ExactType = Literal["bf16", "f16", "f32"]
_EXACT: dict[Dtype, ExactType] = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}
_REPORT_BYTES_MAX = 64 * 1024**2  # of 100,000 tensors some 40 MB


class _Report(msgspec.Struct):
    source: str


@dataclass(frozen=True, slots=True)
class Origin:
    """A checkpoint as it was published, and the GGUF type that keeps its values."""

    folder: Path
    type: ExactType


def origin_of(folder: Path) -> Origin:
    """The checkpoint that `folder` was converted from when it is still here, else `folder`."""
    with suppress(OSError, msgspec.MsgspecError, ValueError, AppError):
        with (folder / REPORT).open("rb") as file:
            raw = file.read(_REPORT_BYTES_MAX)
        source = Path(msgspec.json.decode(raw, type=_Report).source)
        if source.is_absolute() and (source / "config.json").is_file():
            return Origin(source, exact_type(source))
    return Origin(folder, exact_type(folder))


def exact_type(folder: Path) -> ExactType:
    """The type of most of its weights; BF16 where its own are packed, or PyTorch files."""
    with suppress(AppError):
        stored = read_stored(folder)
        if stored.method is None and stored.dtype is not None:
            return _EXACT[stored.dtype]
    return "bf16"
