"""Whether a file's GPU code runs on a card.

CUDA C++ programming guide, "binary compatibility" and "PTX compatibility" (2026-11): machine code
(SASS) for X.y runs on X.z with z >= y; PTX for X.y is compiled by the driver for anything from X.y
on; names that end in `a` are for that one chip, names in `f` for its major number.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from workhorse.knowledge.gpus import Capability

_NAME = re.compile(r"(?:sm|compute)_(\d{1,3})(\d)([af]?)", re.ASCII)


@dataclass(frozen=True, slots=True)
class GpuCode:
    """What a card would run: `which` is the name of the code; None when there is none."""

    kind: Literal["exact", "same major", "ptx", "none"]
    which: str | None = None


def code_for(
    capability: Capability, sass: tuple[str, ...] | None, ptx: tuple[str, ...] | None
) -> GpuCode | None:
    """The code that a card of `capability` would run; None when that cannot be told."""
    runnable = [
        (built_for, name)
        for name, built_for, suffix in _read(sass or ())
        if built_for[0] == capability[0]
        and (built_for[1] <= capability[1] if suffix != "a" else built_for == capability)
    ]
    if runnable:
        built_for, name = max(runnable)
        return GpuCode("exact" if built_for == capability else "same major", name)
    if sass is None or ptx is None:
        return None
    compilable = [
        (built_for, name)
        for name, built_for, suffix in _read(ptx)
        if (suffix == "" and built_for <= capability)
        or (suffix == "f" and built_for[0] == capability[0] and built_for <= capability)
        or built_for == capability
    ]
    return GpuCode("ptx", max(compilable)[1]) if compilable else GpuCode("none")


def _read(names: Iterable[str]) -> Iterable[tuple[str, Capability, str]]:
    for name in names:
        if found := _NAME.fullmatch(name):
            yield name, (int(found[1]), int(found[2])), found[3]
