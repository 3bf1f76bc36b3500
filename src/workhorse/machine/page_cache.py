"""How much of a file is in the page cache, from a sample of its pages."""

import ctypes
import mmap
import os
from pathlib import Path

# Enough for a figure of a per cent or two, and a millisecond whatever the file's size.
_WINDOWS = 64
_WINDOW_PAGES = 256

_libc = ctypes.CDLL(None, use_errno=True)


def cached_share(path: Path) -> float | None:
    """Share of the file's pages that is in memory; None where it cannot be told.

    The kernel tells it only of files that we own or may write to; of others it says that all
    of it is there (mincore(2), Linux 5.2 on).
    """
    page = mmap.PAGESIZE
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        size_bytes = os.fstat(handle).st_size
        if not size_bytes:
            return None
        # A private mapping that is never touched: nothing is read in by looking.
        with mmap.mmap(handle, size_bytes, access=mmap.ACCESS_COPY) as mapped:
            start = ctypes.c_char.from_buffer(mapped)
            try:
                return _resident(ctypes.addressof(start), -(-size_bytes // page), page)
            finally:
                del start  # the mapping cannot be closed while it is pointed at
    except (OSError, ValueError):
        return None
    finally:
        os.close(handle)


def _resident(address: int, pages: int, page: int) -> float | None:
    step = max(_WINDOW_PAGES, pages // _WINDOWS)
    seen = there = 0
    for first in range(0, pages, step):
        count = min(_WINDOW_PAGES, pages - first)
        flags = (ctypes.c_ubyte * count)()
        place, length = ctypes.c_void_p(address + first * page), ctypes.c_size_t(count * page)
        if _libc.mincore(place, length, flags):
            return None
        seen += count
        there += sum(flag & 1 for flag in flags)
    return there / seen if seen else None
