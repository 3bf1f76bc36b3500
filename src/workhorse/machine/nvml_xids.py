"""Xids as NVML tells them: for whoever may not read the kernel's log."""

import threading
from typing import Any

import pynvml

from workhorse.machine.nvml_values import text, whole
from workhorse.machine.pci import pci_address
from workhorse.records import KernelEvent

_XID = 0x8  # nvmlEventTypeXidCriticalError, nvml.h (driver 580)
_GPUS_MAX = 64
_EVENTS_MAX = 200  # of one look; a flood goes on in the next one
_NUMBER_MAX = 9999
_ANSWER_WITHIN_S = 2.0


class NvmlXids:
    """The Xids since the last look; none where the driver is missing, old or stuck."""

    def __init__(self, nvml: Any = None) -> None:
        self._nvml = pynvml if nvml is None else nvml
        self._set: Any = None
        self._tried = False
        self._asking: threading.Thread | None = None

    def new_events(self) -> tuple[KernelEvent, ...]:
        """What came. Blocks up to two seconds, and never again while the driver is stuck."""
        if self._asking is not None and self._asking.is_alive():
            return ()
        found: list[KernelEvent] = []
        self._asking = threading.Thread(target=self._take, args=(found,), daemon=True)
        self._asking.start()
        self._asking.join(_ANSWER_WITHIN_S)
        return () if self._asking.is_alive() else tuple(found)

    def _take(self, found: list[KernelEvent]) -> None:
        nvml = self._nvml
        try:
            if not self._tried:
                self._tried = True
                self._register()
            for _ in range(_EVENTS_MAX if self._set is not None else 0):
                found.append(self._event(nvml.nvmlEventSetWait_v2(self._set, 0)))
        except (nvml.NVMLError, AttributeError, TypeError, ValueError):
            return  # NVML_ERROR_TIMEOUT: there is no more

    def _register(self) -> None:
        nvml = self._nvml
        nvml.nvmlInit()
        events, watched = nvml.nvmlEventSetCreate(), 0
        for index in range(min(whole(nvml.nvmlDeviceGetCount()) or 0, _GPUS_MAX)):
            try:
                nvml.nvmlDeviceRegisterEvents(nvml.nvmlDeviceGetHandleByIndex(index), _XID, events)
                watched += 1
            except nvml.NVMLError:
                continue  # a card that is lost, or too old for events
        self._set = events if watched else None

    def _event(self, data: Any) -> KernelEvent:
        number = whole(int(data.eventData), high=_NUMBER_MAX)
        bus = text(self._nvml.nvmlDeviceGetPciInfo(data.device).busId)
        address = pci_address(bus)
        return KernelEvent(
            "xid", number, address, f"NVRM: Xid (PCI:{address}): {number}, told by NVML"
        )
