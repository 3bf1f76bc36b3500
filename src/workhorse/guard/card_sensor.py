"""The cards at one moment, through NVML kept open: only what changes is asked each time."""

from collections.abc import Collection
from typing import Any

from workhorse.machine.files import HostFiles
from workhorse.machine.gpu import make_gpus
from workhorse.machine.nvml import OpenDriver
from workhorse.machine.process_facts import read_process
from workhorse.records import CardReading, Gpu, GpuProcess

LASTING = (
    "name", "uuid", "pci", "sm_clock_max", "pcie_generation_max", "pcie_width_max",
    "power_limit_default", "slowdown_temperature",
)  # fmt: skip
CHANGING = (
    "memory", "sm_clock", "pcie_generation", "pcie_width", "ecc_corrected", "ecc_uncorrected",
    "temperature", "power_draw", "power_limit", "utilization", "clocks_event_reasons",
)  # fmt: skip
# A driver that takes longer is stuck; the service must not wait for it.
ANSWER_WITHIN_S = 10.0


class CardSensor:
    """Reads the cards; `None` from `read`: the driver gives no answer now."""

    def __init__(self, files: HostFiles, nvml: Any = None) -> None:
        self._files = files
        self._driver = OpenDriver(LASTING, CHANGING, nvml)
        self._processes: dict[int, tuple[GpuProcess, ...] | None] = {}

    def read(self, engines: Collection[int], *, processes: bool) -> tuple[CardReading, ...] | None:
        """The cards now. `processes`: ask again who is on them, which costs most."""
        answers = self._driver.ask(ANSWER_WITHIN_S, processes=processes)
        if answers is None:
            return ()  # no driver: no cards
        if answers.error is not None:
            return None
        gpus, _ = make_gpus(answers, ())
        if processes:
            self._processes = {gpu.index: gpu.processes for gpu in gpus}
        return tuple(self._reading(gpu, engines) for gpu in gpus)

    def close(self) -> None:
        """Give NVML back."""
        self._driver.close()

    def _reading(self, gpu: Gpu, engines: Collection[int]) -> CardReading:
        total, free = gpu.memory_total_bytes, gpu.memory_free_bytes
        busy, ecc = gpu.busy_percent, gpu.ecc
        own, foreign = self._split(self._processes.get(gpu.index), engines)
        return CardReading(
            index=gpu.index,
            uuid=gpu.uuid,
            name=gpu.name,
            used_bytes=None if total is None or free is None else total - free,
            total_bytes=total,
            busy_share=None if busy is None else busy / 100,
            power_w=gpu.power_draw_w,
            power_limit_w=gpu.power_limit_w,
            temperature_c=gpu.temperature_c,
            sm_clock_mhz=gpu.sm_clock_now_mhz,
            throttled_by=gpu.throttle_reasons,
            link_generation=gpu.pcie_generation_now,
            link_width=gpu.pcie_width_now,
            corrected_errors=None if ecc is None else ecc.corrected,
            uncorrected_errors=None if ecc is None else ecc.uncorrected,
            foreign_processes=tuple(
                f"{p.pid} {p.name or '?'} {p.memory_bytes or 0}" for p in foreign or ()
            ),
            pci_address=gpu.pci_address,
            sm_clock_max_mhz=gpu.sm_clock_max_mhz,
            power_limit_default_w=gpu.power_limit_default_w,
            memory_temperature_c=gpu.memory_temperature_c,
            slowdown_temperature_c=gpu.slowdown_temperature_c,
            link_generation_max=gpu.pcie_generation_max,
            link_width_max=gpu.pcie_width_max,
            own_bytes=held_bytes(own),
            foreign_bytes=held_bytes(foreign),
        )

    def _split(
        self, processes: tuple[GpuProcess, ...] | None, engines: Collection[int]
    ) -> tuple[tuple[GpuProcess, ...] | None, tuple[GpuProcess, ...] | None]:
        """Ours and others' processes on a card; None: they cannot be told apart.

        In a container the driver tells the host's process numbers, or none: there nobody of ours
        is found, and the others are not known either.
        """
        if processes is None:
            return None, None
        # An engine leads its own session; whatever it started is in it.
        ours = tuple(p for p in processes if self._is_ours(p.pid, engines))
        if not ours:
            return None, None
        return ours, tuple(p for p in processes if p not in ours)

    def _is_ours(self, pid: int, engines: Collection[int]) -> bool:
        if pid in engines:
            return True
        facts = read_process(self._files, pid)
        return facts is not None and facts.session in engines


def held_bytes(processes: tuple[GpuProcess, ...] | None) -> int | None:
    """Memory of the card that processes hold; None: not told of one of them, as by old drivers."""
    sizes = [process.memory_bytes for process in processes or ()]
    known = [size for size in sizes if size is not None]
    return None if processes is None or len(known) < len(sizes) else sum(known)
