"""Which C library a program asks for, read from the program itself."""

import os
import re
import struct
from pathlib import Path

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_NEED = struct.Struct("<HHIII")  # Elf64_Verneed: version, count, file, first, next
_NEEDED = struct.Struct("<IHHII")  # Elf64_Vernaux: hash, flags, other, name, next
_VERNEED = 0x6FFFFFFE  # SHT_GNU_verneed, elf.h
_BYTES_MAX = 4 * 1024**2
_ENTRIES_MAX = 10_000


def glibc_needed(path: Path) -> str | None:
    """The newest `GLIBC_x.y` that a 64-bit ELF file asks for, as `x.y`.

    None: it asks for none, or the file cannot be read.
    """
    try:
        names = _version_names(path)
    except (OSError, ValueError, struct.error):
        return None
    found = [
        tuple(map(int, match[1].split(".")))
        for name in names
        if (match := re.fullmatch(r"GLIBC_(\d{1,3}(?:\.\d{1,3}){1,2})", name))
    ]
    return ".".join(map(str, max(found))) if found else None


def _version_names(path: Path) -> list[str]:
    with path.open("rb") as file:

        def read(offset: int, n_bytes: int) -> bytes:
            if n_bytes > _BYTES_MAX:
                raise ValueError("no table is so large")
            part = os.pread(file.fileno(), n_bytes, offset)
            if len(part) != n_bytes:
                raise ValueError("cut short")
            return part

        words = _HEADER.unpack(read(0, _HEADER.size))
        if not words[0].startswith(b"\x7fELF\x02\x01") or words[11] != _SECTION.size:
            return []
        table = read(words[6], words[12] * _SECTION.size)
        sections = list(_SECTION.iter_unpack(table))
        for section in sections:
            if section[1] == _VERNEED and section[6] < len(sections):
                strings = sections[section[6]]
                return _names_in(read(section[4], section[5]), read(strings[4], strings[5]))
    return []


def _names_in(needs: bytes, strings: bytes) -> list[str]:
    names: list[str] = []
    at = 0
    for _ in range(_ENTRIES_MAX):  # of a file that goes round in circles
        _, count, _, first, following = _NEED.unpack_from(needs, at)
        entry = at + first
        for _ in range(count):
            *_, name, after = _NEEDED.unpack_from(needs, entry)
            end = strings.find(b"\0", name)
            names.append(strings[name:end].decode("ascii", "replace"))
            if not after or len(names) >= _ENTRIES_MAX:
                break
            entry += after
        if not following:
            break
        at += following
    return names
