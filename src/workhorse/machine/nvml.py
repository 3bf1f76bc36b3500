"""Ask the NVIDIA driver through NVML, or read what it answered from a capture.

Both give one document, `NvmlAnswers`; `gpu` makes GPUs of it. As JSON it is the `nvml.json` of a
captured tree:

    {"driver_version": "580.159.04", "cuda_version": 13000,
     "gpus": [{"name": "NVIDIA H200", "compute_capability": [9, 0], ...}]}

Each GPU holds the raw answer to each query of `GPU_QUERIES`, in the driver's own units; a query
that failed is left out. When NVML itself failed there is only an `error`: its code and words.
"""

import ctypes
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pynvml

from workhorse.machine.files import HostFiles
from workhorse.text import Text

NVML_CAPTURE = "nvml.json"
_GPUS_MAX = 64
# Eight cards without persistence mode need some 15 s to wake; a card that fell off the bus can
# hold NVML for ever.
_ANSWER_WITHIN_S = 60.0

# Enumerators of nvml.h.
_CLOCK_MEM = 2
_TEMPERATURE_GPU = 0

# Query: the functions that answer it, newest first, and their arguments after the handle.
GPU_QUERIES: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
    "name": (("nvmlDeviceGetName",), ()),
    "uuid": (("nvmlDeviceGetUUID",), ()),
    "pci": (
        ("nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo"),
        (),
    ),
    "compute_capability": (("nvmlDeviceGetCudaComputeCapability",), ()),
    "memory": (("nvmlDeviceGetMemoryInfo",), ()),
    "memory_bus_width": (("nvmlDeviceGetMemoryBusWidth",), ()),
    "memory_clock_max": (("nvmlDeviceGetMaxClockInfo",), (_CLOCK_MEM,)),
    "pcie_generation": (("nvmlDeviceGetCurrPcieLinkGeneration",), ()),
    "pcie_generation_max": (("nvmlDeviceGetMaxPcieLinkGeneration",), ()),
    "pcie_width": (("nvmlDeviceGetCurrPcieLinkWidth",), ()),
    "pcie_width_max": (("nvmlDeviceGetMaxPcieLinkWidth",), ()),
    "ecc_mode": (("nvmlDeviceGetEccMode",), ()),
    "temperature": (("nvmlDeviceGetTemperature",), (_TEMPERATURE_GPU,)),
    "power_limit": (("nvmlDeviceGetPowerManagementLimit",), ()),
    "power_limit_default": (("nvmlDeviceGetPowerManagementDefaultLimit",), ()),
    "clocks_event_reasons": (
        ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"),
        (),
    ),
}
_CUDA_VERSION = ("nvmlSystemGetCudaDriverVersion_v2", "nvmlSystemGetCudaDriverVersion")


@dataclass(frozen=True, slots=True)
class NvmlError:
    """Why NVML, or one GPU, gave no answers; `code` is NVML's own number."""

    words: str
    code: int | None = None


@dataclass(frozen=True, slots=True)
class NvmlAnswers:
    """What the driver answered."""

    driver_version: str | None = None
    cuda_version: int | None = None
    gpus: tuple[dict[str, Any], ...] = ()
    error: NvmlError | None = None


def read_answers(files: HostFiles) -> tuple[NvmlAnswers | None, tuple[Text, ...]]:
    """The answers noted in a captured tree; None when its machine had no driver."""
    document = files.text(NVML_CAPTURE)
    if document is None:
        return None, ()
    try:
        return msgspec.json.decode(document, type=NvmlAnswers), ()
    except (ValueError, RecursionError):
        doubt = Text(
            f"{NVML_CAPTURE} could not be read: the GPUs are unknown.",
            f"无法读取 {NVML_CAPTURE}：GPU 情况未知。",
        )
        return None, (doubt,)


def ask_driver(nvml: Any = None) -> NvmlAnswers | None:
    """The answers of this machine's driver; None when there is no driver library.

    `nvml` is the module to ask, `pynvml` unless a test brings its own. Waits at most a minute:
    a sick card can keep NVML from ever answering.
    """
    library = pynvml if nvml is None else nvml
    answers: list[NvmlAnswers | None] = []
    asking = threading.Thread(target=lambda: answers.append(_ask(library)), daemon=True)
    asking.start()
    asking.join(_ANSWER_WITHIN_S)
    if not answers:
        return NvmlAnswers(error=NvmlError(f"no answer within {_ANSWER_WITHIN_S:.0f} s"))
    return answers[0]


def _ask(nvml: Any) -> NvmlAnswers | None:
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        if _code(error) == nvml.NVML_ERROR_LIBRARY_NOT_FOUND:
            return None
        return NvmlAnswers(error=NvmlError(str(error), _code(error)))
    try:
        count = _first_answer(nvml, ("nvmlDeviceGetCount",), ())
        driver = _first_answer(nvml, ("nvmlSystemGetDriverVersion",), ())
        cuda = _first_answer(nvml, _CUDA_VERSION, ())
        return NvmlAnswers(
            driver_version=driver if isinstance(driver, str) else None,
            cuda_version=cuda if isinstance(cuda, int) else None,
            gpus=tuple(_ask_gpu(nvml, i) for i in range(min(_whole(count), _GPUS_MAX))),
        )
    finally:
        _first_answer(nvml, ("nvmlShutdown",), ())


def _ask_gpu(nvml: Any, index: int) -> dict[str, Any]:
    """The answers of one GPU; only an `error` when the driver gives no handle for it."""
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        return {"error": {"words": str(error), "code": _code(error)}}
    answers = {
        query: _first_answer(nvml, functions, (handle, *arguments))
        for query, (functions, arguments) in GPU_QUERIES.items()
    }
    return {query: answer for query, answer in answers.items() if answer is not None}


def _first_answer(nvml: Any, functions: tuple[str, ...], arguments: tuple[Any, ...]) -> Any:
    """The answer of the first function that this library and driver have; None if none has."""
    for name in functions:
        function: Callable[..., Any] | None = getattr(nvml, name, None)
        if function is None:
            continue
        try:
            return _plain(function(*arguments))
        except nvml.NVMLError:
            continue
    return None


def _plain(answer: Any) -> Any:
    """An NVML answer as JSON knows it: bytes become text, structures become objects."""
    if isinstance(answer, bytes):
        return answer.decode("utf-8", errors="replace")
    if isinstance(answer, ctypes.Structure):
        return {
            field[0]: _plain(getattr(answer, field[0])) for field in getattr(answer, "_fields_", ())
        }
    if isinstance(answer, list | tuple):
        return [_plain(item) for item in answer]
    return answer if isinstance(answer, str | int | float | bool) else None


def _code(error: Any) -> int | None:
    value = getattr(error, "value", None)
    return value if isinstance(value, int) else None


def _whole(answer: Any) -> int:
    return answer if isinstance(answer, int) and answer > 0 else 0
