"""Programs, libraries and fat binaries put together by hand."""

import struct


def elf(sections: dict[bytes, bytes], *, machine: int = 62, flags: int = 0) -> bytes:
    """A 64-bit ELF file with these sections."""
    names, bodies, rows = b"\0", b"", [struct.pack("<IIQQQQIIQQ", *[0] * 10)]
    for name, body in (*sections.items(), (b".shstrtab", None)):
        at = len(names)
        names += name + b"\0"
        body = names if body is None else body
        rows.append(
            struct.pack("<IIQQQQIIQQ", at, 1, 0, 0, 64 + len(bodies), len(body), 0, 0, 8, 0)
        )
        bodies += body + bytes(-len(body) % 8)
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH",
        *(ident, 3, machine, 1, 0, 0, 64 + len(bodies), flags),
        *(64, 0, 0, 64, len(rows), len(rows) - 1),
    )
    return header + bodies + b"".join(rows)


def container(*entries: tuple[int, int, int]) -> bytes:
    """A fat binary with an entry of 32 bytes for each kind, architecture and flags."""
    body = b"".join(
        struct.pack("<HHIQ12xI8xQ16x", kind, 0x101, 64, 32, architecture, flags) + bytes(32)
        for kind, architecture, flags in entries
    )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body
