"""Ask the NVIDIA driver through NVML, or read what it answered from a capture.

Both give one document, `NvmlAnswers`; `gpu` makes GPUs of it. As JSON it is the `nvml.json` of a
captured tree:

    {"driver_version": "580.159.04", "cuda_version": 13000,
     "gpus": [{"name": "NVIDIA H200", "compute_capability": [9, 0], ...}],
     "links": [{"first": 0, "second": 1, "ancestor": 50, "p2p_read": 0}]}

Each GPU holds the raw answer to each query of `GPU_QUERIES`, in the driver's own units; a query
that failed is left out. When NVML itself failed there is only an `error`: its code and words.
Beside these queries a GPU has `memory_temperature`, `processes` (programs' base names only) and
`nvlinks`: the far end of each active link.
"""

import ctypes
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import msgspec
import pynvml

from workhorse.machine.files import HostFiles
from workhorse.machine.nvml_old import first_pci_info, first_processes
from workhorse.machine.nvml_values import base_name, whole
from workhorse.text import Text

NVML_CAPTURE = "nvml.json"
_GPUS_MAX = 64
_LINKS_MAX = _GPUS_MAX * (_GPUS_MAX - 1) // 2
_PROCESSES_MAX = 64
# Eight cards without persistence mode need some 15 s to wake; a card that fell off the bus can
# hold NVML for ever.
_ANSWER_WITHIN_S = 60.0

# Enumerators of nvml.h (driver 580).
_CLOCK_SM, _CLOCK_MEM = 1, 2
_TEMPERATURE_GPU = 0
_THRESHOLD_SLOWDOWN = 1
_CORRECTED, _UNCORRECTED = 0, 1
_SINCE_LOAD, _LIFETIME = 0, 1
_RETIRED_SINGLE_BIT, _RETIRED_DOUBLE_BIT = 0, 1
_P2P_READ = 0
_FIELD_MEMORY_TEMPERATURE = 82
_NVLINKS_MAX = 36  # NVML_NVLINK_MAX_LINKS
# Which member of the answer's union holds the value, by nvmlValueType_t.
_FIELD_MEMBERS = {1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}

# Query: the functions that answer it, newest first, and their arguments after the handle.
GPU_QUERIES: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
    "name": (("nvmlDeviceGetName",), ()),
    "uuid": (("nvmlDeviceGetUUID",), ()),
    "pci": (("nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo"), ()),
    "compute_capability": (("nvmlDeviceGetCudaComputeCapability",), ()),
    "memory": (("nvmlDeviceGetMemoryInfo",), ()),
    "memory_bus_width": (("nvmlDeviceGetMemoryBusWidth",), ()),
    "memory_clock": (("nvmlDeviceGetClockInfo",), (_CLOCK_MEM,)),
    "memory_clock_max": (("nvmlDeviceGetMaxClockInfo",), (_CLOCK_MEM,)),
    "sm_clock": (("nvmlDeviceGetClockInfo",), (_CLOCK_SM,)),
    "sm_clock_max": (("nvmlDeviceGetMaxClockInfo",), (_CLOCK_SM,)),
    "pcie_generation": (("nvmlDeviceGetCurrPcieLinkGeneration",), ()),
    "pcie_generation_max": (("nvmlDeviceGetMaxPcieLinkGeneration",), ()),
    "pcie_generation_card": (("nvmlDeviceGetGpuMaxPcieLinkGeneration",), ()),
    "pcie_width": (("nvmlDeviceGetCurrPcieLinkWidth",), ()),
    "pcie_width_max": (("nvmlDeviceGetMaxPcieLinkWidth",), ()),
    "pcie_replays": (("nvmlDeviceGetPcieReplayCounter",), ()),
    "bar1": (("nvmlDeviceGetBAR1MemoryInfo",), ()),
    "ecc_mode": (("nvmlDeviceGetEccMode",), ()),
    "ecc_corrected": (("nvmlDeviceGetTotalEccErrors",), (_CORRECTED, _SINCE_LOAD)),
    "ecc_uncorrected": (("nvmlDeviceGetTotalEccErrors",), (_UNCORRECTED, _SINCE_LOAD)),
    "ecc_corrected_lifetime": (("nvmlDeviceGetTotalEccErrors",), (_CORRECTED, _LIFETIME)),
    "ecc_uncorrected_lifetime": (("nvmlDeviceGetTotalEccErrors",), (_UNCORRECTED, _LIFETIME)),
    "retired_single_bit": (
        ("nvmlDeviceGetRetiredPages_v2", "nvmlDeviceGetRetiredPages"),
        (_RETIRED_SINGLE_BIT,),
    ),
    "retired_double_bit": (
        ("nvmlDeviceGetRetiredPages_v2", "nvmlDeviceGetRetiredPages"),
        (_RETIRED_DOUBLE_BIT,),
    ),
    "retired_pending": (("nvmlDeviceGetRetiredPagesPendingStatus",), ()),
    "remapped_rows": (("nvmlDeviceGetRemappedRows",), ()),
    "temperature": (("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"), (_TEMPERATURE_GPU,)),
    "slowdown_temperature": (("nvmlDeviceGetTemperatureThreshold",), (_THRESHOLD_SLOWDOWN,)),
    "fan_speed": (("nvmlDeviceGetFanSpeed",), ()),
    "power_draw": (("nvmlDeviceGetPowerUsage",), ()),
    "energy": (("nvmlDeviceGetTotalEnergyConsumption",), ()),
    "power_limit": (("nvmlDeviceGetPowerManagementLimit",), ()),
    "power_limit_default": (("nvmlDeviceGetPowerManagementDefaultLimit",), ()),
    "power_limits": (("nvmlDeviceGetPowerManagementLimitConstraints",), ()),
    "performance_state": (("nvmlDeviceGetPerformanceState",), ()),
    "utilization": (("nvmlDeviceGetUtilizationRates",), ()),
    "persistence": (("nvmlDeviceGetPersistenceMode",), ()),
    "compute_mode": (("nvmlDeviceGetComputeMode",), ()),
    "mig_mode": (("nvmlDeviceGetMigMode",), ()),
    "clocks_event_reasons": (
        ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"),
        (),
    ),
}
_CUDA_VERSION = ("nvmlSystemGetCudaDriverVersion_v2", "nvmlSystemGetCudaDriverVersion")
_PROCESSES = ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2")
_SHOWING = ("nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v2")


@dataclass(frozen=True, slots=True)
class NvmlError:
    """Why NVML, or one GPU, gave no answers; `code` is NVML's own number."""

    words: str
    code: int | None = None


@dataclass(frozen=True, slots=True)
class NvmlAnswers:
    """What the driver answered; `links` has one object for each pair of GPUs."""

    driver_version: str | None = None
    cuda_version: int | None = None
    gpus: tuple[dict[str, Any], ...] = ()
    links: tuple[dict[str, Any], ...] = ()
    error: NvmlError | None = None
    cut: bool = False  # a text that ends before its first card: there may be some


def read_answers(files: HostFiles) -> tuple[NvmlAnswers | None, tuple[Text, ...]]:
    """The answers noted in a captured tree; None when its machine had no driver."""
    document = files.text(NVML_CAPTURE)
    if document is None:
        return None, ()
    try:
        answers = msgspec.json.decode(document, type=NvmlAnswers)
        bounded = replace(answers, gpus=answers.gpus[:_GPUS_MAX], links=answers.links[:_LINKS_MAX])
        return bounded, ()
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


class OpenDriver:
    """NVML kept open for a service: opening it each time wakes cards and costs CPU time.

    Of each card it asks `changing` each time and the other `queries` once. A sick card can keep
    NVML from answering: then `ask` says so until it does, and asks nothing meanwhile.
    """

    def __init__(self, queries: Collection[str], changing: Collection[str], nvml: Any = None):
        self._nvml = pynvml if nvml is None else nvml
        self._queries, self._changing = frozenset(queries), frozenset(changing)
        self._open = self._absent = False
        self._lasting: dict[int, dict[str, Any]] = {}
        self._asking: threading.Thread | None = None

    def ask(
        self, within_s: float = _ANSWER_WITHIN_S, *, processes: bool = False
    ) -> NvmlAnswers | None:
        """The answers now; None when there is no driver library. Blocks up to `within_s`."""
        if self._absent:
            return None
        if self._asking is not None and self._asking.is_alive():
            return NvmlAnswers(error=NvmlError("no answer yet"))
        answers: list[NvmlAnswers | None] = []
        self._asking = threading.Thread(
            target=lambda: answers.append(self._ask(processes)), daemon=True
        )
        self._asking.start()
        self._asking.join(within_s)
        return answers[0] if answers else NvmlAnswers(error=NvmlError("no answer"))

    def close(self) -> None:
        """Give NVML back; safe at any time."""
        if self._open and not (self._asking is not None and self._asking.is_alive()):
            self._open = False
            _first_answer(self._nvml, ("nvmlShutdown",), ())

    def _ask(self, processes: bool) -> NvmlAnswers | None:
        nvml = self._nvml
        if not self._open:
            try:
                nvml.nvmlInit()
            except nvml.NVMLError as error:
                self._absent = _code(error) == nvml.NVML_ERROR_LIBRARY_NOT_FOUND
                return None if self._absent else NvmlAnswers(error=NvmlError(str(error)))
            self._open = True
        count = min(whole(_first_answer(nvml, ("nvmlDeviceGetCount",), ())) or 0, _GPUS_MAX)
        return NvmlAnswers(gpus=tuple(self._card(index, processes) for index in range(count)))

    def _card(self, index: int, processes: bool) -> dict[str, Any]:
        nvml = self._nvml
        handles: dict[int, Any] = {}
        if index not in self._lasting:
            lasting = _ask_gpu(
                nvml, index, handles, several=False, queries=self._queries, processes=False
            )
            if "error" in lasting:
                return lasting
            self._lasting[index] = lasting
        now = _ask_gpu(
            nvml, index, handles, several=False, queries=self._changing, processes=processes
        )
        return now if "error" in now else {**self._lasting[index], **now}


def _ask(nvml: Any) -> NvmlAnswers | None:
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        if _code(error) == nvml.NVML_ERROR_LIBRARY_NOT_FOUND:
            return None
        return NvmlAnswers(error=NvmlError(str(error), _code(error)))
    try:
        count = min(whole(_first_answer(nvml, ("nvmlDeviceGetCount",), ())) or 0, _GPUS_MAX)
        driver = _first_answer(nvml, ("nvmlSystemGetDriverVersion",), ())
        cuda = _first_answer(nvml, _CUDA_VERSION, ())
        handles: dict[int, Any] = {}
        return NvmlAnswers(
            driver_version=driver if isinstance(driver, str) else None,
            cuda_version=cuda if isinstance(cuda, int) else None,
            gpus=tuple(_ask_gpu(nvml, i, handles, several=count > 1) for i in range(count)),
            links=tuple(_ask_link(nvml, *pair) for pair in combinations(handles.items(), 2)),
        )
    finally:
        _first_answer(nvml, ("nvmlShutdown",), ())


def _ask_gpu(
    nvml: Any,
    index: int,
    handles: dict[int, Any],
    *,
    several: bool,
    queries: Collection[str] = GPU_QUERIES,
    processes: bool = True,
) -> dict[str, Any]:
    """The answers of one GPU; only an `error` when the driver gives no handle for it."""
    try:
        handle = handles[index] = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        return {"error": {"words": str(error), "code": _code(error)}}
    answers = {
        query: _first_answer(nvml, functions, (handle, *arguments))
        for query, (functions, arguments) in GPU_QUERIES.items()
        if query in queries
    }
    if "pci" in answers and answers["pci"] is None:
        answers["pci"] = _plain(first_pci_info(nvml, handle))
    answers["memory_temperature"] = _field(nvml, handle, _FIELD_MEMORY_TEMPERATURE)
    answers["processes"] = _ask_processes(nvml, handle) if processes else None
    answers["nvlinks"] = _ask_nvlinks(nvml, handle) if several else None
    return {query: answer for query, answer in answers.items() if answer is not None}


def _ask_link(nvml: Any, one: tuple[int, Any], other: tuple[int, Any]) -> dict[str, Any]:
    """What the driver says of the way between two GPUs."""
    (first, first_handle), (second, second_handle) = one, other
    answers = {
        "first": first,
        "second": second,
        "ancestor": _first_answer(
            nvml, ("nvmlDeviceGetTopologyCommonAncestor",), (first_handle, second_handle)
        ),
        "p2p_read": _first_answer(
            nvml, ("nvmlDeviceGetP2PStatus",), (first_handle, second_handle, _P2P_READ)
        ),
    }
    return {query: answer for query, answer in answers.items() if answer is not None}


def _ask_nvlinks(nvml: Any, handle: Any) -> list[dict[str, Any]]:
    """The far end of each active NVLink: its PCI address and what it is (2: a switch)."""
    ends: list[dict[str, Any]] = []
    for link in range(_NVLINKS_MAX):
        state = _first_answer(nvml, ("nvmlDeviceGetNvLinkState",), (handle, link))
        if state is None:
            break  # a card without NVLink, or past its last one
        if state != 1:
            continue
        remote = _first_answer(nvml, ("nvmlDeviceGetNvLinkRemotePciInfo",), (handle, link))
        ends.append(
            {
                "remote": remote.get("busId") if isinstance(remote, dict) else None,
                "type": _first_answer(
                    nvml, ("nvmlDeviceGetNvLinkRemoteDeviceType",), (handle, link)
                ),
                "version": _first_answer(nvml, ("nvmlDeviceGetNvLinkVersion",), (handle, link)),
            }
        )
    return ends


def _ask_processes(nvml: Any, handle: Any) -> list[dict[str, Any]] | None:
    """Who holds memory of the card; a process that computes and draws is listed once."""
    found = _call(nvml, _PROCESSES, (handle,))
    if found is None:
        found = first_processes(nvml, handle)
    if not isinstance(found, list):
        return None
    showing = _call(nvml, _SHOWING, (handle,))
    known: dict[int, dict[str, Any]] = {}
    for process in [*found, *(showing if isinstance(showing, list) else [])]:
        pid = whole(getattr(process, "pid", None))
        if pid is None or pid in known or len(known) == _PROCESSES_MAX:
            continue
        name = _first_answer(nvml, ("nvmlSystemGetProcessName",), (pid,))
        memory = whole(getattr(process, "usedGpuMemory", None))
        known[pid] = {"pid": pid, "name": base_name(name), "memory": memory}
    return list(known.values())


def _field(nvml: Any, handle: Any, field: int) -> int | None:
    """The value of one of NVML's numbered fields."""
    values = _call(nvml, ("nvmlDeviceGetFieldValues",), (handle, [field]))
    try:
        value = values[0]
        member = _FIELD_MEMBERS.get(value.valueType)
        answer = None if value.nvmlReturn or member is None else getattr(value.value, member)
    except (TypeError, AttributeError, IndexError, KeyError):
        return None
    return whole(answer)


def _first_answer(nvml: Any, functions: tuple[str, ...], arguments: tuple[Any, ...]) -> Any:
    """The first answer, as JSON knows it; None if no function has one."""
    return _plain(_call(nvml, functions, arguments))


def _call(nvml: Any, functions: tuple[str, ...], arguments: tuple[Any, ...]) -> Any:
    """The answer of the first function that this library and driver have; None if none has."""
    for name in functions:
        function: Callable[..., Any] | None = getattr(nvml, name, None)
        if function is None:
            continue
        try:
            return function(*arguments)
        # The binding decodes names and fills structures: a driver's garbage is a ValueError there.
        except (nvml.NVMLError, ValueError, TypeError, AttributeError, ctypes.ArgumentError):
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
    if isinstance(answer, dict):
        return {str(name): _plain(value) for name, value in answer.items()}
    return answer if isinstance(answer, str | int | float | bool) else None


def _code(error: Any) -> int | None:
    value = getattr(error, "value", None)
    return value if isinstance(value, int) else None
