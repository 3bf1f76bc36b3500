"""What the guard reads at the edge: this machine's own files and processes, cards, the log."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from fake_cards import LOST, SW_THERMAL, FakeCard, FakeDriver
from guard_scenes import cpu_plan, engine, gpu_plan

from running_fake import FakeEngine
from workhorse.guard.card_sensor import CardSensor
from workhorse.guard.sensors import Sensors, waited_share
from workhorse.machine.files import DirectoryFiles, PackedFiles
from workhorse.machine.kernel_messages import KernelMessages
from workhorse.machine.nvml import OpenDriver
from workhorse.machine.nvml_xids import NvmlXids
from workhorse.machine.page_cache import cached_share
from workhorse.machine.process_facts import read_node_pages, read_process, read_waits
from workhorse.records import CardReading
from workhorse.units import GIB, MIB

ROOT = DirectoryFiles(Path("/"))


@pytest.fixture
def child() -> Iterator["subprocess.Popen[bytes]"]:
    """A process that sits there."""
    with subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.communicate(b"\n")


def sensors(tmp_path: Path, driver: FakeDriver | None = None, **more: object) -> Sensors:
    cards = CardSensor(ROOT, driver or FakeDriver(absent=True))
    return Sensors(tmp_path, cards=cards, kernel=KernelMessages(tmp_path / "none"), **more)  # type: ignore[arg-type]


def test_a_live_process_is_read(child: "subprocess.Popen[bytes]") -> None:
    facts = read_process(ROOT, child.pid)
    assert facts is not None
    assert facts.resident_bytes and facts.resident_bytes > MIB
    assert facts.session == child.pid and facts.swapped_bytes is not None
    assert facts.allowed_cpus == tuple(sorted(os.sched_getaffinity(child.pid)))
    assert facts.ticks is not None and facts.major_faults is not None
    pages = read_node_pages(ROOT, child.pid)
    assert pages is None or sum(pages) > MIB  # a kernel without NUMA has no such file
    assert read_process(ROOT, 2**22 + 1) is None


def test_waiting_for_a_cpu_is_added_up_over_the_threads() -> None:
    files = PackedFiles(
        {
            "proc/7/task/7/schedstat": "1000 500 3\n",
            "proc/7/task/8/schedstat": "2000 100 3\n",
            "proc/7/task/9/schedstat": "broken",
        }
    )
    assert read_waits(files, 7) == (3000, 600)
    assert read_waits(files, 8) is None
    own = read_waits(ROOT, os.getpid())
    assert own is None or own[0] > 0  # a kernel may be built without it
    second = 10**9
    assert waited_share((0, 0), (second, 3 * second)) == 0.75
    assert waited_share((0, 0), (10, 10)) is None is waited_share((5 * second, 0), (second, 1))
    assert waited_share(None, (1, 1)) is None


def test_pages_on_nodes_are_added_up_in_their_own_sizes() -> None:
    files = PackedFiles(
        {
            "proc/7/numa_maps": "7f00 default anon=3 N0=1 N1=2 kernelpagesize_kB=4\n"
            "7f10 bind:1 huge anon=5 N1=5 kernelpagesize_kB=2048\nbroken N9999999=1 N=\n"
        }
    )
    assert read_node_pages(files, 7) == (4096, 2 * 4096 + 5 * 2 * MIB)
    assert read_node_pages(files, 8) is None


def test_the_page_cache_is_seen_and_nothing_is_read_by_looking(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(os.urandom(8 * MIB))
    assert cached_share(file) == 1.0
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    share = cached_share(file)
    if share == 1.0:
        pytest.skip("this file system keeps every file in memory")
    assert share == 0.0 == cached_share(file)
    (tmp_path / "empty").touch()
    assert cached_share(tmp_path / "empty") is None is cached_share(tmp_path / "none")


def test_only_new_messages_of_the_kernel_are_told(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    xid = "NVRM: Xid (PCI:0000:18:00): {}, pid=1234, name=python, test"
    log.write_text(f"4,100,1000,-;{xid.format(31)}\n")
    with closing(KernelMessages(log)) as messages:
        assert messages.readable and messages.new_events() == ()
        with log.open("a") as more:
            more.write(
                f"4,101,2000,-;{xid.format(79)}\n SUBSYSTEM=pci\nnot a record\n6,1,1,-;eth0 up\n"
            )
        (event,) = messages.new_events()
        assert (event.kind, event.number, event.pci_address) == ("xid", 79, "0000:18:00.0")
        assert "python" not in event.text and messages.new_events() == ()
    assert not KernelMessages(tmp_path / "none").readable


def test_without_the_right_to_the_log_the_driver_tells_xids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = FakeCard(), FakeCard()
    driver = FakeDriver(first, second)
    monkeypatch.setattr("workhorse.machine.nvml_xids._ANSWER_WITHIN_S", 120.0)
    sensor = sensors(tmp_path, driver, xids=NvmlXids(driver))
    assert sensor.read(1.0, (), {}, {}).events == ()
    driver.xids += [(second, 48), (first, 13)]
    found = [(e.number, e.pci_address) for e in sensor.read(2.0, (), {}, {}).events]
    assert found == [(48, "0000:19:00.0"), (13, "0000:18:00.0")]
    assert NvmlXids(FakeDriver(absent=True)).new_events() == ()


def test_what_lasts_is_asked_once_and_the_driver_stays_open() -> None:
    driver = FakeDriver(FakeCard())
    opened = OpenDriver(("name",), ("memory",), driver)
    for _ in range(5):
        answers = opened.ask()
        assert answers is not None and answers.gpus[0]["name"] == "Tesla V100-PCIE-16GB"
    assert driver.opened == 1 and driver.asked == ["name", *["memory"] * 5]
    opened.close()
    opened.close()
    assert driver.closed == 1


def test_a_card_that_is_lost_says_so_and_a_driver_that_hangs_is_left_alone() -> None:
    driver = FakeDriver(FakeCard(), FakeCard())
    opened = OpenDriver(("name",), ("memory",), driver)
    opened.ask()
    driver.cards[1].lost = True
    answers = opened.ask()
    assert answers is not None and answers.gpus[1]["error"]["code"] == LOST
    may_go_on = threading.Event()
    driver.nvmlDeviceGetCount = lambda: may_go_on.wait(120) and 0  # type: ignore[method-assign, assignment, return-value]
    for words in ("no answer", "no answer yet"):
        answers = opened.ask(within_s=0.01)
        assert answers is not None and answers.error is not None and answers.error.words == words
    may_go_on.set()
    assert OpenDriver((), (), FakeDriver(absent=True)).ask() is None


def read_cards(driver: FakeDriver, engines: set[int]) -> tuple[CardReading, ...]:
    with closing(CardSensor(ROOT, driver)) as sensor:
        found = sensor.read(engines, processes=True)
    assert found is not None
    return found


def test_cards_are_read_in_our_units(child: "subprocess.Popen[bytes]") -> None:
    used = FakeCard(reasons=SW_THERMAL, width=8, processes=[(child.pid, 9 * GIB), (1, GIB)])
    (card,) = read_cards(FakeDriver(used), {child.pid})
    assert (card.used_bytes, card.total_bytes, card.busy_share) == (10 * GIB, 16 * GIB, 0.9)
    assert (card.link_width, card.link_width_max, card.sm_clock_mhz) == (8, 16, 1300)
    assert card.throttled_by == ("SW thermal slowdown",) and card.pci_address == "0000:18:00.0"
    assert (card.own_bytes, card.foreign_bytes) == (9 * GIB, GIB)
    assert card.foreign_processes == (f"1 train.py {GIB}",)


def test_what_an_engine_started_is_ours(child: "subprocess.Popen[bytes]") -> None:
    """It is in the engine's session, whatever its process number."""
    facts = read_process(ROOT, child.pid)
    assert facts is not None and facts.session == child.pid
    worker = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=False
    )
    try:
        (card,) = read_cards(FakeDriver(FakeCard(processes=[(worker.pid, 5)])), {os.getsid(0)})
        assert (card.own_bytes, card.foreign_processes) == (5, ())
    finally:
        worker.communicate(b"\n")


def test_numbers_of_another_name_space_are_no_foreign_processes() -> None:
    """In a container the driver tells the host's numbers: ours is not among them."""
    (card,) = read_cards(FakeDriver(FakeCard(processes=[(4_000_000, GIB)])), {123})
    assert (card.own_bytes, card.foreign_bytes, card.foreign_processes) == (None, None, ())


def test_a_driver_that_does_not_tell_who_holds_how_much_accuses_nobody(
    child: "subprocess.Popen[bytes]",
) -> None:
    used = FakeCard(processes=[(child.pid, None), (1, None)])
    (card,) = read_cards(FakeDriver(used), {child.pid})
    assert (card.own_bytes, card.foreign_bytes) == (None, None)
    assert card.foreign_processes == ("1 train.py 0",)


def test_a_reading_is_whole(tmp_path: Path, fake_engine: FakeEngine) -> None:
    times = iter(range(100))
    sensor = sensors(tmp_path, clock=lambda: float(next(times)))
    plan = cpu_plan(cpus=tuple(sorted(os.sched_getaffinity(0))))
    for _ in range(2):
        reading = sensor.read(1.0, (engine(),), {"horse": os.getpid()}, {"horse": plan})
    sensor.close()
    (one,) = reading.engines
    assert one.pid == os.getpid() and one.resident_bytes and one.cpu_share is not None
    assert one.allowed_cpus == plan.cpus
    assert reading.memory_total_bytes and reading.disk_free_bytes and reading.cpus == len(plan.cpus)
    assert reading.cards == () == reading.events


def test_an_engine_without_a_process_is_left_as_it_was(tmp_path: Path) -> None:
    sensor = sensors(tmp_path)
    for pids in ({}, {"horse": 2**22 + 1}):
        (one,) = sensor.read(1.0, (engine(pid=None),), pids, {"horse": cpu_plan()}).engines
        assert one == engine(pid=None)


def test_mapped_weights_are_looked_for_in_the_page_cache(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(bytes(MIB))
    pids = {"horse": os.getpid()}
    for plan, share in (
        (cpu_plan(load_mode="mmap", model_path=str(file)), 1.0),
        (cpu_plan(load_mode="none", model_path=str(file)), None),
    ):
        (one,) = (
            sensors(tmp_path)
            .read(1.0, (engine(weights_cached_share=None),), pids, {"horse": plan})
            .engines
        )
        assert one.weights_cached_share == share


def test_layers_of_a_start_are_read_once(tmp_path: Path) -> None:
    asked: list[str] = []

    def loaded(name: str) -> int | None:
        asked.append(name)
        return 3

    sensor = sensors(tmp_path, loaded_layers=loaded)
    for _ in range(3):
        reading = sensor.read(1.0, (engine(),), {"horse": os.getpid()}, {"horse": gpu_plan()})
    assert reading.engines[0].loaded_gpu_layers == 3 and asked == ["horse"]
