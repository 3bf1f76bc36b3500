"""Where the readers' text comes from: this machine, a captured tree, or a packed capture.

A path is written without its leading slash (`proc/cpuinfo`). Nothing here trusts a file: sizes,
kinds and counts are bounded, and what cannot be read is `None`, never an exception.
"""

import os
import stat
import subprocess
from itertools import islice
from pathlib import Path
from typing import Protocol

import msgspec

# /proc/cpuinfo of 512 logical CPUs is 0.8 MB; every other file we read is far smaller.
FILE_BYTES_MAX = 1024**2
NAMES_MAX = 16384
PACKED_BYTES_MAX = 32 * 1024**2
CAPTURE_NOTE = "workhorse-capture.json"
COMMANDS = "commands"  # the folder of a capture with what programs printed
# nvidia-smi wakes eight sleeping cards in some 15 s.
_ANSWER_WITHIN_S = 20.0


class HostFiles(Protocol):
    """The files of one machine, wherever they lie."""

    @property
    def live(self) -> bool:
        """True when the files are those of the running kernel."""

    def text(self, path: str) -> str | None:
        """The file's text, cut at 1 MiB; None when it cannot be read."""

    def names(self, path: str) -> tuple[str, ...]:
        """The names in a directory, sorted; none when it cannot be read."""

    def said(self, *command: str) -> str | None:
        """What a program printed, cut at 1 MiB; None when it is missing, failed or hung."""


class DirectoryFiles:
    """Files below a directory: `/` for this machine, another one for a captured tree."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._real_root = os.path.realpath(root)
        self.live = self._real_root == "/"

    def text(self, path: str) -> str | None:
        """The file's text, cut at 1 MiB; None when it is not a readable regular file."""
        try:
            # O_NONBLOCK: a pipe planted in a captured tree must not hold us for ever.
            handle = os.open(self._locate(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError):
            return None
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                return None
            return _read_bounded(handle).decode("utf-8", errors="replace")
        except OSError:
            return None
        finally:
            os.close(handle)

    def names(self, path: str) -> tuple[str, ...]:
        """The names in a directory, sorted; none when it cannot be read."""
        try:
            with os.scandir(self._locate(path)) as entries:
                return tuple(sorted(entry.name for entry in islice(entries, NAMES_MAX)))
        except (OSError, ValueError):
            return ()

    def said(self, *command: str) -> str | None:
        """What the program prints here, or printed there when the tree was captured."""
        return _run(command) if self.live else self.text(said_path(*command))

    def _locate(self, path: str) -> Path:
        place = self._root / path
        # An absolute link in a captured tree would answer with this machine's own files.
        if not self.live and not _inside(os.path.realpath(place), self._real_root):
            raise FileNotFoundError(path)
        return place


class PackedFiles:
    """A capture in one JSON document: `{path: text}`; an object stands for its own JSON text."""

    live = False

    def __init__(self, files: dict[str, object]) -> None:
        self._texts = {path: _as_text(value)[:FILE_BYTES_MAX] for path, value in files.items()}
        self._names: dict[str, set[str]] = {}
        for path in files:
            folder, _, name = path.rpartition("/")
            while name:
                self._names.setdefault(folder, set()).add(name)
                folder, _, name = folder.rpartition("/")

    def text(self, path: str) -> str | None:
        """The file's text, cut at 1 MiB; None when the capture does not hold it."""
        return self._texts.get(path)

    def names(self, path: str) -> tuple[str, ...]:
        """The names in a directory, sorted; none when the capture does not hold it."""
        return tuple(sorted(self._names.get(path, ())))[:NAMES_MAX]

    def said(self, *command: str) -> str | None:
        """What the program printed when the machine was captured."""
        return self.text(said_path(*command))


def said_path(*command: str) -> str:
    """Where a capture keeps what a program printed: `commands/nvidia-smi_-q.txt`."""
    return f"{COMMANDS}/{'_'.join(command).replace('/', '_')}.txt"


def _run(command: tuple[str, ...]) -> str | None:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ANSWER_WITHIN_S,
            env={**os.environ, "LC_ALL": "C"},
            check=False,
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    # nvidia-smi says on stdout why it failed, and that is a fact too.
    text = done.stdout[:FILE_BYTES_MAX].decode("utf-8", errors="replace")
    return text or None


def _read_bounded(handle: int) -> bytes:
    parts: list[bytes] = []
    left = FILE_BYTES_MAX
    # The kernel hands out /proc files a page or so at a time.
    while left > 0 and (part := os.read(handle, left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _inside(place: str, real_root: str) -> bool:
    return place == real_root or place.startswith(real_root.rstrip("/") + "/")


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
