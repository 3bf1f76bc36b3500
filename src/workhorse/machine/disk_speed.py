"""How fast the disk under a path reads, measured on a large file that is there already.

Nothing is ever written: a disk that is nearly full, or worn, stays as it is. The read goes past
the page cache, so that it is the disk that answers; a controller's or a hypervisor's own cache
may still be in it.
"""

import mmap
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from workhorse.machine.disk import existing
from workhorse.units import MIB

_FILE_BYTES_MIN = 64 * MIB
_READ_BYTES_MAX = 512 * MIB
_READ_S_MAX = 0.5
# As large as loaders read; the kernel splits it into requests that are under way together.
_CHUNK_BYTES = 8 * MIB
_ENTRIES_MAX = 4000
_SEARCH_S_MAX = 0.2


@dataclass(frozen=True, slots=True)
class DiskSpeed:
    """Sequential read speed; None with the reason in `method` when it was not measured."""

    bytes_per_s: float | None
    method: str


def measure_disk(path: Path, beside: tuple[Path, ...] = ()) -> DiskSpeed:
    """Read the largest file below `path`, or below `beside` on the same file system.

    Takes at most half a second and 512 MiB, and a fifth of a second to find the file.
    """
    try:
        place = existing(path)
        device = place.stat().st_dev
    except OSError as error:
        return DiskSpeed(None, f"not measured: {error.strerror}")
    for root in (place, *beside):
        found = largest_file(root, device)
        if found is not None:
            return _read(found)
    return DiskSpeed(None, f"not measured: no file of {_FILE_BYTES_MIN // MIB} MiB to read there")


def largest_file(root: Path, device: int) -> Path | None:
    """The largest readable file below `root` on this device, of 64 MiB and more, without holes.

    Looks at no more than some thousand entries and enters no other file system.
    """
    best: tuple[int, Path] | None = None
    until_s = time.monotonic() + _SEARCH_S_MAX
    for count, (place, facts) in enumerate(_entries(root, device)):
        if count >= _ENTRIES_MAX or time.monotonic() > until_s:
            break
        # A hole is read from no disk: a sparse file would look as fast as memory.
        solid = facts.st_blocks * 512 >= 0.95 * facts.st_size
        large = facts.st_size >= _FILE_BYTES_MIN and (best is None or facts.st_size > best[0])
        if stat.S_ISREG(facts.st_mode) and solid and large and os.access(place, os.R_OK):
            best = (facts.st_size, place)
    return best[1] if best else None


def _entries(root: Path, device: int) -> Iterator[tuple[Path, os.stat_result]]:
    """The files below `root`, folder after folder; links are not followed."""
    folders = [root]
    while folders:
        folder = folders.pop(0)
        try:
            with os.scandir(folder) as listed:
                for entry in listed:
                    facts = entry.stat(follow_symlinks=False)
                    if facts.st_dev != device:
                        continue
                    if stat.S_ISDIR(facts.st_mode):
                        folders.append(Path(entry.path))
                    yield Path(entry.path), facts
        except OSError:
            continue  # no right to look: other folders may do


def _read(place: Path) -> DiskSpeed:
    """Read the file past the page cache: directly, else with its cached pages dropped first."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOATIME
    for how, extra in (("direct", os.O_DIRECT), ("page cache dropped first", 0)):
        try:
            handle = _opened(place, flags | extra)
        except OSError as error:
            reason = error.strerror
            continue
        try:
            if not extra:
                os.posix_fadvise(handle, 0, _READ_BYTES_MAX, os.POSIX_FADV_DONTNEED)
            n_bytes, spent_s = _timed(handle)
        except OSError as error:
            # Some file systems accept the flag and refuse the read: EINVAL.
            reason = error.strerror
            continue
        finally:
            os.close(handle)
        if n_bytes >= _CHUNK_BYTES and spent_s > 0:
            method = f"sequential, {how}: {n_bytes // MIB} MiB of one file in {spent_s:.2f} s"
            return DiskSpeed(n_bytes / spent_s, method)
        reason = "the file gave too little"
    return DiskSpeed(None, f"not measured: {reason}")


def _opened(place: Path, flags: int) -> int:
    try:
        return os.open(place, flags)
    except PermissionError:
        # Only its owner may read a file without leaving a trace of it in the access time.
        return os.open(place, flags & ~os.O_NOATIME)


def _timed(handle: int) -> tuple[int, float]:
    """Bytes read from the start of the file, and the seconds that took."""
    # Direct reads need memory at the start of a page.
    with mmap.mmap(-1, _CHUNK_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as buffer:
        buffer.write(bytes(_CHUNK_BYTES))  # the pages are there before the clock runs
        n_bytes, begin_s = 0, time.perf_counter()
        spent_s = 0.0
        while n_bytes < _READ_BYTES_MAX and spent_s < _READ_S_MAX:
            got = os.preadv(handle, [buffer], n_bytes)
            spent_s = time.perf_counter() - begin_s
            n_bytes += got
            if got < _CHUNK_BYTES:
                break
        return n_bytes, spent_s
