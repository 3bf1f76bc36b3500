"""Copies from card to card, tried with the driver's own library: does what was sent arrive?

A board whose IOMMU or bridges lose such copies gives no error: the driver says that all went well,
and models answer with garbage or hang. So a pattern is sent, read back and compared, through main
memory and directly, both ways, each time over other bytes. Run as a program: it reads pairs as
JSON, says which copy it begins and then how it went, one line each, since it may never come back.
"""

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from workhorse.machine.cuda_driver import CudaError, cuda_call, load_cuda
from workhorse.records import PeerCopy
from workhorse.units import MIB

COPY_BYTES = 32 * MIB
SMALL_BYTES = 4096
ROUNDS = 3
BATCH = 8
SMALL_BATCH = 100
_WRONG_WORD = 0xA5A5A5A5  # what the target holds before, in no pattern likely


@dataclass(frozen=True, slots=True)
class Pair:
    """Two cards by their PCI addresses."""

    first: str
    second: str


@dataclass(frozen=True, slots=True)
class Begun:
    """The child begins a copy of this pair."""

    pair: Pair
    direct: bool


@dataclass(frozen=True, slots=True)
class Done:
    """How a copy went; `copy` None: the driver does not offer it for this pair."""

    pair: Pair
    direct: bool
    copy: PeerCopy | None


@dataclass(frozen=True, slots=True)
class Line:
    """One line that the child says."""

    begun: Begun | None = None
    done: Done | None = None


Tell = Callable[[Line], None]


def try_pair(cuda: Any, pair: Pair, tell: Tell, pattern: bytes) -> None:
    """Copy between two cards, through main memory and then directly; each is told."""
    for direct in (False, True):
        tell(Line(begun=Begun(pair, direct)))
        ends = _Ends(cuda, pattern)
        try:
            ends.open(pair)
            copy = ends.tried(direct)
        except CudaError as error:
            copy = PeerCopy(direct, None, failure=str(error))
        finally:
            ends.close()
        tell(Line(done=Done(pair, direct, copy)))


class _Ends:
    """Two cards with a context and memory on each; everything is given back by `close`."""

    def __init__(self, cuda: Any, pattern: bytes) -> None:
        self._cuda, self._pattern = cuda, pattern
        self._frees: list[Callable[[], object]] = []
        self._devices: list[ctypes.c_int] = []
        self._contexts: list[ctypes.c_void_p] = []
        self._memory: list[ctypes.c_uint64] = []

    def open(self, pair: Pair) -> None:
        """Take both cards. CudaError: one is not there, or full."""
        cuda = self._cuda
        cuda_call(cuda, "cuInit", 0)
        for address in (pair.first, pair.second):
            device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
            cuda_call(cuda, "cuDeviceGetByPCIBusId", ctypes.byref(device), address.encode())
            cuda_call(cuda, "cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            self._frees.append(lambda d=device: cuda.cuDevicePrimaryCtxRelease_v2(d))  # type: ignore[misc]
            cuda_call(cuda, "cuCtxSetCurrent", context)
            cuda_call(
                cuda, "cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(len(self._pattern))
            )
            self._frees.append(lambda m=memory: cuda.cuMemFree_v2(m))  # type: ignore[misc]
            self._devices.append(device)
            self._contexts.append(context)
            self._memory.append(memory)

    def tried(self, direct: bool) -> PeerCopy | None:
        """Copies both ways; None where the driver offers no direct ones."""
        if direct and not self._allow():
            return None
        right = all(self._arrives(source, turn) for turn in range(ROUNDS) for source in (0, 1))
        if not right:
            return PeerCopy(direct, False)
        n_bytes = len(self._pattern)
        slower_s = max(self._seconds(source, n_bytes, BATCH) for source in (0, 1))
        latency_s = max(self._seconds(source, SMALL_BYTES, SMALL_BATCH) for source in (0, 1))
        return PeerCopy(direct, True, n_bytes / slower_s, latency_s)

    def close(self) -> None:
        """Give everything back, the last first; errors are too late to matter."""
        while self._frees:
            self._frees.pop()()

    def _allow(self) -> bool:
        """Let each card read the other's memory; False where the driver does not offer it."""
        for one, other in ((0, 1), (1, 0)):
            can = ctypes.c_int()
            cuda_call(
                self._cuda, "cuDeviceCanAccessPeer", ctypes.byref(can), *self._pair(one, other)
            )
            if not can.value:
                return False
        for one, other in ((0, 1), (1, 0)):
            mine, others = self._contexts[one], self._contexts[other]
            cuda_call(self._cuda, "cuCtxSetCurrent", mine)
            cuda_call(self._cuda, "cuCtxEnablePeerAccess", others, 0)
            self._frees.append(lambda m=mine, o=others: self._forbid(m, o))  # type: ignore[misc]
        return True

    def _forbid(self, mine: ctypes.c_void_p, others: ctypes.c_void_p) -> None:
        self._cuda.cuCtxSetCurrent(mine)
        self._cuda.cuCtxDisablePeerAccess(others)

    def _pair(self, one: int, other: int) -> tuple[ctypes.c_int, ctypes.c_int]:
        return self._devices[one], self._devices[other]

    def _arrives(self, source: int, turn: int) -> bool:
        """Send the pattern, turned by some bytes each time, and read what arrived."""
        cut = 4099 * (2 * turn + source + 1) % len(self._pattern)
        sent = self._pattern[cut:] + self._pattern[:cut]
        size = ctypes.c_size_t(len(sent))
        cuda_call(self._cuda, "cuCtxSetCurrent", self._contexts[1 - source])
        words = ctypes.c_size_t(len(sent) // 4)
        target = self._memory[1 - source]
        cuda_call(self._cuda, "cuMemsetD32_v2", target, ctypes.c_uint(_WRONG_WORD), words)
        cuda_call(self._cuda, "cuCtxSynchronize")
        cuda_call(self._cuda, "cuCtxSetCurrent", self._contexts[source])
        cuda_call(self._cuda, "cuMemcpyHtoD_v2", self._memory[source], sent, size)
        self._copy(source, len(sent))
        cuda_call(self._cuda, "cuCtxSynchronize")
        cuda_call(self._cuda, "cuCtxSetCurrent", self._contexts[1 - source])
        got = ctypes.create_string_buffer(len(sent))
        cuda_call(self._cuda, "cuMemcpyDtoH_v2", got, target, size)
        return got.raw == sent

    def _copy(self, source: int, n_bytes: int) -> None:
        cuda_call(
            self._cuda,
            "cuMemcpyPeerAsync",
            self._memory[1 - source],
            self._contexts[1 - source],
            self._memory[source],
            self._contexts[source],
            ctypes.c_size_t(n_bytes),
            None,
        )

    def _seconds(self, source: int, n_bytes: int, count: int) -> float:
        """Seconds of one copy among so many in a row, by the card's own clock."""
        cuda_call(self._cuda, "cuCtxSetCurrent", self._contexts[source])
        events = []
        for _ in range(2):
            event = ctypes.c_void_p()
            cuda_call(self._cuda, "cuEventCreate", ctypes.byref(event), 0)
            self._frees.append(lambda e=event: self._cuda.cuEventDestroy_v2(e))  # type: ignore[misc]
            events.append(event)
        cuda_call(self._cuda, "cuEventRecord", events[0], None)
        for _ in range(count):
            self._copy(source, n_bytes)
        cuda_call(self._cuda, "cuEventRecord", events[1], None)
        cuda_call(self._cuda, "cuEventSynchronize", events[1])
        elapsed_ms = ctypes.c_float()
        cuda_call(self._cuda, "cuEventElapsedTime", ctypes.byref(elapsed_ms), *events)
        if not elapsed_ms.value > 0:
            raise CudaError("the card's clock stood still")
        return elapsed_ms.value / 1000 / count


def hold_contexts(cuda: Any, addresses: set[str]) -> None:
    """Make each card's context once and keep it until the child ends: it takes up to seconds."""
    for address in sorted(addresses):
        device, context = ctypes.c_int(), ctypes.c_void_p()
        with contextlib.suppress(CudaError):  # who needs the card will say it
            cuda_call(cuda, "cuInit", 0)
            cuda_call(cuda, "cuDeviceGetByPCIBusId", ctypes.byref(device), address.encode())
            cuda_call(cuda, "cuDevicePrimaryCtxRetain", ctypes.byref(context), device)


def say(line: Line) -> None:
    """One line on standard output, at once."""
    sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
    sys.stdout.buffer.flush()


def main(pairs: Sequence[Pair]) -> None:
    """Try every pair in turn."""
    cuda, missing = load_cuda()
    pattern = os.urandom(COPY_BYTES)
    if cuda is not None:
        hold_contexts(cuda, {address for pair in pairs for address in (pair.first, pair.second)})
    for pair in pairs:
        if cuda is None:
            copy = PeerCopy(False, None, failure=missing)
            say(Line(done=Done(pair, False, copy)))
        else:
            try_pair(cuda, pair, say, pattern)


if __name__ == "__main__":
    main(msgspec.json.decode(sys.stdin.buffer.read(), type=tuple[Pair, ...]))
