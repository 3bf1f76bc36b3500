"""The folder of saved slot states: named by what they are, checked before use, bounded.

An engine that is given a file that was cut or changed may crash (llama-server 0.5.0 with half a
file: seen 2026-11) or answer from nonsense. So a file's name carries the digest of its content,
and none is handed to an engine unchecked.
"""

import hashlib
import os
import re
import struct
from collections.abc import Collection, Sequence
from pathlib import Path

from workhorse.units import MIB

_NAME = re.compile(r"(?P<key>[0-9a-f]{32})-(?P<content>[0-9a-f]{32})\.state")
PART_SUFFIX = ".part"
# llama.cpp src/llama.h, LLAMA_STATE_SEQ_MAGIC `ggsq` (0c1e570, 2026-10).
_MAGIC = 0x67677371
_HEAD = struct.Struct("<3I")  # magic, version, number of 32-bit words that follow


class KeptStates:
    """Saved states in one folder. Its methods read and write files: not for the event loop."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self.folder = folder
        self._most_bytes = most_bytes
        self._sound: dict[Path, tuple[int, int]] = {}  # checked files: size and time then

    def prepare(self) -> None:
        """The folder, for its owner alone, without what an earlier service left half-written."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for part in self.folder.glob(f"*{PART_SUFFIX}"):
            part.unlink(missing_ok=True)

    def find(self, key: str) -> Path | None:
        """The whole and unchanged state of this key; a damaged one is removed. None: none."""
        for path in self.folder.glob(f"{key}-*.state"):
            if self._is_sound(path):
                os.utime(path)  # the least used go first
                self._remember(path)
                return path
            path.unlink(missing_ok=True)
        return None

    def adopt(self, part: Path, key: str, tokens: Sequence[int]) -> Path | None:
        """Take in what the engine wrote; None, and it is gone, when it is not these tokens."""
        if not _holds(part, tokens):
            part.unlink(missing_ok=True)
            return None
        with part.open("rb") as file:
            os.fsync(file.fileno())
        path = self.folder / f"{key}-{_content(part)}.state"
        part.replace(path)
        self._remember(path)
        return path

    def trim(self, wanted: Collection[str]) -> None:
        """Remove the oldest until the folder is within its bound, those that are wanted last."""
        files = [path for path in self.folder.glob("*.state") if _NAME.fullmatch(path.name)]
        total = sum(path.stat().st_size for path in files)
        files.sort(key=lambda path: (path.name[:32] in wanted, path.stat().st_mtime))
        for path in files:
            if total <= self._most_bytes:
                return
            total -= path.stat().st_size
            path.unlink(missing_ok=True)

    def _is_sound(self, path: Path) -> bool:
        named = _NAME.fullmatch(path.name)
        if named is None:
            return False
        stat = path.stat()
        if self._sound.get(path) == (stat.st_size, stat.st_mtime_ns):
            return True
        return _content(path) == named["content"]

    def _remember(self, path: Path) -> None:
        stat = path.stat()
        self._sound[path] = (stat.st_size, stat.st_mtime_ns)


def _content(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _holds(part: Path, tokens: Sequence[int]) -> bool:
    """True when the file begins with these tokens and no others: nobody else's prompt is kept."""
    packed = struct.pack(f"<{len(tokens)}i", *tokens)
    try:
        with part.open("rb") as file:
            magic, _, words = _HEAD.unpack(file.read(_HEAD.size))
            # The tokens alone, or with four words of the server's own around them.
            if magic != _MAGIC or words - len(tokens) not in (0, 4):
                return False
            return packed in file.read(4 * words)
    except (OSError, struct.error):
        return False


def fingerprint(paths: Sequence[Path]) -> str:
    """Which model the files are: their sizes, their headers and samples of their weights.

    A whole model takes minutes to read from an old disk. Another quantisation or another training
    changes every block of the weights, so 16 samples of 1 MiB a file are enough.
    """
    digest = hashlib.blake2b(digest_size=16)
    for path in paths:
        size = path.stat().st_size
        digest.update(f"{size},".encode())
        with path.open("rb") as file:
            for sample in range(16):
                file.seek(size * sample // 16)
                digest.update(file.read(MIB))
    return digest.hexdigest()
