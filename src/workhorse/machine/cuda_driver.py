"""How fast a GPU copies, measured with the driver's own library and nothing else.

`libcuda.so.1` comes with the driver: no toolkit and no engine is needed. Each copy is timed by
events on the card, the best batch counts (what else runs can only take away), and while the card
copies its PCIe link is read: an idle card lowers its speed to save power, a lost lane stays lost.

A sick driver can hang any call for ever, so the copying is done by a child process with a time
limit: this module run as a program reads its requests as JSON and writes one answer a line.
"""

import contextlib
import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import msgspec
import pynvml

from workhorse.machine.files import DirectoryFiles
from workhorse.machine.kernel_text import cpu_list
from workhorse.machine.nvml_values import whole
from workhorse.machine.pci import PCI_ROOT, WIDTHS
from workhorse.records import CopyBandwidth, Gpu
from workhorse.text import Text, same
from workhorse.units import MIB

# Two of them on the card are more than the largest level-2 cache (126 MB on a B200, 2026-11) and
# less than 256 MiB together.
_CARD_BYTES = 112 * MIB
_HOST_BYTES = 32 * MIB
_FREE_BYTES_MIN = 1024 * MIB  # the context takes some 500 MiB on large cards
_BUSY_PERCENT_MAX = 10
_BATCH_S = 0.02  # long enough to read the link meanwhile, short enough to find a quiet moment
_COPIES_MAX = 500  # a queue of the driver holds some 1000 calls before it blocks
_CARD_S_MIN = 0.6  # a third of it writes to the card: an idle link needs some 0.1 s to wake
# To load the driver and wake eight cards without persistence mode: some 15 s.
_START_WITHIN_S = 40.0
_ANSWER_BYTES_MAX = MIB

Kind = Literal["device", "to device", "from device"]
KINDS: tuple[Kind, ...] = ("device", "to device", "from device")
Link = tuple[int | None, int | None]


class CudaError(Exception):
    """A call of the driver failed; the message is the driver's name of the error."""


@dataclass(frozen=True, slots=True)
class CopyRequest:
    """One card to measure and for how long."""

    pci_address: str
    duration_s: float


@dataclass(frozen=True, slots=True)
class CopyAnswer:
    """What was measured of one card; `link` is PCIe generation and width under load."""

    pci_address: str
    copies: tuple[CopyBandwidth, ...] = ()
    link: Link = (None, None)
    failure: str | None = None


Ask = Callable[[Sequence[CopyRequest], float], tuple[CopyAnswer, ...]]


def measure_copies(
    gpus: Sequence[Gpu], duration_s: float, *, ask: Ask | None = None
) -> tuple[tuple[Gpu, ...], tuple[Text, ...]]:
    """The GPUs with their copy bandwidths and their PCIe link under load, and what failed.

    Copies for `duration_s` in all, at least 0.6 s a card. Cards that others use are left alone.
    """
    doubts: list[Text] = []
    requests: list[CopyRequest] = []
    for gpu in gpus:
        reason = _left_alone(gpu)
        if reason is not None:
            doubts.append(_not_measured(gpu, reason))
        elif gpu.pci_address is not None:
            each_s = max(_CARD_S_MIN, duration_s / len(gpus))
            requests.append(CopyRequest(gpu.pci_address, each_s))
    if not requests:
        return tuple(gpus), tuple(doubts)
    limit_s = _START_WITHIN_S + 3 * sum(request.duration_s for request in requests)
    answers = (ask or ask_child)(requests, limit_s)
    by_address = {answer.pci_address: answer for answer in answers}
    asked = {request.pci_address for request in requests}
    measured: list[Gpu] = []
    for gpu in gpus:
        if gpu.pci_address not in asked:
            measured.append(gpu)
            continue
        answer = by_address.get(gpu.pci_address or "")
        if answer is None or answer.failure is not None:
            said = Text("the driver gave no answer in time", "驱动未在限时内响应")
            if answer is not None and answer.failure is not None:
                said = same(answer.failure)
            doubts.append(_not_measured(gpu, said))
        if answer is not None:
            gpu = _with_answer(gpu, answer)
        measured.append(gpu)
    return tuple(measured), tuple(doubts)


def ask_child(requests: Sequence[CopyRequest], limit_s: float) -> tuple[CopyAnswer, ...]:
    """The answers of a child process: those that it gave within `limit_s`."""
    try:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "workhorse.machine.cuda_driver"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        return ()
    try:
        said, _ = child.communicate(msgspec.json.encode(requests), timeout=limit_s)
    except subprocess.TimeoutExpired as late:
        said = late.stdout or b""
        child.kill()
        # Not waited for without a limit: a process within a hanging driver cannot even be killed.
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(2)
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()
    return read_answers(said)


def read_answers(said: bytes) -> tuple[CopyAnswer, ...]:
    """The whole lines of a child's output."""
    answers: list[CopyAnswer] = []
    for line in said[:_ANSWER_BYTES_MAX].splitlines():
        try:
            answers.append(msgspec.json.decode(line, type=CopyAnswer))
        except (ValueError, RecursionError):
            continue
    return tuple(answers)


def copy_on_card(
    cuda: Any,
    request: CopyRequest,
    read_link: Callable[[], Link] = lambda: (None, None),
) -> CopyAnswer:
    """Copy within one card, to it and from it; `cuda` is libcuda, `read_link` reads its link.

    A call that fails ends in `failure`; what was measured before it stays.
    """
    copies: list[CopyBandwidth] = []
    link: Link = (None, None)
    failure: str | None = None
    card: _Card | None = None
    try:
        card = _Card(cuda, request.pci_address)
        for kind in KINDS:
            loaded, watch = _watched(read_link) if kind == "to device" else ([], _nothing)
            copies.append(card.measure(kind, request.duration_s / len(KINDS), watch))
            if loaded:
                link = max(loaded, key=lambda seen: (seen[0] or 0, seen[1] or 0))
    except CudaError as error:
        failure = str(error)
    finally:
        if card is not None:
            card.close()
    return CopyAnswer(request.pci_address, tuple(copies), link, failure)


class _Card:
    """A context on one card and the memory to copy between."""

    def __init__(self, cuda: Any, pci_address: str) -> None:
        self._cuda = cuda
        self._frees: list[Callable[[], object]] = []
        try:
            self._open(pci_address)
        except CudaError:
            self.close()
            raise

    def _open(self, pci_address: str) -> None:
        cuda = self._cuda
        self._call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuDeviceGetByPCIBusId", ctypes.byref(device), pci_address.encode())
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._frees.append(lambda: cuda.cuDevicePrimaryCtxRelease_v2(device))
        self._call("cuCtxSetCurrent", context)
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        if free.value < 3 * _CARD_BYTES:
            raise CudaError(f"only {free.value // MIB} MiB of its memory are free")
        self._source, self._target = self._on_card(), self._on_card()
        self._host = ctypes.c_void_p()
        self._call("cuMemHostAlloc", ctypes.byref(self._host), ctypes.c_size_t(_HOST_BYTES), 0)
        self._frees.append(lambda: cuda.cuMemFreeHost(self._host))
        self._begin, self._end = self._event(), self._event()

    def measure(self, kind: Kind, duration_s: float, watch: Callable[[], object]) -> CopyBandwidth:
        """Batches of copies until the time is over; `watch` is called while each one runs."""
        n_bytes = _CARD_BYTES if kind == "device" else _HOST_BYTES
        began_s = time.perf_counter()
        self._batch(kind, n_bytes, 1, _nothing)  # first touch, clocks still low
        once_s = self._batch(kind, n_bytes, 1, _nothing)
        count = max(1, min(_COPIES_MAX, round(_BATCH_S / once_s)))
        best_s = once_s
        while True:
            best_s = min(best_s, self._batch(kind, n_bytes, count, watch) / count)
            spent_s = time.perf_counter() - began_s
            if spent_s >= duration_s:
                break
        where = "pinned memory" if kind != "device" else "card memory"
        return CopyBandwidth(
            kind=kind,
            bytes_per_s=n_bytes / best_s,
            method=f"cuMemcpy of {n_bytes // MIB} MiB, {where}, best batch of {count}",
            duration_s=spent_s,
        )

    def close(self) -> None:
        """Give everything back, the last first; errors are too late to matter."""
        while self._frees:
            self._frees.pop()()

    def _batch(self, kind: Kind, n_bytes: int, count: int, watch: Callable[[], object]) -> float:
        """Seconds that `count` copies took by the card's own clock."""
        self._call("cuEventRecord", self._begin, None)
        size = ctypes.c_size_t(n_bytes)
        for _ in range(count):
            if kind == "device":
                self._call("cuMemcpyDtoDAsync_v2", self._target, self._source, size, None)
            elif kind == "to device":
                self._call("cuMemcpyHtoDAsync_v2", self._target, self._host, size, None)
            else:
                self._call("cuMemcpyDtoHAsync_v2", self._host, self._source, size, None)
        self._call("cuEventRecord", self._end, None)
        watch()
        self._call("cuEventSynchronize", self._end)
        elapsed_ms = ctypes.c_float()
        self._call("cuEventElapsedTime", ctypes.byref(elapsed_ms), self._begin, self._end)
        if not elapsed_ms.value > 0:
            raise CudaError("the card's clock stood still")
        return elapsed_ms.value / 1000

    def _on_card(self) -> ctypes.c_uint64:
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(_CARD_BYTES))
        self._frees.append(lambda: self._cuda.cuMemFree_v2(address))
        # Some pattern that is not zero: pages never written may share one page of zeros.
        words = ctypes.c_size_t(_CARD_BYTES // 4)
        self._call("cuMemsetD32_v2", address, ctypes.c_uint(0x9E3779B9), words)
        return address

    def _event(self) -> ctypes.c_void_p:
        event = ctypes.c_void_p()
        self._call("cuEventCreate", ctypes.byref(event), 0)
        self._frees.append(lambda: self._cuda.cuEventDestroy_v2(event))
        return event

    def _call(self, name: str, *arguments: object) -> None:
        cuda_call(self._cuda, name, *arguments)


def cuda_call(cuda: Any, name: str, *arguments: object) -> None:
    """Call a function of libcuda; CudaError with the driver's name of what went wrong."""
    try:
        code = getattr(cuda, name)(*arguments)
    except AttributeError:
        raise CudaError(f"{name} is not in this driver's libcuda") from None
    if code != 0:
        raise CudaError(f"{name}: {_error_name(cuda, code)}")


def _error_name(cuda: Any, code: int) -> str:
    name = ctypes.c_char_p()
    ask = getattr(cuda, "cuGetErrorName", None)
    known = ask is not None and ask(code, ctypes.byref(name)) == 0
    return name.value.decode("ascii", errors="replace") if known and name.value else str(code)


def _nothing() -> None:
    """Watch nothing."""


def _watched(read_link: Callable[[], Link]) -> tuple[list[Link], Callable[[], object]]:
    loaded: list[Link] = []
    return loaded, lambda: loaded.append(read_link())


def _link_reader(pci_address: str) -> Callable[[], Link]:
    """Reads the PCIe generation and width of a card through NVML; None each when it cannot."""

    def ask(function: str) -> int | None:
        try:
            handle = pynvml.nvmlDeviceGetHandleByPciBusId(pci_address.encode())
            return whole(getattr(pynvml, function)(handle), high=32) or None
        except pynvml.NVMLError:
            return None

    return lambda: (
        ask("nvmlDeviceGetCurrPcieLinkGeneration"),
        ask("nvmlDeviceGetCurrPcieLinkWidth"),
    )


def _with_answer(gpu: Gpu, answer: CopyAnswer) -> Gpu:
    generation, width = answer.link
    return replace(
        gpu,
        copies=answer.copies,
        pcie_generation_loaded=whole(generation, high=16) or None,
        pcie_width_loaded=width if width in WIDTHS else None,
    )


def _left_alone(gpu: Gpu) -> Text | None:
    """Why this card is not to be touched."""
    if gpu.mig:
        return Text("it is divided (MIG)", "它已启用 MIG 切分")
    if gpu.pci_address is None:
        return Text("its PCI address is not known", "PCI 地址未知")
    free_bytes = gpu.memory_free_bytes
    if free_bytes is not None and free_bytes < _FREE_BYTES_MIN:
        free = f"{free_bytes // MIB} MiB"
        return Text(f"only {free} of its memory are free", f"空闲显存只有 {free}")
    if gpu.busy_percent is not None and gpu.busy_percent > _BUSY_PERCENT_MAX:
        busy = f"{gpu.busy_percent} %"
        return Text(f"other processes keep it {busy} busy", f"其他进程占用率为 {busy}")
    return None


def _not_measured(gpu: Gpu, why: Text) -> Text:
    return Text(
        f"Copy bandwidth of GPU {gpu.index} was not measured: {why.en}.",
        f"未能测量 GPU {gpu.index} 的拷贝带宽：{why.zh}。",
    )


def _go_near(pci_address: str) -> None:
    """Run on the card's own node: pinned memory of a far one is read across the sockets."""
    files = DirectoryFiles(Path("/"))
    near = cpu_list(files.text(f"{PCI_ROOT}/{pci_address}/local_cpulist")) or ()
    with contextlib.suppress(OSError):  # a mask without one CPU of ours: stay here
        os.sched_setaffinity(0, near)


def load_cuda() -> tuple[Any, str]:
    """The driver's library, which sees every card; None and the loader's words without it."""
    # Cards that the user's shell hides from CUDA are still this machine's.
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    try:
        return ctypes.CDLL("libcuda.so.1"), ""
    except OSError as error:
        return None, str(error)


def main() -> None:
    """The child: requests on stdin, one answer a line on stdout as soon as it is known."""
    requests = msgspec.json.decode(sys.stdin.buffer.read(), type=tuple[CopyRequest, ...])
    cuda, missing = load_cuda()
    with contextlib.suppress(pynvml.NVMLError):  # without it the link stays unknown
        pynvml.nvmlInit()
    for request in requests:
        if cuda is None:
            answer = CopyAnswer(request.pci_address, failure=missing)
        else:
            _go_near(request.pci_address)
            answer = copy_on_card(cuda, request, _link_reader(request.pci_address))
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
