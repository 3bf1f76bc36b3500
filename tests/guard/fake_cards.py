"""A stand-in for the pynvml module whose cards can be changed while they are watched."""

import ctypes
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml

LOST, NOT_FOUND = pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
SW_THERMAL = 0x20


@dataclass(eq=False)
class FakeCard:
    """What the driver says of one card, in its own units."""

    used: int = 10 << 30
    total: int = 16 << 30
    busy: int = 90
    clock: int = 1300
    reasons: int = 0
    width: int = 16
    uncorrected: int = 0
    lost: bool = False
    processes: list[tuple[int, int | None]] = field(default_factory=list)  # process number, bytes


class FakeDriver:
    """A function that is not here is not in this driver."""

    NVMLError = pynvml.NVMLError
    NVML_ERROR_LIBRARY_NOT_FOUND = NOT_FOUND

    def __init__(self, *cards: FakeCard, absent: bool = False) -> None:
        self.cards, self.absent = cards, absent
        self.opened = self.closed = 0
        self.asked: list[str] = []
        self.xids: list[tuple[FakeCard, int]] = []

    def nvmlInit(self) -> None:
        self.opened += 1
        if self.absent:
            raise pynvml.NVMLError(NOT_FOUND)

    def nvmlShutdown(self) -> None:
        self.closed += 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeCard:
        if self.cards[index].lost:
            raise pynvml.NVMLError(LOST)
        return self.cards[index]

    def nvmlDeviceGetName(self, card: FakeCard) -> str:
        self.asked.append("name")
        return "Tesla V100-PCIE-16GB"

    def nvmlDeviceGetUUID(self, card: FakeCard) -> str:
        return f"GPU-{self.cards.index(card)}"

    def nvmlDeviceGetPciInfo_v3(self, card: FakeCard) -> ctypes.Structure:
        info: ctypes.Structure = pynvml.nvmlPciInfo_t()
        info.busId = f"00000000:{0x18 + self.cards.index(card):02X}:00.0".encode()  # type: ignore[attr-defined]
        return info

    def nvmlDeviceGetMemoryInfo(self, card: FakeCard) -> Any:
        self.asked.append("memory")
        memory = pynvml.c_nvmlMemory_t()
        memory.total, memory.used, memory.free = card.total, card.used, card.total - card.used
        return memory

    def nvmlDeviceGetUtilizationRates(self, card: FakeCard) -> Any:
        rates = pynvml.c_nvmlUtilization_t()
        rates.gpu, rates.memory = card.busy, card.busy
        return rates

    def nvmlDeviceGetClockInfo(self, card: FakeCard, kind: int) -> int:
        return card.clock

    def nvmlDeviceGetMaxClockInfo(self, card: FakeCard, kind: int) -> int:
        return 1380

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, card: FakeCard) -> int:
        return card.reasons

    def nvmlDeviceGetCurrPcieLinkWidth(self, card: FakeCard) -> int:
        return card.width

    def nvmlDeviceGetMaxPcieLinkWidth(self, card: FakeCard) -> int:
        return 16

    def nvmlDeviceGetTotalEccErrors(self, card: FakeCard, kind: int, counter: int) -> int:
        return card.uncorrected if kind == 1 else 0

    def nvmlDeviceGetComputeRunningProcesses_v3(self, card: FakeCard) -> list[Any]:
        self.asked.append("processes")
        found = []
        for pid, used in card.processes:
            # The binding makes None of "not available".
            found.append(SimpleNamespace(pid=pid, usedGpuMemory=used))
        return found

    def nvmlDeviceGetPciInfo(self, card: FakeCard) -> Any:
        return SimpleNamespace(busId=f"00000000:{0x18 + self.cards.index(card):02X}:00.0")

    def nvmlEventSetCreate(self) -> str:
        return "events"

    def nvmlDeviceRegisterEvents(self, card: FakeCard, kinds: int, events: str) -> None:
        assert (kinds, events) == (pynvml.nvmlEventTypeXidCriticalError, "events")

    def nvmlEventSetWait_v2(self, events: str, timeout_ms: int) -> Any:
        if not self.xids:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
        card, number = self.xids.pop(0)
        return SimpleNamespace(device=card, eventData=number)

    def nvmlSystemGetProcessName(self, pid: int) -> str:
        return f"/opt/{pid}/train.py"
