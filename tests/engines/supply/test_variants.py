"""Which build a CPU gets: the best that it runs, never one that it does not."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workhorse.knowledge.cpu_variants import choose_variant, flags_of_macros, variants
from workhorse.machine.probe import probe

CAPTURES = Path(__file__).parents[2] / "captures"
SSE = {"ssse3", "sse4_2", "popcnt"}
HASWELL = SSE | {"avx", "f16c", "fma", "avx2", "bmi2"}
SKYLAKE = HASWELL | {"avx512f", "avx512cd", "avx512vl", "avx512dq", "avx512bw"}


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (set(), "x64"),
        ({"ssse3"}, "x64"),
        (SSE, "sse42"),
        (SSE | {"avx"}, "avx"),
        (SSE | {"avx", "f16c"}, "avx-f16c"),
        # A hypervisor that hides FMA: the part that is there does not help.
        (HASWELL - {"fma"}, "avx-f16c"),
        (HASWELL, "avx2"),
        # Knights Landing has no BW.
        (SKYLAKE - {"avx512bw"}, "avx2"),
        (SKYLAKE, "avx512"),
        (SKYLAKE | {"avx512_vnni", "amx_tile"}, "avx512"),
    ],
)
def test_the_variant_for_a_cpu(flags: set[str], name: str) -> None:
    chosen = choose_variant(flags)
    assert chosen is not None
    assert chosen.name == name


@given(st.sets(st.sampled_from(sorted(SKYLAKE | {"sse2", "amx_tile"}))))
def test_it_never_needs_what_the_cpu_lacks(flags: set[str]) -> None:
    chosen = choose_variant(flags)
    assert chosen is not None
    assert set(chosen.needs) <= flags
    better = [v for v in variants() if len(v.needs) > len(chosen.needs)]
    assert not any(set(variant.needs) <= flags for variant in better)


def test_another_architecture() -> None:
    assert choose_variant((), "riscv64") is None
    chosen = choose_variant(("asimd",), "aarch64")
    assert chosen is not None
    assert chosen.name == "armv8"


@pytest.mark.parametrize(
    ("capture", "name"), [("machine_a", "avx2"), ("machine_b", "avx2"), ("avx_only", "avx")]
)
def test_captured_machines(capture: str, name: str) -> None:
    chosen = choose_variant(probe(CAPTURES / f"{capture}.json").cpu.flags)
    assert chosen is not None
    assert chosen.name.startswith(name)


def test_each_variant_needs_more_than_the_one_before() -> None:
    ladder = variants()
    for older, newer in pairwise(ladder):
        assert set(older.needs) < set(newer.needs)
        assert set(older.options) < set(newer.options)


def test_the_flags_that_a_compiler_says_it_uses() -> None:
    said = "#define __AVX2__ 1\n#define __LZCNT__ 1\n#define __AVX512F__ 0\n#define __SSE2__ 1\n"
    assert flags_of_macros(said) == ("abm", "avx2")
    assert flags_of_macros("") == ()
