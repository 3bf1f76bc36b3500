"""NVML through a fake of its Python binding, and what becomes of the driver's answers."""

import ctypes
import threading
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from fake_nvml import FakeNvml, fails, pci_info
from hypothesis import given, settings
from hypothesis import strategies as st

from workhorse.codec import to_json
from workhorse.machine import nvml
from workhorse.machine.files import PackedFiles
from workhorse.machine.gpu import make_gpus, rated_bandwidth_bytes_per_s
from workhorse.machine.gpu_facts import read_gpus
from workhorse.machine.nvml import NvmlAnswers, ask_driver, read_answers
from workhorse.machine.pci import Card
from workhorse.records import EccCounts, Gpu, GpuProcess, RetiredPages, RowRemaps
from workhorse.units import GIB, MIB

CARD = Card("0000:18:00.0", "10de:1db6", "nvidia", 1)


def one_gpu(fake: FakeNvml) -> Gpu:
    (gpu,), _ = make_gpus(ask_driver(fake), [CARD])
    return gpu


def test_every_query_alone_decides_its_own_answer() -> None:
    fake = FakeNvml(
        nvmlSystemGetDriverVersion=lambda: b"535.183.01",
        nvmlSystemGetCudaDriverVersion_v2=fails(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND),
        nvmlSystemGetCudaDriverVersion=lambda: 12020,
        nvmlDeviceGetName=lambda _: b"Tesla V100-PCIE-32GB",
        nvmlDeviceGetUUID=lambda _: "GPU-1",
        nvmlDeviceGetPciInfo_v3=fails(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND),
        nvmlDeviceGetPciInfo=lambda _: pci_info("00000000:18:00.0"),
        nvmlDeviceGetTemperature=fails(pynvml.NVML_ERROR_NOT_SUPPORTED),
        nvmlDeviceGetCudaComputeCapability=lambda _: (7, 0),
        nvmlDeviceGetMaxClockInfo=lambda _, clock: {1: 1380, 2: 877}[clock],
        nvmlDeviceGetMemoryBusWidth=lambda _: 4096,
        nvmlDeviceGetEccMode=fails(pynvml.NVML_ERROR_NOT_SUPPORTED),
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda _: 0x4 | 0x40 | 0x8000,
        nvmlDeviceGetPowerManagementLimit=lambda _: 250000,
    )
    gpus, driver = make_gpus(ask_driver(fake), [CARD])
    assert fake.closed == 1
    assert driver is not None and (driver.version, driver.cuda) == ("535.183.01", "12.2")
    (gpu,) = gpus
    assert gpu.name == "Tesla V100-PCIE-32GB" and gpu.pci_address == "0000:18:00.0"
    assert gpu.numa_node == 1 and gpu.compute_capability == (7, 0)
    assert gpu.rated_bandwidth_bytes_per_s == pytest.approx(898e9, rel=1e-3)
    assert gpu.throttle_reasons == ("SW power cap", "HW thermal slowdown", "0x8000")
    assert gpu.power_limit_w == 250.0 and gpu.power_limit_default_w is None
    assert gpu.ecc_enabled is None and gpu.memory_total_bytes is None and gpu.temperature_c is None


def test_the_state_of_a_card() -> None:
    ecc = {(0, 0): 5, (1, 0): 0, (0, 1): 12, (1, 1): 1}
    fake = FakeNvml(
        nvmlDeviceGetTotalEccErrors=lambda _, kind, since: ecc[kind, since],
        nvmlDeviceGetRetiredPages_v2=fails(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND),
        nvmlDeviceGetRetiredPages=lambda _, cause: [0x1000] * (2 if cause == 0 else 1),
        nvmlDeviceGetRetiredPagesPendingStatus=lambda _: 1,
        nvmlDeviceGetRemappedRows=lambda _: (3, 1, 0, 1),
        nvmlDeviceGetClockInfo=lambda _, clock: {1: 135, 2: 877}[clock],
        nvmlDeviceGetMaxClockInfo=lambda _, clock: {1: 1380, 2: 877}[clock],
        nvmlDeviceGetPowerUsage=lambda _: 24_550,
        nvmlDeviceGetPowerManagementLimitConstraints=lambda _: [100_000, 250_000],
        nvmlDeviceGetTemperatureThreshold=lambda _, threshold: {1: 87}[threshold],
        nvmlDeviceGetTemperatureV=lambda _, sensor: 41,
        nvmlDeviceGetFanSpeed=fails(pynvml.NVML_ERROR_NOT_SUPPORTED),
        nvmlDeviceGetPerformanceState=lambda _: 8,
        nvmlDeviceGetUtilizationRates=lambda _: pynvml.c_nvmlUtilization_t(gpu=7, memory=1),
        nvmlDeviceGetPersistenceMode=lambda _: 0,
        nvmlDeviceGetComputeMode=lambda _: 3,
        nvmlDeviceGetMigMode=lambda _: [1, 1],
        nvmlDeviceGetBAR1MemoryInfo=lambda _: pynvml.c_nvmlBAR1Memory_t(bar1Total=32 * GIB),
        nvmlDeviceGetPcieReplayCounter=lambda _: 4,
        nvmlDeviceGetGpuMaxPcieLinkGeneration=lambda _: 3,
    )
    gpu = one_gpu(fake)
    assert gpu.ecc == EccCounts(5, 0, 12, 1)
    assert gpu.retired_pages == RetiredPages(2, 1, True)
    assert gpu.row_remaps == RowRemaps(3, 1, False, True)
    assert (gpu.sm_clock_now_mhz, gpu.sm_clock_max_mhz, gpu.memory_clock_now_mhz) == (
        135,
        1380,
        877,
    )
    assert (gpu.power_draw_w, gpu.power_limit_max_w) == (24.55, 250.0)
    assert (gpu.temperature_c, gpu.slowdown_temperature_c, gpu.fan_percent) == (41, 87, None)
    assert (gpu.performance_state, gpu.busy_percent, gpu.persistence) == (8, 7, False)
    assert gpu.compute_mode == "exclusive process" and gpu.mig is True
    assert gpu.bar1_bytes == 32 * GIB and gpu.pcie_replays == 4 and gpu.pcie_generation_card == 3


def field(value: int, *, kind: int = 1, code: int = 0) -> Any:
    return SimpleNamespace(
        valueType=kind, nvmlReturn=code, value=SimpleNamespace(uiVal=value, sllVal=value)
    )


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ([field(62)], 62),
        ([field(62, kind=4)], 62),
        ([field(62, code=3)], None),  # not supported
        ([field(62, kind=77)], None),  # a type of tomorrow
        ([field(0)], None),  # no sensor
        ([], None),
        (None, None),
    ],
)
def test_memory_temperature_is_a_numbered_field(answer: Any, expected: int | None) -> None:
    fake = FakeNvml(nvmlDeviceGetFieldValues=lambda _, fields: {82: answer}[fields[0]])
    assert one_gpu(fake).memory_temperature_c == expected


def test_processes_are_programs_without_path_and_arguments() -> None:
    def listed(*processes: tuple[int, int | None]) -> Any:
        return lambda _: [SimpleNamespace(pid=p, usedGpuMemory=m) for p, m in processes]

    names = {7: "/srv/someone/bin/python3 /srv/someone/x.py", 9: b"/usr/lib/xorg/Xorg"}
    fake = FakeNvml(
        nvmlDeviceGetComputeRunningProcesses_v3=fails(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND),
        nvmlDeviceGetComputeRunningProcesses_v2=listed((7, 300 * MIB), (8, None)),
        nvmlDeviceGetGraphicsRunningProcesses_v3=listed((7, 300 * MIB), (9, 4 * MIB)),
        nvmlSystemGetProcessName=lambda pid: names[pid] if pid in names else fails(6)(),
    )
    answers = ask_driver(fake)
    assert "someone" not in to_json(answers)
    (gpu,), _ = make_gpus(answers, [CARD])
    assert gpu.processes == (
        GpuProcess(7, "python3", 300 * MIB),
        GpuProcess(8, None, None),
        GpuProcess(9, "Xorg", 4 * MIB),
    )


def test_old_libraries_are_asked_by_their_old_functions() -> None:
    def processes(_: Any, count: Any, found: Any) -> int:
        count._obj.value = 1
        found[0].pid, found[0].usedGpuMemory = 12, 5 * MIB
        return 0

    def pci(_: Any, info: Any) -> int:
        info._obj.busId, info._obj.pciDeviceId = b"0000:18:00.0", 0x1DB610DE
        return 0

    symbols = {
        "nvmlDeviceGetComputeRunningProcesses": processes,
        "nvmlDeviceGetPciInfo_v2": pci,
    }
    fake = FakeNvml(
        _nvmlGetFunctionPointer=symbols.__getitem__,
        nvmlDeviceGetPciInfo_v3=fails(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND),
    )
    gpu = one_gpu(fake)
    assert gpu.processes == (GpuProcess(12, None, 5 * MIB),)
    assert gpu.pci_address == "0000:18:00.0" and gpu.pci_id == "10de:1db6" and gpu.numa_node == 1


def test_no_process_is_known_to_be_none() -> None:
    idle = FakeNvml(nvmlDeviceGetComputeRunningProcesses_v3=lambda _: [])
    assert one_gpu(idle).processes == ()
    assert one_gpu(FakeNvml()).processes is None


def test_a_binding_that_stumbles_over_an_answer_costs_that_answer_alone() -> None:
    def stumble(*_: Any) -> Any:
        return b"\xff".decode()

    fake = FakeNvml(nvmlDeviceGetName=stumble, nvmlDeviceGetPowerUsage=lambda _: 5000)
    gpu = one_gpu(fake)
    assert gpu.name == "NVIDIA GPU" and gpu.power_draw_w == 5.0


def test_no_driver_library_is_no_gpu() -> None:
    fake = FakeNvml(nvmlInit=fails(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND))
    assert ask_driver(fake) is None
    assert make_gpus(None, []) == ((), None)


def test_a_driver_that_never_answers_is_a_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "_ANSWER_WITHIN_S", 0.05)
    let_go = threading.Event()

    def hang() -> None:
        let_go.wait()

    answers = ask_driver(FakeNvml(nvmlInit=hang))
    let_go.set()
    assert answers is not None and answers.error is not None
    assert answers.error.code is None and "no answer" in answers.error.words


def test_a_driver_without_devices_or_count() -> None:
    assert make_gpus(ask_driver(FakeNvml(0)), [])[0] == ()
    assert make_gpus(ask_driver(FakeNvml(nvmlDeviceGetCount=fails(999))), [])[0] == ()


BESIDE = ("memory_temperature", "processes", "nvlinks")


@pytest.mark.parametrize(
    "garbage",
    [-1, 2**64, 2**32 - 1, 1.5, True, "12", "\x00", [], [[]], [-1, -1], {}, {"total": -5}, None],
)
def test_garbage_answers_become_unknown(garbage: Any) -> None:
    facts = dict.fromkeys((*nvml.GPU_QUERIES, *BESIDE), garbage)
    answers = NvmlAnswers(driver_version="\x1b]0;x", cuda_version=-7, gpus=(facts,))
    gpus, driver = make_gpus(answers, [CARD])
    (gpu,) = gpus
    assert gpu.name and gpu.compute_capability is None and gpu.pci_address is None
    assert gpu.rated_bandwidth_bytes_per_s is None and gpu.numa_node is None
    assert gpu.memory_total_bytes is None and gpu.temperature_c is None
    assert driver is not None and driver.cuda is None
    assert "\\u001b" not in to_json(gpus) + to_json(driver)


def test_rated_bandwidth_of_known_cards() -> None:
    assert rated_bandwidth_bytes_per_s(877, 4096) == pytest.approx(898e9, rel=1e-3)  # V100
    assert rated_bandwidth_bytes_per_s(3201, 6016) == pytest.approx(4814e9, rel=1e-3)  # H200
    assert rated_bandwidth_bytes_per_s(3615, 384) == pytest.approx(347e9, rel=1e-3)  # P40
    assert rated_bandwidth_bytes_per_s(5001, 256) == pytest.approx(320e9, rel=1e-3)  # T4
    assert rated_bandwidth_bytes_per_s(None, 4096) is None


@pytest.mark.parametrize("document", ["", "[]", '{"gpus": 5}', '{"gpus": [5]}', "[" * 9999])
def test_a_broken_capture_of_the_driver_is_a_doubt(document: str) -> None:
    answers, doubts = read_answers(PackedFiles({"nvml.json": document}))
    assert answers is None and "nvml.json" in doubts[0].en


JSON = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**65), 2**65), st.floats(), st.text(max_size=8)
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from(["pid", "gpu", "total", "busId", "bar1Total"]), inner),
    ),
    max_leaves=6,
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from([*nvml.GPU_QUERIES, *BESIDE]), JSON))
def test_any_answers_give_a_gpu(facts: dict[str, Any]) -> None:
    (gpu,), _ = make_gpus(NvmlAnswers(gpus=(facts,)), [CARD])
    document = to_json(gpu)
    assert len(document) < MIB and "NaN" not in document


def test_structures_become_objects_and_arrays_nothing() -> None:
    class Odd(ctypes.Structure):
        _fields_ = (("busId", ctypes.c_char * 32), ("reserved", ctypes.c_uint * 4))

    answers = ask_driver(FakeNvml(nvmlDeviceGetPciInfo_v3=lambda _: Odd(busId=b"\xff0000")))
    assert answers is not None and to_json(answers)
    assert answers.gpus[0]["pci"] == {"busId": "\ufffd0000", "reserved": None}


def test_a_card_with_other_memory_has_the_capability_of_its_chip() -> None:
    facts = {"name": "NVIDIA GeForce RTX 3080", "pci": {"busId": "00000000:18:00.0",
             "pciDeviceId": 0x220610DE}, "memory": {"total": 20 * 1024**3}}  # fmt: skip
    found = read_gpus(PackedFiles({}), NvmlAnswers(gpus=(facts,)), container=False)
    assert found.gpus[0].compute_capability == (8, 6)
