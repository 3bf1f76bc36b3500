"""A stand-in for the pynvml module."""

import ctypes
from collections.abc import Callable
from typing import Any

import pynvml


class FakeNvml:
    """Stands for the pynvml module; a function that is not set is not there."""

    NVMLError = pynvml.NVMLError
    NVML_ERROR_LIBRARY_NOT_FOUND = pynvml.NVML_ERROR_LIBRARY_NOT_FOUND

    def __init__(self, count: int = 1, **functions: Callable[..., Any]) -> None:
        self.closed = 0
        self.nvmlInit: Callable[[], None] = lambda: None
        self.nvmlDeviceGetCount: Callable[[], Any] = lambda: count
        self.nvmlDeviceGetHandleByIndex: Callable[[int], Any] = lambda index: index
        for name, function in functions.items():
            setattr(self, name, function)

    def nvmlShutdown(self) -> None:
        self.closed += 1


def fails(code: int) -> Callable[..., Any]:
    def function(*_: Any) -> Any:
        raise pynvml.NVMLError(code)

    return function


def pci_info(bus_id: str) -> ctypes.Structure:
    info: ctypes.Structure = pynvml.nvmlPciInfo_t()
    info.busId = bus_id.encode()  # type: ignore[attr-defined]
    return info
