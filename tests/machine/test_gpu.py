"""NVML through a fake of its Python binding, and what becomes of the driver's answers."""

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import pynvml
import pytest
from captured_machines import packed

from workhorse.codec import to_json
from workhorse.machine import nvml
from workhorse.machine.files import PackedFiles
from workhorse.machine.gpu import make_gpus, rated_bandwidth_bytes_per_s
from workhorse.machine.nvml import NvmlAnswers, ask_driver, read_answers
from workhorse.machine.pci import Card, pci_address, read_cards
from workhorse.machine.probe import read_machine

CARD = Card("0000:18:00.0", "10de:1db6", "nvidia", 1)


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


def test_every_query_alone_decides_its_own_answer() -> None:
    fake = FakeNvml(
        nvmlSystemGetDriverVersion=lambda: b"535.183.01",
        nvmlSystemGetCudaDriverVersion_v2=fails(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND),
        nvmlSystemGetCudaDriverVersion=lambda: 12020,
        nvmlDeviceGetName=lambda _: b"Tesla V100-PCIE-32GB",
        nvmlDeviceGetUUID=lambda _: "GPU-1",
        nvmlDeviceGetPciInfo_v3=fails(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND),
        nvmlDeviceGetPciInfo=lambda _: pci_info("00000000:18:00.0"),
        nvmlDeviceGetCudaComputeCapability=lambda _: (7, 0),
        nvmlDeviceGetMaxClockInfo=lambda _, clock: {2: 877}[clock],
        nvmlDeviceGetMemoryBusWidth=lambda _: 4096,
        nvmlDeviceGetEccMode=fails(pynvml.NVML_ERROR_NOT_SUPPORTED),
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda _: 0x4 | 0x40 | 0x8000,
        nvmlDeviceGetPowerManagementLimit=lambda _: 250000,
    )
    gpus, driver, doubts = make_gpus(ask_driver(fake), [CARD])
    assert fake.closed == 1 and doubts == ()
    assert driver is not None and (driver.version, driver.cuda) == ("535.183.01", "12.2")
    (gpu,) = gpus
    assert gpu.name == "Tesla V100-PCIE-32GB" and gpu.pci_address == "0000:18:00.0"
    assert gpu.numa_node == 1 and gpu.compute_capability == (7, 0)
    assert gpu.rated_bandwidth_bytes_per_s == pytest.approx(898e9, rel=1e-3)
    assert gpu.throttle_reasons == ("SW power cap", "HW thermal slowdown", "0x8000")
    assert gpu.power_limit_w == 250.0 and gpu.power_limit_default_w is None
    assert gpu.ecc_enabled is None and gpu.memory_total_bytes is None and gpu.temperature_c is None


def pci_info(bus_id: str) -> ctypes.Structure:
    info: ctypes.Structure = pynvml.nvmlPciInfo_t()
    info.busId = bus_id.encode()  # type: ignore[attr-defined]
    return info


def test_no_driver_library_is_no_gpu_and_no_doubt() -> None:
    fake = FakeNvml(nvmlInit=fails(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND))
    assert ask_driver(fake) is None
    assert make_gpus(None, []) == ((), None, ())


@pytest.mark.parametrize(
    ("code", "said", "remedy"),
    [
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "mismatch", "restart"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "ermission", "/dev/nvidia"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "Not Loaded", "modprobe"),
        (pynvml.NVML_ERROR_UNKNOWN, "Unknown", "dmesg"),
    ],
)
def test_a_library_that_does_not_start_is_a_doubt_with_its_words(
    code: int, said: str, remedy: str
) -> None:
    gpus, driver, doubts = make_gpus(ask_driver(FakeNvml(nvmlInit=fails(code))), [CARD])
    assert (gpus, driver, len(doubts)) == ((), None, 1)
    assert said in doubts[0].en and remedy in doubts[0].en and CARD.pci_id in doubts[0].en
    assert said in doubts[0].zh and "驱动" in doubts[0].zh


def test_a_driver_that_never_answers_is_a_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "_ANSWER_WITHIN_S", 0.05)
    let_go = threading.Event()

    def hang() -> None:
        let_go.wait()

    _, _, doubts = make_gpus(ask_driver(FakeNvml(nvmlInit=hang)), [])
    let_go.set()
    assert "no answer" in doubts[0].en


def test_one_lost_gpu_leaves_the_others() -> None:
    def handle(index: int) -> int:
        if index == 0:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return index

    fake = FakeNvml(2, nvmlDeviceGetHandleByIndex=handle, nvmlDeviceGetName=lambda i: f"card {i}")
    gpus, _, doubts = make_gpus(ask_driver(fake), [CARD])
    assert [(gpu.index, gpu.name) for gpu in gpus] == [(1, "card 1")]
    assert len(doubts) == 1 and doubts[0].en.startswith("GPU 0")


def test_a_driver_without_devices_or_count() -> None:
    assert make_gpus(ask_driver(FakeNvml(0)), [])[0] == ()
    assert make_gpus(ask_driver(FakeNvml(nvmlDeviceGetCount=fails(999))), [])[0] == ()


@pytest.mark.parametrize(
    "garbage",
    [-1, 2**64, 2**32 - 1, 1.5, True, "12", "\x00", [], [[]], [-1, -1], {}, {"total": -5}, None],
)
def test_garbage_answers_become_unknown(garbage: Any) -> None:
    facts = dict.fromkeys(nvml.GPU_QUERIES, garbage)
    answers = NvmlAnswers(driver_version="\x1b]0;x", cuda_version=-7, gpus=(facts,))
    gpus, driver, _ = make_gpus(answers, [CARD])
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


# ---------------------------------------------------------------- the bus


@pytest.mark.parametrize(
    ("held_by", "said"),
    [(None, "no driver"), ("nouveau", "nouveau"), ("nvidia", "libnvidia-ml"), ("vfio-pci", "vfio")],
)
def test_a_card_without_a_working_driver_is_named(held_by: str | None, said: str) -> None:
    files = packed("machine_a")
    del files["nvml.json"]
    root = "sys/bus/pci/devices/0000:82:00.0"
    files[f"{root}/uevent"] = f"DRIVER={held_by}\n" if held_by else "PCI_ID=10DE:1DB4\n"
    machine = read_machine(PackedFiles(files))
    assert machine.gpus == () and len(machine.doubts) == 1
    assert "0000:82:00.0" in machine.doubts[0].en and "10de:1db4" in machine.doubts[0].zh
    assert said in machine.doubts[0].en


def test_a_card_that_the_driver_does_not_show_is_named() -> None:
    files = packed("machine_a")
    for name in ("vendor", "class", "device"):
        root = "sys/bus/pci/devices/0000:"
        files[f"{root}03:00.0/{name}"] = files[f"{root}82:00.0/{name}"]
    machine = read_machine(PackedFiles(files))
    assert len(machine.gpus) == 1
    assert len(machine.doubts) == 1 and "0000:03:00.0" in machine.doubts[0].en


def test_only_nvidia_display_and_compute_cards_count() -> None:
    root = "sys/bus/pci/devices"
    files: dict[str, object] = {}
    for address, vendor, kind in (
        ("0000:01:00.0", "0x10de", "0x030000"),
        ("0000:01:00.1", "0x10de", "0x040300"),  # the card's own sound device
        ("0000:02:00.0", "0x1a03", "0x030000"),  # the board's own display
    ):
        files |= {f"{root}/{address}/vendor": vendor, f"{root}/{address}/class": kind}
    (card,) = read_cards(PackedFiles(files))
    assert card == Card("0000:01:00.0", "10de:?", None, None)


def test_pci_addresses() -> None:
    assert pci_address("00000000:AF:00.0") == "0000:af:00.0" == pci_address("0000:af:00.0")
    assert pci_address("af:00.0") is None and pci_address(None) is None


def test_a_capture_of_a_driver_that_fails_takes_the_same_way() -> None:
    files = packed("machine_b")
    files["nvml.json"] = {"error": {"code": 18, "words": "Driver/library version mismatch"}}
    machine = read_machine(PackedFiles(files))
    assert machine.gpus == () and "restart" in machine.doubts[0].en


@pytest.mark.parametrize("document", ["", "[]", '{"gpus": 5}', '{"gpus": [5]}', "[" * 9999])
def test_a_broken_capture_of_the_driver_is_a_doubt(document: str) -> None:
    answers, doubts = read_answers(PackedFiles({"nvml.json": document}))
    assert answers is None and "nvml.json" in doubts[0].en
