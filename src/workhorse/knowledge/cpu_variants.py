"""Builds of llama.cpp by generation of CPU, and which one a CPU can run."""

import re
from collections.abc import Collection
from dataclasses import dataclass

from workhorse.knowledge.rows import rows

NATIVE = "native"  # for this CPU and no other; its flags are what the compiler was told


@dataclass(frozen=True, slots=True)
class CpuVariant:
    """One generation of CPUs; see cpu_variants.toml."""

    name: str
    upstream: str
    architecture: str  # as `uname -m` says
    cpus: str
    options: tuple[str, ...]  # of ggml, each switched on
    needs: tuple[str, ...]  # CPU flags
    source: str
    date: str


@dataclass(frozen=True, slots=True)
class Macro:
    """A compiler's macro for an instruction set and the CPU flag it means."""

    name: str
    flag: str
    source: str
    date: str


def variants(architecture: str = "x86_64") -> tuple[CpuVariant, ...]:
    """The variants of a processor architecture, the oldest generation first."""
    found = rows("cpu_variants", "variant", CpuVariant)
    return tuple(variant for variant in found if variant.architecture == architecture)


def choose_variant(flags: Collection[str], architecture: str = "x86_64") -> CpuVariant | None:
    """The newest generation that a CPU with these flags runs; of an unknown CPU the oldest.

    None: no variant is known for the architecture.
    """
    best = None
    for variant in variants(architecture):
        if set(variant.needs) <= set(flags):
            best = variant
    return best


def flags_of_macros(said: str) -> tuple[str, ...]:
    """The CPU flags that a compiler uses, from what `-E -dM` prints."""
    defined = set(re.findall(r"(?m)^#define (__\w+__) 1$", said))
    found = rows("cpu_variants", "macro", Macro)
    return tuple(sorted(row.flag for row in found if row.name in defined))
