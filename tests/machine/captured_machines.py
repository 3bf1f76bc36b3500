"""The captured machines and how tests take them apart."""

import json
from pathlib import Path
from typing import Any

CAPTURES = Path(__file__).parent.parent / "captures"
GOLDENS = Path(__file__).parent / "goldens"
NAMES = (
    "machine_a", "machine_b", "avx_only", "h200", "p40_box", "t4", "eight_v100", "mismatch",
    "two_links", "two_v100", "three_kinds",
)  # fmt: skip


def packed(name: str) -> dict[str, Any]:
    """The files of one capture, by path."""
    files: dict[str, Any] = json.loads((CAPTURES / f"{name}.json").read_text(encoding="utf-8"))
    return files


def unpack(name: str, root: Path) -> Path:
    """The same machine as a tree of files under `root`."""
    for path, value in packed(name).items():
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return root
