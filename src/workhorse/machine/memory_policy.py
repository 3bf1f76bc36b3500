"""Put memory on chosen NUMA nodes, and ask where memory lies.

The C library has no wrappers for these calls: the numbers are the kernel's. Containers forbid
them by default (Docker's seccomp profile without CAP_SYS_NICE).
"""

import ctypes
import errno
import os
from collections.abc import Sequence

# linux/mempolicy.h
_MPOL_PREFERRED, _MPOL_INTERLEAVE = 1, 3
# arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h; read 2026-11.
_MBIND_CALL = {"x86_64": 237, "aarch64": 235}
_MOVE_PAGES_CALL = {"x86_64": 279, "aarch64": 239}
_BITS_PER_LONG = 64

_LIBC = ctypes.CDLL(None, use_errno=True)


def place_memory(address: int, n_bytes: int, nodes: Sequence[int]) -> None:
    """Have the pages that are still to come at `address` lie on these nodes.

    `address` is the start of a page. One node is preferred and not bound: a node that fills up
    meanwhile then lends from another one, which `nodes_of_memory` shows, where a binding would
    end the process. Several are interleaved, page by page.

    Raises OSError when the kernel, or a container around us, refuses.
    """
    words = max(nodes) // _BITS_PER_LONG + 1
    mask = (ctypes.c_ulong * words)()
    for node in nodes:
        mask[node // _BITS_PER_LONG] |= 1 << node % _BITS_PER_LONG
    mode = _MPOL_PREFERRED if len(nodes) == 1 else _MPOL_INTERLEAVE
    # The kernel reads one bit less than it is told, get_nodes() in mm/mempolicy.c.
    bits = words * _BITS_PER_LONG + 1
    _call(_MBIND_CALL, ctypes.c_void_p(address), ctypes.c_ulong(n_bytes), mode, mask, bits, 0)


def nodes_of_memory(addresses: Sequence[int]) -> tuple[int, ...] | None:
    """The node of the page at each address, for the pages that are there; None when not told."""
    count = len(addresses)
    pages = (ctypes.c_void_p * count)(*addresses)
    status = (ctypes.c_int * count)()
    try:
        # Without target nodes the call moves nothing, it only tells (move_pages(2)).
        _call(_MOVE_PAGES_CALL, 0, ctypes.c_ulong(count), pages, None, status, 0)
    except OSError:
        return None
    return tuple(node for node in status if node >= 0)


def _call(numbers: dict[str, int], *arguments: object) -> None:
    number = numbers.get(os.uname().machine)
    if number is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if _LIBC.syscall(ctypes.c_long(number), *arguments) != 0:
        failed = ctypes.get_errno()
        raise OSError(failed, os.strerror(failed))
