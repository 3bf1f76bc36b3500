"""Copies on a card, with a stand-in for libcuda that keeps its own clock."""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from captured_machines import CAPTURES

from workhorse.codec import to_json
from workhorse.machine import cuda_driver
from workhorse.machine.cuda_driver import (
    CopyAnswer,
    CopyRequest,
    ask_child,
    copy_on_card,
    measure_copies,
    read_answers,
)
from workhorse.machine.probe import probe
from workhorse.records import CopyBandwidth, Gpu
from workhorse.units import GB, MIB

ADDRESS = "0000:18:00.0"
RATES = {"cuMemcpyDtoDAsync_v2": 400 * GB, "cuMemcpyHtoDAsync_v2": 12 * GB,
         "cuMemcpyDtoHAsync_v2": 10 * GB}  # fmt: skip


class FakeCuda:
    """libcuda with one card: copies advance its clock, events read it; nothing is copied."""

    def __init__(self, free_bytes: int = 16 * 1024 * MIB, **failing: int) -> None:
        self.free_bytes = free_bytes
        self.failing = failing
        self.clock_ms = 0.0
        self.events: dict[int, float] = {}
        self.held: list[str] = []
        self.on_card_bytes = 0

    def __getattr__(self, name: str) -> Any:
        if name == "missing" or not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            if name in self.failing:
                return self.failing[name]
            if name in RATES:
                self.clock_ms += arguments[2].value / RATES[name] * 1000
            elif method := getattr(type(self), f"_{name}", None):
                method(self, *arguments)
            return 0

        return call

    def _cuDeviceGetByPCIBusId(self, device: Any, address: bytes) -> None:
        assert address == ADDRESS.encode()
        device._obj.value = 0

    def _cuDevicePrimaryCtxRetain(self, context: Any, _: Any) -> None:
        self.held.append("context")

    def _cuDevicePrimaryCtxRelease_v2(self, _: Any) -> None:
        self.held.remove("context")

    def _cuMemGetInfo_v2(self, free: Any, total: Any) -> None:
        free._obj.value = total._obj.value = self.free_bytes

    def _cuMemAlloc_v2(self, address: Any, size: Any) -> None:
        self.on_card_bytes += size.value
        self.held.append("memory")

    def _cuMemFree_v2(self, _: Any) -> None:
        self.held.remove("memory")

    def _cuMemHostAlloc(self, *_: Any) -> None:
        self.held.append("pinned")

    def _cuMemFreeHost(self, _: Any) -> None:
        self.held.remove("pinned")

    def _cuEventCreate(self, event: Any, _: Any) -> None:
        event._obj.value = 1 + len([h for h in self.held if h == "event"])
        self.held.append("event")

    def _cuEventDestroy_v2(self, _: Any) -> None:
        self.held.remove("event")

    def _cuEventRecord(self, event: Any, _: Any) -> None:
        self.events[event.value] = self.clock_ms

    def _cuEventElapsedTime(self, elapsed: Any, begin: Any, end: Any) -> None:
        elapsed._obj.value = self.events[end.value] - self.events[begin.value]

    def _cuGetErrorName(self, code: int, name: Any) -> None:
        name._obj.value = {2: b"CUDA_ERROR_OUT_OF_MEMORY"}.get(code, b"CUDA_ERROR_ODD")


class StillCuda(FakeCuda):
    def _cuEventElapsedTime(self, elapsed: Any, begin: Any, end: Any) -> None:
        elapsed._obj.value = 0.0


def request(duration_s: float = 0.003) -> CopyRequest:
    return CopyRequest(ADDRESS, duration_s)


def test_each_way_has_its_own_rate_and_everything_is_given_back() -> None:
    fake = FakeCuda()
    answer = copy_on_card(fake, request())
    assert answer.failure is None and answer.link == (None, None)
    rates = {copy.kind: copy.bytes_per_s for copy in answer.copies}
    assert rates == {
        "device": pytest.approx(400 * GB, rel=1e-3),
        "to device": pytest.approx(12 * GB, rel=1e-3),
        "from device": pytest.approx(10 * GB, rel=1e-3),
    }
    assert all(copy.duration_s > 0 and "MiB" in copy.method for copy in answer.copies)
    assert fake.held == [] and fake.on_card_bytes <= 256 * MIB


def test_the_link_is_read_while_the_card_is_written_to() -> None:
    fake = FakeCuda()
    seen: list[float] = []

    def link() -> tuple[int | None, int | None]:
        seen.append(fake.clock_ms)
        return (1, 16) if len(seen) == 1 else (3, 16)

    answer = copy_on_card(fake, request(), link)
    assert answer.link == ((3, 16) if len(seen) > 1 else (1, 16))
    # Copies were queued before each reading: the clock had moved on.
    assert seen and all(clock > 0 for clock in seen)


def test_a_lost_lane_stays_lost_under_load() -> None:
    assert copy_on_card(FakeCuda(), request(), lambda: (3, 8)).link == (3, 8)
    assert copy_on_card(FakeCuda(), request(), lambda: (None, None)).link == (None, None)


@pytest.mark.parametrize(
    "call",
    ["cuInit", "cuDeviceGetByPCIBusId", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent",
     "cuMemGetInfo_v2", "cuMemAlloc_v2", "cuMemsetD32_v2", "cuMemHostAlloc", "cuEventCreate",
     "cuEventRecord", "cuEventSynchronize", "cuEventElapsedTime", *RATES],
)  # fmt: skip
def test_a_call_that_fails_is_named_and_nothing_leaks(call: str) -> None:
    fake = FakeCuda(**{call: 2})
    answer = copy_on_card(fake, request())
    assert answer.failure == f"{call}: CUDA_ERROR_OUT_OF_MEMORY"
    assert fake.held == []
    if call == "cuMemcpyDtoHAsync_v2":
        assert [copy.kind for copy in answer.copies] == ["device", "to device"]


def test_a_full_card_and_a_clock_that_stands_still() -> None:
    answer = copy_on_card(FakeCuda(free_bytes=100 * MIB), request())
    assert answer.failure is not None and "100 MiB" in answer.failure
    assert "stood still" in (copy_on_card(StillCuda(), request()).failure or "")


def test_a_library_without_a_function() -> None:
    answer = copy_on_card(object(), request())
    assert answer.failure == "cuInit is not in this driver's libcuda"


# -------------------------------------------------------------- the parent


@pytest.fixture
def gpu() -> Gpu:
    (gpu,) = probe(CAPTURES / "machine_b.json").gpus
    return gpu


COPY = CopyBandwidth("to device", 12e9, "test", 0.1)


def answering(*answers: CopyAnswer) -> Any:
    def ask(requests: Sequence[CopyRequest], limit_s: float) -> tuple[CopyAnswer, ...]:
        assert requests and limit_s > sum(request.duration_s for request in requests)
        return answers

    return ask


def test_answers_are_put_to_their_cards(gpu: Gpu) -> None:
    other = replace(gpu, index=1, pci_address="0000:af:00.0")
    ask = answering(CopyAnswer("0000:af:00.0", (COPY,), (3, 8)), CopyAnswer(ADDRESS, (), (3, 16)))
    (first, second), doubts = measure_copies((gpu, other), 0.1, ask=ask)
    assert doubts == () and second.copies == (COPY,)
    assert (first.pcie_generation_loaded, first.pcie_width_loaded) == (3, 16)
    assert (second.pcie_generation_loaded, second.pcie_width_loaded) == (3, 8)
    assert first.pcie_width_now == gpu.pcie_width_now


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"busy_percent": 93}, "93 %"),
        ({"memory_free_bytes": 20 * MIB}, "20 MiB"),
        ({"mig": True}, "MIG"),
        ({"pci_address": None}, "address"),
    ],
)
def test_a_card_in_use_is_left_alone(gpu: Gpu, change: dict[str, Any], said: str) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("asked")

    used = replace(gpu, **change)
    gpus, doubts = measure_copies((used,), 0.1, ask=refuse)
    assert gpus == (used,) and len(doubts) == 1
    assert said in doubts[0].en and "拷贝带宽" in doubts[0].zh


def test_a_failure_and_a_silence_are_doubts(gpu: Gpu) -> None:
    _, doubts = measure_copies(
        (gpu,), 0.1, ask=answering(CopyAnswer(ADDRESS, failure="cuInit: CUDA_ERROR_UNKNOWN"))
    )
    assert "cuInit: CUDA_ERROR_UNKNOWN" in doubts[0].en
    gpus, doubts = measure_copies((gpu,), 0.1, ask=answering())
    assert gpus == (gpu,) and "no answer" in doubts[0].en
    assert measure_copies((), 0.1) == ((), ())


@pytest.mark.parametrize(
    "line", [b"", b"{", b"[]", b"\xff\x00", b'{"pci_address": 5}', b"[" * 9999]
)
def test_broken_answers_are_no_answers(line: bytes) -> None:
    whole = to_json(CopyAnswer(ADDRESS, (COPY,), (3, 16))).replace("\n", "").encode()
    assert read_answers(line) == ()
    assert read_answers(line + b"\n" + whole + b"\n") == (CopyAnswer(ADDRESS, (COPY,), (3, 16)),)


def test_a_hostile_link_is_unknown(gpu: Gpu) -> None:
    (measured,), _ = measure_copies((gpu,), 0.1, ask=answering(CopyAnswer(ADDRESS, (), (99, 255))))
    assert measured.pcie_generation_loaded is None and measured.pcie_width_loaded is None


def test_the_child_answers_on_this_machine() -> None:
    """Real child, real loader: without a card (or without a driver) it says why."""
    (answer,) = ask_child([CopyRequest("ffff:ff:1f.7", 0.01)], 60.0)
    assert answer.pci_address == "ffff:ff:1f.7" and answer.failure
    assert answer.copies == ()


@pytest.fixture(scope="module")
def stub_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a libcuda.so.1 that checks the arguments of every call."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here")
    folder = tmp_path_factory.mktemp("stub")
    source = Path(__file__).parent / "stub_cuda.c"
    library = folder / "libcuda.so.1"
    flags = ["-shared", "-fPIC", "-Wall", "-Werror"]
    subprocess.run([compiler, *flags, "-o", library, source], check=True)
    return folder


def test_the_child_calls_the_library_with_what_its_header_asks_for(
    stub_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(stub_folder))
    requests = [request(), CopyRequest("0000:ff:00.0", 0.003)]
    found, missing = ask_child(requests, 60.0)
    assert found.failure is None
    assert {copy.kind: copy.bytes_per_s for copy in found.copies} == {
        "device": pytest.approx(400 * GB, rel=1e-3),
        "to device": pytest.approx(12 * GB, rel=1e-3),
        "from device": pytest.approx(10 * GB, rel=1e-3),
    }
    assert missing.failure == "cuDeviceGetByPCIBusId: CUDA_ERROR_INVALID_DEVICE"


def test_a_child_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    program = (
        'import sys, threading; print(\'{"pci_address":"x"}\', flush=True);'
        "sys.stdin.read(); threading.Event().wait()"
    )
    popen = cuda_driver.subprocess.Popen
    started: list[Any] = []

    def hang(_: Any, **options: Any) -> Any:
        started.append(popen([sys.executable, "-c", program], **options))
        return started[-1]

    monkeypatch.setattr(cuda_driver.subprocess, "Popen", hang)
    answers = ask_child([request()], 1.5)
    assert started[0].poll() is not None  # it was ended
    # What it had said in time counts, if it came that far on this busy machine.
    assert answers in ((), (CopyAnswer("x"),))


def test_a_child_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(cuda_driver.subprocess, "Popen", refuse)
    assert ask_child([request()], 1.0) == ()
