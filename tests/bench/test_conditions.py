"""Samples of the machine, what they cost of energy, and the doubts that follow from them."""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pynvml
import pytest

from workhorse.bench.conditions import LoopWatch, Sampler, engine_family, is_loopback
from workhorse.bench.doubts import doubts
from workhorse.bench.energy import energy_j
from workhorse.bench.scenario import Scenario
from workhorse.bench.stats import summarise
from workhorse.codec import from_json, to_json
from workhorse.machine.files import DirectoryFiles
from workhorse.machine.probe import probe
from workhorse.records import CardSample, Conditions, Measurement, Run, Sample, ServedBy

NOW = "2026-11-30T00:00:00+00:00"
MACHINE = probe(measure_s=0)


class Driver:
    """A driver with one card; what is not here is not in it."""

    NVMLError = pynvml.NVMLError
    NVML_ERROR_LIBRARY_NOT_FOUND = pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
    nvmlInit = nvmlShutdown = staticmethod(lambda: None)
    nvmlDeviceGetCount = staticmethod(lambda: 1)
    nvmlDeviceGetHandleByIndex = staticmethod(lambda index: index)
    nvmlDeviceGetName = staticmethod(lambda _: "Tesla V100-PCIE-16GB")
    nvmlDeviceGetClockInfo = staticmethod(lambda *_: 1380)
    nvmlDeviceGetPowerUsage = staticmethod(lambda _: 250_000)
    nvmlDeviceGetTemperature = staticmethod(lambda *_: 71)
    nvmlDeviceGetCurrentClocksEventReasons = staticmethod(lambda _: 0x4)

    def __init__(self) -> None:
        self._energy_mj = count(5_000_000, 250_000)

    def nvmlDeviceGetUtilizationRates(self, _: int) -> Any:
        rates = pynvml.c_nvmlUtilization_t()
        rates.gpu = 97
        return rates

    def nvmlDeviceGetTotalEnergyConsumption(self, _: int) -> int:
        return next(self._energy_mj)


def written(root: Path, files: dict[str, str]) -> DirectoryFiles:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return DirectoryFiles(root)


STAT = "cpu  9 0 9 99 0 0 0 0\ncpu0 {0} 0 0 {1} 0 0 0 0\ncpu1 {0} 0 0 {1} 0 0 0 0\n"


def test_a_sample_has_what_the_machine_says(tmp_path: Path) -> None:
    files = written(
        tmp_path,
        {
            "sys/devices/system/cpu/online": "0-1\n",
            "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "2600000\n",
            "sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq": "2800000\n",
            "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": "7\n",
            "sys/class/powercap/intel-rapl:0/energy_uj": "1000000\n",
            "sys/fs/cgroup/cpu.stat": "usage_usec 5\nnr_throttled 3\nthrottled_usec 1500000\n",
            "proc/stat": STAT.format(10, 90),
        },
    )
    ticks = count(100.0, 0.5)
    watch = LoopWatch(lambda: 0.0)
    sampler = Sampler(
        "http://127.0.0.1:1",
        ServedBy(),
        watch,
        clock=lambda: next(ticks),
        files=files,
        nvml=Driver(),
    )
    sampler.start()
    until(lambda: len(sampler.samples(100.0)) == 1)
    (tmp_path / "sys/class/powercap/intel-rapl:0/energy_uj").write_text("4000000\n")
    sampler.stop()
    first, last = sampler.samples(100.0)
    assert (first.at_s, last.at_s > 0) == (0.0, True)
    (card,) = last.cards
    assert (card.sm_clock_mhz, card.power_w, card.temperature_c) == (1380, 250.0, 71)
    assert (card.busy_share, card.throttled_by) == (0.97, ("SW power cap",))
    assert card.energy_j is not None
    assert first.cards[0].energy_j == 5000.0
    assert card.energy_j > 5000.0
    assert (last.cpu_mhz, last.cpu_throttles, last.quota_waited_s) == (2700.0, 7, 1.5)
    assert (first.cpu_energy_j, last.cpu_energy_j) == (0.0, 3.0)


def test_of_a_service_elsewhere_only_the_client_is_sampled() -> None:
    sampler = Sampler("http://192.0.2.1:80", ServedBy(), LoopWatch(lambda: 0.0), nvml=Driver())
    sampler.start()
    sampler.stop()
    assert all(one.cards == () and one.cpu_energy_j is None for one in sampler.samples(0.0))


def test_a_family_is_who_listens_and_what_it_started(fake_engine: Any) -> None:
    url = fake_engine()
    files = DirectoryFiles(Path("/"))
    (engine,) = engine_family(url, (), files)
    assert engine != os.getpid()
    assert "workhorse.engines.fake" in Path(f"/proc/{engine}/cmdline").read_text()
    assert engine_family("http://127.0.0.1:1", (), files) == ()


def test_a_machine_that_hides_everything(tmp_path: Path) -> None:
    driver = Driver()
    driver.nvmlInit = absent  # type: ignore[method-assign]
    files = DirectoryFiles(tmp_path)
    watch = LoopWatch(lambda: 0.0)
    sampler = Sampler("http://127.0.0.1:1", ServedBy(), watch, files=files, nvml=driver)
    sampler.start()
    sampler.stop()
    assert [replace(one, at_s=0.0) for one in sampler.samples(0.0)] == [Sample(0.0)] * 2
    assert "bench samples" not in {thread.name for thread in threading.enumerate()}


def absent() -> None:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)


def until(true: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 120
    while not true():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


@pytest.fixture(autouse=True)
def first_and_last_sample_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a test takes, and however late the driver answers."""
    monkeypatch.setattr("workhorse.bench.conditions.EVERY_S", 3600.0)
    monkeypatch.setattr("workhorse.bench.conditions.CARDS_WITHIN_S", 120.0)


@pytest.mark.parametrize(
    ("url", "here"),
    [
        ("http://127.0.0.1:8080", True),
        ("http://[::1]:8080", True),
        ("https://localhost", True),
        ("http://192.168.1.4:8080", False),
        ("http://example.org", False),
    ],
)
def test_which_machine_a_service_is_on(url: str, here: bool) -> None:
    assert is_loopback(url) is here


def run(first_s: float = 1.0, gap_s: float = 0.05, sent_s: float = 0.0) -> Run:
    arrivals_s = tuple(first_s + gap_s * i for i in range(100))
    return Run(0, 768, 0, 100, arrivals_s, arrivals_s[-1], sent_s=sent_s)


def measurement(*samples: Sample, runs: tuple[Run, ...] | None = None) -> Measurement:
    three = (run(), run(sent_s=6.0), run(sent_s=12.0)) if runs is None else runs
    conditions = Conditions(NOW, replace(MACHINE, busy_cpus=None), None, "http://127.0.0.1:1", "0")
    conditions = replace(conditions, samples=samples)
    return Scenario("x", output_tokens=100).measurement(three, conditions)


def every(n: int = 10, **told: Any) -> list[Sample]:
    def at(i: int) -> Sample:
        values = {name: value(i) if callable(value) else value for name, value in told.items()}
        return Sample(2.0 * i, **values)

    return [at(i) for i in range(n)]


def codes(*samples: Sample, **more: Any) -> list[str]:
    return [finding.code for finding in doubts(measurement(*samples, **more)).findings]


def card(**told: Any) -> tuple[CardSample, ...]:
    return (CardSample(0, busy_share=0.9, **told),)


def test_a_calm_machine_raises_no_doubt() -> None:
    calm = every(
        other_cpus=0.0,
        client_cpus=0.02,
        late_s=0.001,
        quota_waited_s=3.0,
        cpu_throttles=9,
        cpu_mhz=2600.0,
        cards=card(sm_clock_mhz=1380, throttled_by=("applications clocks setting",)),
    )
    assert codes(*calm) == []


CPUS = len(MACHINE.limits.cpus)


@pytest.mark.parametrize(
    ("told", "code"),
    [
        ({"cards": card(throttled_by=("SW power cap",))}, "bench-throttled"),
        ({"cards": card(throttled_by=("HW thermal slowdown", "idle"))}, "bench-throttled"),
        ({"other_cpus": 0.5 * CPUS}, "bench-other-load"),
        ({"client_cpus": 0.95}, "bench-client-bound"),
        ({"late_s": 0.3}, "bench-client-bound"),
        ({"late_s": 0.3, "other_cpus": 0.5 * CPUS}, "bench-other-load"),  # which is why
        ({"quota_waited_s": lambda i: 0.2 * i}, "bench-quota"),
        ({"cpu_throttles": lambda i: i // 5}, "bench-hot-cpu"),
        ({"cpu_mhz": lambda i: 3000.0 - 40 * i}, "bench-clock-drift"),
    ],
)
def test_each_disturbance_has_its_doubt(told: dict[str, Any], code: str) -> None:
    assert codes(*every(**told)) == [code]


def test_work_before_the_run_is_no_doubt_where_the_run_itself_was_watched() -> None:
    seen = measurement(*every(other_cpus=0.0))
    assert seen.conditions.machine is not None
    machine = replace(seen.conditions.machine, busy_cpus=float(CPUS))
    busy_before = replace(seen, conditions=replace(seen.conditions, machine=machine))
    assert doubts(busy_before).findings == ()


def test_a_card_whose_clock_falls() -> None:
    falling = [Sample(2.0 * i, cards=card(sm_clock_mhz=1500 - 20 * i)) for i in range(9)]
    assert codes(*falling) == ["bench-clock-drift"]


def test_heat_and_power_have_their_own_remedy() -> None:
    hot = doubts(measurement(*every(cards=card(throttled_by=("HW thermal slowdown",)))))
    capped = doubts(measurement(*every(cards=card(throttled_by=("SW power cap",)))))
    assert "Cool the card" in hot.findings[0].remedy.en
    assert "power limit" in capped.findings[0].remedy.en


def test_energy_by_the_cards_counter_by_its_power_and_by_the_processor() -> None:
    counted = every(
        cards=lambda i: card(energy_j=1000.0 + 200 * i), cpu_energy_j=lambda i: 100.0 * i
    )
    powered = every(cards=card(power_w=100.0))
    took_s = 12.0 + 1.0 + 99 * 0.05  # the last request's end
    assert energy_j(measurement(*counted)) == pytest.approx((1800 + 900) * took_s / 18)
    assert energy_j(measurement(*powered)) == pytest.approx(100 * took_s)
    summary = summarise(measurement(*powered))
    assert summary.tokens_per_j == pytest.approx(300 / (100 * took_s))


def test_no_energy_without_a_meter() -> None:
    assert energy_j(measurement(*every(other_cpus=0.0))) is None
    assert energy_j(measurement()) is None
    assert summarise(measurement()).tokens_per_j is None


OLD = """{"scenario":"standard","prompt_tokens":768,"output_tokens":200,"streams":1,"runs":[
{"stream":0,"prompt_tokens":768,"cached_tokens":0,"output_tokens":2,"arrivals_s":[1.0,2.0],
"end_s":2.0,"error":null}],"conditions":{"when":"2026-11-30T00:00:00+00:00","machine":null,
"plan":null,"url":"http://127.0.0.1:1","workhorse":"0.1.0"}}"""


def test_a_measurement_of_an_earlier_version_is_read() -> None:
    old = from_json(Measurement, OLD, what="it")
    assert (old.conditions.samples, old.runs[0].sent_s, old.seed) == ((), None, None)
    assert from_json(Measurement, to_json(old), what="it") == old
