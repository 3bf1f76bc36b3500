"""GPU code read from files: real ones, ones put together by hand, and broken ones."""

import os
import random
import re
import shutil
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from elf_files import container, elf

from workhorse.machine.fatbin import GpuCode, merged, names_library, read_gpu_code
from workhorse.units import MIB

REAL = Path(__file__).parent / "gpu_code"
OLD = GpuCode(("sm_50", "sm_60", "sm_70"), ("compute_70",))
NEW = GpuCode(("sm_90a", "sm_103f", "sm_120"), ("compute_120f",))


def held(tmp_path: Path, content: bytes) -> GpuCode | None:
    (tmp_path / "file").write_bytes(content)
    return read_gpu_code(tmp_path / "file")


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("volta.cubin", GpuCode(("sm_70",))),
        ("hopper_exact.cubin", GpuCode(("sm_90a",))),
        ("old_cards.fatbin", OLD),
        ("new_cards.fatbin", NEW),
    ],
)
def test_real_files(name: str, code: GpuCode) -> None:
    assert read_gpu_code(REAL / name) == code


def cuobjdump() -> str:
    packaged = sorted(Path(sys.prefix).glob("lib/python*/site-packages/nvidia/*/bin/cuobjdump"))
    program = os.environ.get("CUOBJDUMP") or shutil.which("cuobjdump") or (packaged or [None])[0]
    if program is None:
        pytest.skip("no cuobjdump here (pip install nvidia-cuda-cuobjdump, or set CUOBJDUMP)")
    return str(program)


@pytest.mark.parametrize("name", sorted(path.name for path in REAL.glob("*bin")))
def test_cuobjdump_says_the_same(name: str) -> None:
    program = cuobjdump()
    said = subprocess.run(
        [program, REAL / name], capture_output=True, text=True, timeout=300, check=False
    ).stdout
    # A bare cubin is listed under its file's name alone.
    listed = subprocess.run(
        [program, "--list-elf", REAL / name],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    ).stdout
    sass = set(re.findall(r"elf code:\n=*\n?arch = (sm_\w+)", said))
    sass = sass or set(re.findall(r"\.(sm_\w+)\.cubin", listed))
    ptx = {f"compute_{a}" for a in re.findall(r"ptx code:\n=*\n?arch = sm_(\w+)", said)}
    code = read_gpu_code(REAL / name)
    assert code is not None
    assert (set(code.sass), set(code.ptx)) == (sass, ptx)


def test_a_library_holds_what_its_sections_hold(tmp_path: Path) -> None:
    old, new = ((REAL / f"{age}_cards.fatbin").read_bytes() for age in ("old", "new"))
    library = elf(
        {b".text": bytes(99), b".nv_fatbin": old + bytes(24) + old, b"__nv_relfatbin": new}
    )
    assert held(tmp_path, library) == merged([OLD, NEW])


def test_code_outside_of_the_sections_does_not_count(tmp_path: Path) -> None:
    old = (REAL / "old_cards.fatbin").read_bytes()
    assert held(tmp_path, elf({b".rodata": old, b".nv_fatbin_": old})) == GpuCode()


def test_a_program_of_this_machine_holds_none() -> None:
    assert read_gpu_code(Path(os.path.realpath(sys.executable))) == GpuCode()


def test_code_for_the_linker_is_not_code_for_a_card(tmp_path: Path) -> None:
    assert held(tmp_path, container((8, 70, 0), (2, 75, 0))) == GpuCode(("sm_75",))


def test_old_files_use_the_bits_of_the_suffix_for_nothing(tmp_path: Path) -> None:
    assert held(tmp_path, container((2, 70, 0x100011), (1, 90, 0x200011))) == GpuCode(
        ("sm_70",), ("compute_90f",)
    )


@pytest.mark.parametrize(
    ("abi", "flags", "name"),
    [
        (7, 0x3C053C, "sm_60"),
        (7, 0x5A0D5A, "sm_90a"),
        (8, 0x6004B04, "sm_75"),
        (8, 0x600640A, "sm_100a"),
    ],
)
def test_the_architecture_of_a_cubin_is_in_its_flags(
    tmp_path: Path, abi: int, flags: int, name: str
) -> None:
    cubin = bytearray(elf({b".text.k": bytes(8)}, machine=190, flags=flags))
    cubin[8] = abi
    assert held(tmp_path, bytes(cubin)) == GpuCode((name,))


def test_a_file_cut_short_is_unknown_not_empty(tmp_path: Path) -> None:
    old = (REAL / "old_cards.fatbin").read_bytes()
    library = elf({b".nv_fatbin": old})
    cuts = [*range(1, len(old), 97)]
    assert {held(tmp_path, old[:cut]) for cut in cuts} == {None}
    assert {held(tmp_path, library[: cut + 64]) for cut in cuts} == {None}


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\x7fELF", b"PK\x03\x04" * 99, bytes(4096),
        container((2, 0, 0)), container((2, 9999, 0)),
        struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 2**63), struct.pack("<IHHQ", 0xBA55ED50, 1, 0, 0),
        container((2, 70, 0))[:16] + bytes(96), elf({}, machine=190, flags=0),
        elf({})[:60] + bytes(4),
        elf({b".nv_fatbin": container((2, 70, 0))[:40]}),
    ],
)  # fmt: skip
def test_what_is_damaged_or_of_another_kind_is_unknown(tmp_path: Path, content: bytes) -> None:
    assert held(tmp_path, content) is None


def test_what_is_no_file_is_unknown(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "none", tmp_path / "pipe", Path("/dev/zero"), Path("a\0b")):
        assert read_gpu_code(path) is None
        assert names_library(path, "libggml") is None


def test_sections_that_overlap_are_read_once(tmp_path: Path) -> None:
    body = container(*[(2, 70, 0)] * 2000)
    file = bytearray(elf(dict.fromkeys((b"%d" % i for i in range(5000)), b"")))
    rows_at = struct.unpack_from("<Q", file, 40)[0]
    for row in range(1, 5001):
        struct.pack_into("<IIQQQQ", file, rows_at + row * 64, 0, 1, 0, 0, len(file), len(body))
    names_at = struct.unpack_from("<Q", file, rows_at + 5001 * 64 + 24)[0]
    file[names_at : names_at + 11] = b".nv_fatbin\0"
    reads = 0

    def counted(*arguments: int) -> bytes:
        nonlocal reads
        reads += 1
        return read(*arguments)

    read, os.pread = os.pread, counted
    try:
        assert held(tmp_path, bytes(file) + body) == GpuCode(("sm_70",))
    finally:
        os.pread = read
    assert reads < 2100


def test_mutated_files_never_raise(tmp_path: Path) -> None:
    chance = random.Random(190)
    seeds = [path.read_bytes() for path in sorted(REAL.glob("*bin"))]
    seeds += [elf({b".nv_fatbin": seeds[1], b".dynstr": b"\0libggml.so\0"})]
    for _ in range(800):
        content = bytearray(chance.choice(seeds))
        for _ in range(chance.randint(1, 6)):
            at = chance.randrange(0, min(len(content), chance.choice((64, 256, 9999))))
            content[at] = chance.choice((0, 1, 0x7F, 0xFF, chance.randrange(256)))
        code = held(tmp_path, bytes(content))
        assert code is None or all(re.fullmatch(r"sm_\d{2,3}[af]?", name) for name in code.sass)
        names_library(tmp_path / "file", "libggml")


def test_a_library_of_two_gigabytes_costs_little_memory(tmp_path: Path) -> None:
    # As a sparse file: containers of 1 MiB each, then a gap that has to be searched.
    n_containers, gap_bytes, last = 2000, 64 * MIB, container((2, 70, 0))
    first = bytearray(container((2, 60, 0)))
    struct.pack_into("<Q", first, 8, MIB - 16)
    struct.pack_into("<Q", first, 16 + 8, MIB - 16 - 64)
    header = bytearray(elf({b".nv_fatbin": b""}))
    (rows_at,) = struct.unpack_from("<Q", header, 40)
    n_bytes = n_containers * MIB + gap_bytes + len(last)
    struct.pack_into("<QQ", header, rows_at + 64 + 24, MIB, n_bytes)
    with (tmp_path / "file").open("wb") as file:
        file.write(header)
        for number in range(1, n_containers + 1):
            file.seek(number * MIB)
            file.write(first)
        file.seek(MIB + n_containers * MIB + gap_bytes)
        file.write(last)
    tracemalloc.start()
    try:
        assert read_gpu_code(tmp_path / "file") == GpuCode(("sm_60", "sm_70"))
        assert tracemalloc.get_traced_memory()[1] < 8 * MIB
    finally:
        tracemalloc.stop()


def test_the_libraries_a_program_names(tmp_path: Path) -> None:
    (tmp_path / "server").write_bytes(elf({b".dynstr": b"\0libggml-base.so\0libc.so.6\0"}))
    assert names_library(tmp_path / "server", "libggml") is True
    assert names_library(tmp_path / "server", "ggml") is False
    (tmp_path / "static").write_bytes(elf({b".text": b""}))
    assert names_library(tmp_path / "static", "libggml") is False
