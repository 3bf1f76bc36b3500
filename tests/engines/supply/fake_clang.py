"""Stands for `zig`: as `clang` it writes a container with the asked code, as `c++` it joins files.

Environment: FAKE_CLANG_LOG gets a line for each call; FAKE_CLANG_FAILS names a file that does not
compile, FAKE_CLANG_HANGS one that never ends; FAKE_CLANG_DROPS an architecture that is left out.
"""

import os
import re
import struct
import sys
import time
from pathlib import Path


def entry(kind: int, number: int) -> bytes:
    return struct.pack("<HHIQ12xI8xQ", kind, 0x101, 64, 8, number, 0).ljust(64, b"\0") + b"\0" * 8


def container(*numbers: int) -> bytes:
    """A fat binary with machine code and PTX for each architecture."""
    body = b"".join(entry(2, n) + entry(1, n) for n in numbers)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def main(words: list[str]) -> None:
    out = Path(words[words.index("-o") + 1])
    with Path(os.environ["FAKE_CLANG_LOG"]).open("a") as log:
        log.write(f"{words[0]} {out.name}\n")
    if words[0] == "cc":
        out.write_bytes(b"")
    elif words[0] == "c++":
        (listed,) = [word[1:] for word in words if word.startswith("@")]
        parts = [Path(name) for name in Path(listed).read_text().split() if name.endswith(".o")]
        out.write_bytes(b"".join(part.read_bytes() for part in parts))
    else:
        if out.name == os.environ.get("FAKE_CLANG_FAILS"):
            sys.exit("kernel.cu:1:1: error: not today")
        while out.name == os.environ.get("FAKE_CLANG_HANGS"):
            time.sleep(1)
        asked = [re.match(r"--cuda-gpu-arch=sm_(\d+)", word) for word in words]
        numbers = [int(found[1]) for found in asked if found]
        numbers = [n for n in numbers if str(n) != os.environ.get("FAKE_CLANG_DROPS")]
        out.write_bytes(container(*numbers))


if __name__ == "__main__":
    main(sys.argv[1:])
