"""What is known of CPUs, and how a machine's CPU is found in it."""

import re

import pytest
from captured_machines import packed
from hypothesis import given
from hypothesis import strategies as st

from workhorse.knowledge.cpus import CpuLine, MemoryRate, cpu_line, memory_rate_mt_s
from workhorse.knowledge.rows import rows
from workhorse.machine.cpu import online_cpus, read_cpu
from workhorse.machine.files import PackedFiles
from workhorse.records import Cpu

XEON = "Intel(R) Xeon(R)"
KNOWN = [
    ("GenuineIntel", 6, 44, f"{XEON} CPU           X5650  @ 2.67GHz", "Westmere-EP", 3, 1333),
    ("GenuineIntel", 6, 45, f"{XEON} CPU E5-2670 0 @ 2.60GHz", "Sandy Bridge-EP", 4, 1600),
    ("GenuineIntel", 6, 45, f"{XEON} CPU E5-2630L 0 @ 2.00GHz", "Sandy Bridge-EP", 4, 1333),
    ("GenuineIntel", 6, 45, f"{XEON} CPU E5-2420 0 @ 1.90GHz", "Sandy Bridge-EN", 3, 1333),
    ("GenuineIntel", 6, 45, "Intel(R) Core(TM) i7-3930K CPU @ 3.20GHz", "Sandy Bridge-E", 4, 1600),
    ("GenuineIntel", 6, 62, f"{XEON} CPU E5-2680 v2 @ 2.80GHz", "Ivy Bridge-EP", 4, 1866),
    ("GenuineIntel", 6, 62, f"{XEON} CPU E5-2620 v2 @ 2.10GHz", "Ivy Bridge-EP", 4, 1600),
    ("GenuineIntel", 6, 62, f"{XEON} CPU E5-2407 v2 @ 2.40GHz", "Ivy Bridge-EN", 3, 1333),
    ("GenuineIntel", 6, 62, f"{XEON} CPU E7-4890 v2 @ 2.80GHz", "Ivy Bridge-EX", 8, 1333),
    ("GenuineIntel", 6, 63, f"{XEON} CPU E5-2640 v3 @ 2.60GHz", "Haswell-EP", 4, 1866),
    ("GenuineIntel", 6, 63, f"{XEON} CPU E5-2678 v3 @ 2.50GHz", "Haswell-EP", 4, 2133),
    ("GenuineIntel", 6, 79, f"{XEON} CPU E5-2690 v4 @ 2.60GHz", "Broadwell-EP", 4, 2400),
    ("GenuineIntel", 6, 79, f"{XEON} CPU E5-2687W v4 @ 3.00GHz", "Broadwell-EP", 4, 2400),
    ("GenuineIntel", 6, 79, f"{XEON} CPU E5-2630 v4 @ 2.20GHz", "Broadwell-EP", 4, 2133),
    ("GenuineIntel", 6, 79, f"{XEON} CPU E5-2609 v4 @ 1.70GHz", "Broadwell-EP", 4, 1866),
    ("GenuineIntel", 6, 79, f"{XEON} CPU E7-8890 v4 @ 2.20GHz", "Broadwell-EX", 8, 1600),
    ("GenuineIntel", 6, 85, f"{XEON} Silver 4110 CPU @ 2.10GHz", "Skylake-SP", 6, 2400),
    ("GenuineIntel", 6, 85, f"{XEON} Gold 5122 CPU @ 3.60GHz", "Skylake-SP", 6, 2666),
    ("GenuineIntel", 6, 85, f"{XEON} Platinum 8259CL CPU @ 2.50GHz", "Cascade Lake-SP", 6, 2933),
    ("GenuineIntel", 6, 85, f"{XEON} W-2123 CPU @ 3.60GHz", "Skylake-W", 4, 2666),
    ("GenuineIntel", 6, 85, f"{XEON} Platinum 8380H CPU @ 2.90GHz", "Cooper Lake-SP", 6, 3200),
    ("GenuineIntel", 6, 106, f"{XEON} Silver 4310 CPU @ 2.10GHz", "Ice Lake-SP", 8, 2666),
    ("GenuineIntel", 6, 143, f"{XEON} Platinum 8480+", "Sapphire Rapids-SP", 8, 4800),
    ("GenuineIntel", 6, 207, "INTEL(R) XEON(R) PLATINUM 8558", "Emerald Rapids-SP", 8, 5200),
    ("GenuineIntel", 6, 60, f"{XEON} CPU E3-1231 v3 @ 3.40GHz", "Haswell", 2, 1600),
    ("GenuineIntel", 6, 158, "Intel(R) Core(TM) i7-8700K CPU @ 3.70GHz", "Coffee Lake", 2, 2666),
    ("AuthenticAMD", 23, 1, "AMD EPYC 7601 32-Core Processor", "Naples", 8, 2666),
    ("AuthenticAMD", 23, 1, "AMD Ryzen Threadripper 1950X 16-Core", "Whitehaven", 4, 2666),
    ("AuthenticAMD", 23, 49, "AMD EPYC 7H12 64-Core Processor", "Rome", 8, 3200),
    ("AuthenticAMD", 25, 1, "AMD EPYC 7763 64-Core Processor", "Milan", 8, 3200),
    ("AuthenticAMD", 25, 17, "AMD EPYC 9654 96-Core Processor", "Genoa", 12, 4800),
    ("AuthenticAMD", 25, 33, "AMD Ryzen 9 5950X 16-Core Processor", "Vermeer", 2, 3200),
]


@pytest.mark.parametrize(("vendor", "family", "model", "name", "code", "channels", "rate"), KNOWN)
def test_cpus_are_found_with_channels_and_rate(
    vendor: str, family: int, model: int, name: str, code: str, channels: int, rate: int
) -> None:
    line = cpu_line(vendor, family, model, name)
    assert line is not None
    found = (line.code_name, line.channels, memory_rate_mt_s(line, name))
    assert found == (code, channels, rate)


@pytest.mark.parametrize(("vendor", "family", "model", "name", "code", "channels", "rate"), KNOWN)
def test_one_line_alone_fits_a_cpu(
    vendor: str, family: int, model: int, name: str, code: str, channels: int, rate: int
) -> None:
    fitting = [
        line.code_name
        for line in rows("cpus", "cpu", CpuLine)
        if (line.vendor, line.family) == (vendor, family)
        and model in line.models
        and re.search(line.pattern, name, re.IGNORECASE)
    ]
    assert fitting == [code]


@pytest.mark.parametrize(
    ("vendor", "family", "model", "name"),
    [
        ("GenuineIntel", 6, 79, "Genuine Intel(R) CPU @ 2.60GHz"),  # an engineering sample
        ("GenuineIntel", 6, 79, f"{XEON} Processor"),  # a name that a hypervisor gave
        ("GenuineIntel", 6, 45, f"{XEON} CPU E5-2670 v2 @ 2.50GHz"),  # name against model
        ("AuthenticAMD", 6, 79, f"{XEON} CPU E5-2690 v4 @ 2.60GHz"),
        ("GenuineIntel", 6, 250, f"{XEON} CPU E5-2690 v4 @ 2.60GHz"),
        ("GenuineIntel", None, None, f"{XEON} CPU E5-2690 v4 @ 2.60GHz"),
        ("GenuineIntel", 6, 79, None),
        (None, None, None, None),
    ],
)
def test_an_unknown_cpu_is_unknown(
    vendor: str | None, family: int | None, model: int | None, name: str | None
) -> None:
    assert cpu_line(vendor, family, model, name) is None


def test_a_cpu_whose_rate_nobody_noted_has_none() -> None:
    name = f"{XEON} CPU E5-4648 v3 @ 1.70GHz"
    line = cpu_line("GenuineIntel", 6, 63, name)
    assert line is not None and line.channels == 4 and memory_rate_mt_s(line, name) is None


def test_every_row_keeps_to_what_memory_can_be() -> None:
    for line in rows("cpus", "cpu", CpuLine):
        assert line.channels is None or 2 <= line.channels <= 12, line.name
        assert line.memory and line.isa and line.source, line.name
        re.compile(line.pattern)
    rates = [row.rate_mt_s for row in rows("cpus", "memory_rate", MemoryRate)]
    assert rates and all(800 <= rate <= 8800 for rate in rates)
    for row in rows("cpus", "memory_rate", MemoryRate):
        re.compile(row.pattern)


def read(files: dict[str, object]) -> Cpu:
    packed_files = PackedFiles(files)
    return read_cpu(packed_files, online_cpus(packed_files), (), "x86_64")[0]


def test_a_captured_machine_knows_its_channels() -> None:
    cpu = read(packed("machine_b"))
    assert (cpu.family, cpu.model) == (6, 79)
    assert (cpu.memory_channels, cpu.memory_rate_max_mt_s) == (4, 2400)
    old = read(packed("avx_only"))
    assert (old.model, old.memory_channels, old.memory_rate_max_mt_s) == (62, 4, 1866)


def test_a_virtual_machine_does_not_see_the_board() -> None:
    files = packed("machine_b")
    files["proc/cpuinfo"] = files["proc/cpuinfo"].replace("flags\t\t: ", "flags\t\t: hypervisor ")
    cpu = read(files)
    assert (cpu.family, cpu.model) == (6, 79)
    assert cpu.memory_channels is None and cpu.memory_rate_max_mt_s is None


@given(st.text(max_size=300), st.integers(), st.integers(), st.sampled_from(["GenuineIntel", ""]))
def test_any_name_is_known_or_not(name: str, family: int, model: int, vendor: str) -> None:
    line = cpu_line(vendor, family, model, name)
    assert line is None or re.search(line.pattern, name, re.IGNORECASE)


@pytest.mark.parametrize("value", ["-1", "9" * 30, "x", "", "4096"])
def test_family_and_model_that_make_no_sense_are_unknown(value: str) -> None:
    text = f"processor\t: 0\ncpu family\t: {value}\nmodel\t: {value}\nmodel name\t: X\n"
    cpu = read({"proc/cpuinfo": text})
    assert cpu.family is None and cpu.model is None and cpu.memory_channels is None
