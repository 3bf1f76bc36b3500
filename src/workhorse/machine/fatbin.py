"""Which GPU code a file holds, read from the file itself; no CUDA tool is needed.

CUDA programs keep their GPU code in "fat binaries": containers that begin with a magic number
and hold one entry for each architecture, either machine code (SASS, runs on that generation
alone) or PTX (any newer card can compile it). They lie in sections of the program or library.
A single compiled kernel is an ELF file of its own, a "cubin".

NVIDIA does not document the layout. The offsets and bits below were found by making files with
ptxas and fatbinary of CUDA 12.9 and 13.0 and comparing with cuobjdump 13.5 (2026-11).

The file is read piece by piece, never mapped: a library of 2 GB costs a few MB of memory, and a
file that shrinks while it is read gives an error instead of a SIGBUS.
"""

import os
import re
import stat
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

_SECTIONS = (b".nv_fatbin", b"__nv_relfatbin")

_ELF_64_LITTLE = b"\x7fELF\x02\x01"
_ELF_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
_MACHINE_CUDA = 190  # EM_CUDA, elf.h
_NOTHING_IN_FILE = 8  # SHT_NOBITS, elf.h

_MAGIC = struct.pack("<I", 0xBA55ED50)
# Magic, version, size of this header, size of the entries.
_CONTAINER = struct.Struct("<4sHHQ")
# Kind, version, size of this header, size of the code; at 28 the architecture, at 40 the flags.
_ENTRY = struct.Struct("<HHIQ12xI8xQ")
_KIND_PTX, _KIND_SASS = 1, 2
# Code for one architecture alone (sm_90a), for its family (sm_100f). There are none below sm_90.
_FLAG_EXACT, _FLAG_FAMILY = 0x100000, 0x200000
_SUFFIX_FROM = 90
_ARCHITECTURES = range(10, 1000)

# Past these a file is no library but an attack. torch 2.x has some ten thousand entries.
_ENTRIES_MAX = 500_000
_TABLE_BYTES_MAX = 8 * 1024**2
_CHUNK_BYTES = 64 * 1024  # stays in the cache while it is searched

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class GpuCode:
    """Architectures of the machine code (`sm_70` …) and the PTX (`compute_70` …), ascending."""

    sass: tuple[str, ...] = ()
    ptx: tuple[str, ...] = ()


def read_gpu_code(path: Path) -> GpuCode | None:
    """The GPU code in a library, a program, a fat binary or a cubin.

    A whole ELF file without any gives an empty GpuCode. None: the file cannot be read, is of
    another kind, or is damaged, for then something could be missing from the answer.
    """
    return _asked(path, _gpu_code)


def merged(codes: list[GpuCode]) -> GpuCode:
    """All architectures of several files together."""
    return GpuCode(
        _ordered({name for code in codes for name in code.sass}),
        _ordered({name for code in codes for name in code.ptx}),
    )


def names_library(path: Path, start: str) -> bool | None:
    """Whether a program names a shared library that begins with `start`; None: unknown."""
    return _asked(path, lambda file: b"\0" + start.encode() in _dynamic_names(file))


class _UnreadableError(Exception):
    """The file is not what it says: cut short, broken, or of another kind."""


class _File:
    def __init__(self, handle: int) -> None:
        self._handle = handle
        self.n_bytes = os.fstat(handle).st_size

    def read(self, offset: int, n_bytes: int) -> bytes:
        """Exactly `n_bytes`, or _UnreadableError."""
        if not 0 <= offset <= self.n_bytes - n_bytes:
            raise _UnreadableError
        part = os.pread(self._handle, n_bytes, offset)
        if len(part) != n_bytes:
            raise _UnreadableError
        return part


def _asked(path: Path, question: Callable[[_File], Answer]) -> Answer | None:
    try:
        # O_NONBLOCK: a pipe would hold us for ever.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        return question(_File(handle)) if stat.S_ISREG(os.fstat(handle).st_mode) else None
    except (OSError, _UnreadableError):
        return None
    finally:
        os.close(handle)


def _gpu_code(file: _File) -> GpuCode:
    if file.n_bytes >= _CONTAINER.size and file.read(0, len(_MAGIC)) == _MAGIC:
        return _named(_entries(file, [(0, file.n_bytes)]))
    header = _elf_header(file)
    if header.machine == _MACHINE_CUDA:
        return GpuCode(sass=(_cubin_architecture(file, header),))
    places = [place for name in _SECTIONS for place in _places(file, header, name)]
    return _named(_entries(file, places))


@dataclass(frozen=True, slots=True)
class _ElfHeader:
    machine: int
    flags: int
    abi: int
    sections_at: int
    sections: int
    names_index: int


def _elf_header(file: _File) -> _ElfHeader:
    words = _ELF_HEADER.unpack(file.read(0, _ELF_HEADER.size))
    ident: bytes = words[0]
    # Every CUDA host is 64-bit and little-endian: x86_64, aarch64, ppc64le.
    if not ident.startswith(_ELF_64_LITTLE):
        raise _UnreadableError
    machine, sections_at, flags = words[2], words[6], words[7]
    section_bytes, sections, names_index = words[11:]
    # Without a section table (stripped of it, or more sections than fit) nothing can be said.
    if not sections or section_bytes != _SECTION_HEADER.size:
        raise _UnreadableError
    return _ElfHeader(machine, flags, ident[8], sections_at, sections, names_index)


def _places(file: _File, header: _ElfHeader, wanted: bytes) -> list[tuple[int, int]]:
    """Offset and size of every section of that name."""
    table = file.read(header.sections_at, header.sections * _SECTION_HEADER.size)
    rows = list(_SECTION_HEADER.iter_unpack(table))
    if header.names_index >= len(rows):
        raise _UnreadableError
    names_at, names_bytes = rows[header.names_index][4:6]
    names = file.read(names_at, min(names_bytes, _TABLE_BYTES_MAX))
    word = wanted + b"\0"
    return [
        (row[4], row[5])
        for row in rows
        if row[1] != _NOTHING_IN_FILE and names[row[0] : row[0] + len(word)] == word
    ]


def _dynamic_names(file: _File) -> bytes:
    places = _places(file, _elf_header(file), b".dynstr")
    return b"".join(file.read(at, min(size, _TABLE_BYTES_MAX)) for at, size in places[:1])


def _cubin_architecture(file: _File, header: _ElfHeader) -> str:
    """`sm_70` of a compiled kernel: the ELF flags have it, where depends on the ABI version."""
    newer = header.abi >= 8
    architecture = header.flags >> 8 & 0xFF if newer else header.flags & 0xFF
    if architecture not in _ARCHITECTURES:
        raise _UnreadableError
    if header.flags & (0x8 if newer else 0x800) and architecture >= _SUFFIX_FROM:
        return f"sm_{architecture}a"
    # ptxas 13.0 leaves that bit out; what it was told stands in its note.
    for at, size in _places(file, header, b".note.nv.tkinfo")[:1]:
        note = file.read(at, min(size, _CHUNK_BYTES))
        if told := re.search(rb"\bsm_%d([af])\b" % architecture, note):
            return f"sm_{architecture}{told[1].decode()}"
    return f"sm_{architecture}"


def _entries(file: _File, places: list[tuple[int, int]]) -> set[tuple[int, int, int]]:
    """Kind, architecture and flags of all entries of all containers."""
    found: set[tuple[int, int, int]] = set()
    seen = done_at = 0
    for begin, size in sorted(places):
        end = begin + size
        if end > file.n_bytes:
            raise _UnreadableError
        # Sections that overlap would have us read the same bytes for ever.
        at = _next_container(file, max(begin, done_at), end)
        while at is not None:
            entry_at, container_end = _container(file, at, end)
            while entry_at < container_end:
                seen += 1
                kind, _, header_bytes, code_bytes, architecture, flags = _ENTRY.unpack(
                    file.read(entry_at, _ENTRY.size)
                )
                if header_bytes < _ENTRY.size or seen > _ENTRIES_MAX:
                    raise _UnreadableError
                found.add((kind, architecture, flags & (_FLAG_EXACT | _FLAG_FAMILY)))
                entry_at += header_bytes + code_bytes
            if entry_at != container_end or len(found) > len(_ARCHITECTURES):
                raise _UnreadableError
            at = _next_container(file, container_end, end)
        done_at = max(done_at, end)
    return found


def _container(file: _File, at: int, end: int) -> tuple[int, int]:
    """Where a container's entries begin and end."""
    _, _, header_bytes, entries_bytes = _CONTAINER.unpack(file.read(at, _CONTAINER.size))
    entries_end = at + header_bytes + entries_bytes
    if header_bytes < _CONTAINER.size or entries_end > end:
        raise _UnreadableError
    return at + header_bytes, entries_end


def _next_container(file: _File, begin: int, end: int) -> int | None:
    """The next magic number: containers are padded, and linkers put sections together."""
    while begin < end:
        part = file.read(begin, min(_CHUNK_BYTES, end - begin))
        at = part.find(_MAGIC)
        if at >= 0:
            return begin + at
        if len(part) <= len(_MAGIC):
            return None
        begin += len(part) - len(_MAGIC) + 1  # a magic number may lie across two reads
    return None


def _named(entries: set[tuple[int, int, int]]) -> GpuCode:
    names: dict[int, set[str]] = {_KIND_SASS: set(), _KIND_PTX: set()}
    for kind, architecture, flags in entries:
        if kind not in names:
            continue  # code for the linker (LTO), which no card runs
        if architecture not in _ARCHITECTURES:
            raise _UnreadableError
        suffix = "a" if flags & _FLAG_EXACT else "f" if flags & _FLAG_FAMILY else ""
        if architecture < _SUFFIX_FROM:
            suffix = ""
        start = "sm_" if kind == _KIND_SASS else "compute_"
        names[kind].add(f"{start}{architecture}{suffix}")
    return GpuCode(_ordered(names[_KIND_SASS]), _ordered(names[_KIND_PTX]))


def _ordered(names: set[str]) -> tuple[str, ...]:
    """`sm_70` before `sm_100`, `sm_90` before `sm_90a`."""

    def place(name: str) -> tuple[int, str]:
        number = "".join(c for c in name if c.isdigit())
        return int(number), name

    return tuple(sorted(names, key=place))
