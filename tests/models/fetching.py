"""The file that the download tests fetch, and how."""

import hashlib
from pathlib import Path

from workhorse.models.fetch import fetch

CONTENT = bytes(range(256)) * 4096  # 1 MiB
OTHER = CONTENT[::-1]
SHA256 = hashlib.sha256(CONTENT).hexdigest()

# A fetch in a process of its own, which prints the bytes that are there.
PROGRAM = (
    "import sys; from pathlib import Path; from workhorse.models.fetch import fetch\n"
    "fetch(sys.argv[1], Path(sys.argv[2]), sha256=sys.argv[3], stall_s=600,"
    " progress=lambda done, _: print(done, flush=True))"
)


def part_of(target: Path) -> Path:
    """Where the bytes are until the hash is checked."""
    return target.with_name(target.name + ".part")


def get(url: str, target: Path, **options: object) -> list[float]:
    """Fetch with pauses that are only noted; returns them."""
    pauses: list[float] = []
    result = fetch(url, target, sha256=SHA256, pause=pauses.append, **options)  # type: ignore[arg-type]
    assert result == target
    assert target.read_bytes() == CONTENT
    assert list(target.parent.iterdir()) == [target], "nothing else is left behind"
    return pauses
