"""How the tests of pulls pull, and what."""

import random
from collections.abc import Mapping
from pathlib import Path

from workhorse.models.folders import AddressFolder, opened_folder
from workhorse.models.hub import HubFolder
from workhorse.models.pull import Pulled, Telling, order_of, pull
from workhorse.models.pull_part import PIECE_BYTES
from workhorse.models.sources import source_of

REPO = "maker/Big-GGUF"
NAME = "big-Q8_0.gguf"
# Three pieces and a bit, so that the last one is short.
CONTENT = random.Random(8).randbytes(3 * PIECE_BYTES + 5)
OTHER = CONTENT[::-1]


def pull_to(
    target: Path,
    reference: str,
    environment: Mapping[str, str] | None = None,
    *,
    file: str | None = NAME,
    said: list[str] | None = None,
    pauses: list[float] | None = None,
    connections: int = 1,
    stall_s: float = 30.0,
) -> Pulled:
    """Pull with pauses that are only noted, and what is said in English."""
    words: list[str] = [] if said is None else said
    waits: list[float] = [] if pauses is None else pauses
    with opened_folder(source_of(reference, environment or {}), environment or {}) as (folder, _):
        assert isinstance(folder, HubFolder | AddressFolder)
        order = order_of(folder, file if isinstance(folder, HubFolder) else folder.file)
        telling = Telling(lambda text: words.append(text.en))
        return pull(
            folder,
            order,
            target,
            telling,
            connections=connections,
            pause=waits.append,
            stall_s=stall_s,
        )


def left_in(folder: Path) -> set[str]:
    """The names of all files below a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
