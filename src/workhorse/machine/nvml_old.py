"""NVML functions that NVIDIA's Python binding no longer has, for drivers of 2015 to 2020.

An unversioned symbol keeps the first form of its structure in every library that has it
(nvml.h, "#define" lines of the versioned names; read 2026-11), so these calls are safe there.
"""

import ctypes
from typing import Any

_SUCCESS = 0
_INSUFFICIENT_SIZE = 7
_PROCESSES_MAX = 256


class _FirstProcessInfo(ctypes.Structure):
    """nvmlProcessInfo_v1_t."""

    _fields_ = (("pid", ctypes.c_uint), ("usedGpuMemory", ctypes.c_ulonglong))


class _FirstPciInfo(ctypes.Structure):
    """nvmlPciInfo_v2_t: the address is 16 bytes long here, not 32."""

    _fields_ = (
        ("busId", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("pciDeviceId", ctypes.c_uint),
        ("pciSubSystemId", ctypes.c_uint),
        ("reserved", ctypes.c_uint * 4),
    )


def first_processes(nvml: Any, handle: Any) -> list[Any] | None:
    """Compute processes, from drivers before 450; None when there is no answer."""
    function = _function(nvml, "nvmlDeviceGetComputeRunningProcesses")
    if function is None:
        return None
    count = ctypes.c_uint(_PROCESSES_MAX)
    found = (_FirstProcessInfo * _PROCESSES_MAX)()
    if function(handle, ctypes.byref(count), found) not in (_SUCCESS, _INSUFFICIENT_SIZE):
        return None
    return list(found[: min(count.value, _PROCESSES_MAX)])


def first_pci_info(nvml: Any, handle: Any) -> Any:
    """The PCI address and ids, from drivers before 390; None when there is no answer."""
    function = _function(nvml, "nvmlDeviceGetPciInfo_v2")
    if function is None:
        return None
    info = _FirstPciInfo()
    return info if function(handle, ctypes.byref(info)) == _SUCCESS else None


def _function(nvml: Any, name: str) -> Any:
    look_up = getattr(nvml, "_nvmlGetFunctionPointer", None)
    if look_up is None:
        return None
    try:
        return look_up(name)
    except nvml.NVMLError:
        return None
