"""GPUs and their driver, from what the driver answered and what the PCI bus shows. Pure."""

from collections.abc import Sequence
from typing import Any

from workhorse.machine.gpu_health import (
    compute_mode,
    ecc_counts,
    performance_state,
    processes,
    retired_pages,
    row_remaps,
    throttle_reasons,
)
from workhorse.machine.gpu_trouble import KernelModule
from workhorse.machine.kernel_text import words
from workhorse.machine.nvml import NvmlAnswers
from workhorse.machine.nvml_values import item, part, switch, text, watts, whole
from workhorse.machine.pci import WIDTHS, Card, pci_address
from workhorse.records import Gpu, GpuDriver

_GENERATION_MAX = 16
_CLOCK_MAX_MHZ = 100_000
_TEMPERATURE_MAX_C = 200


def make_gpus(
    answers: NvmlAnswers | None, cards: Sequence[Card], module: KernelModule | None = None
) -> tuple[tuple[Gpu, ...], GpuDriver | None]:
    """The GPUs that can be used, and their driver.

    `answers` is None when there is no driver library, `module` when no kernel module runs. What
    is there but cannot be used, `gpu_trouble` tells.
    """
    if answers is None or answers.error is not None:
        if module is None:
            return (), None
        return (), GpuDriver(version=module.version, cuda=None, open_module=module.open_module)
    driver = GpuDriver(
        version=words(answers.driver_version) or (module.version if module else None),
        cuda=_cuda(answers.cuda_version),
        open_module=None if module is None else module.open_module,
    )
    card_of = {card.address: card for card in cards}
    gpus = [
        _gpu(index, facts, card_of)
        for index, facts in enumerate(answers.gpus)
        if "error" not in facts
    ]
    return tuple(gpus), driver


def rated_bandwidth_bytes_per_s(memory_clock_mhz: int | None, bus_bits: int | None) -> float | None:
    """What the memory could read at most: two transfers a clock over the whole bus.

    NVML's memory clock is half the data rate for HBM2, HBM3, GDDR5 and GDDR6 alike: 877 MHz ×
    4096 bit is the V100's 898 GB/s, 3201 MHz × 6016 bit the H200's 4814 GB/s (2026-11).
    """
    if not memory_clock_mhz or not bus_bits:
        return None
    return 2 * memory_clock_mhz * 1e6 * bus_bits / 8


def _gpu(index: int, facts: dict[str, Any], card_of: dict[str, Card]) -> Gpu:
    address = pci_address(text(part(facts, "pci", "busId")))
    # What the driver does not say, the bus may: an old driver, or a text that leaves it out.
    card = card_of.get(address or "") or Card("", "", None, None)
    bus_bits = whole(facts.get("memory_bus_width"), high=65536) or None
    clock_mhz = _clock(facts, "memory_clock_max")
    generation_now = _generation(facts, "pcie_generation")
    width_now = _width(facts, "pcie_width")
    return Gpu(
        index=index,
        name=text(facts.get("name")) or "NVIDIA GPU",
        uuid=text(facts.get("uuid")),
        pci_address=address,
        compute_capability=_capability(facts.get("compute_capability")),
        memory_total_bytes=whole(part(facts, "memory", "total")) or None,
        memory_free_bytes=whole(part(facts, "memory", "free")),
        memory_bus_bits=bus_bits,
        memory_clock_max_mhz=clock_mhz,
        rated_bandwidth_bytes_per_s=rated_bandwidth_bytes_per_s(clock_mhz, bus_bits),
        pcie_generation_now=generation_now or card.generation_now,
        pcie_generation_max=_generation(facts, "pcie_generation_max"),
        pcie_width_now=width_now or card.width_now,
        pcie_width_max=_width(facts, "pcie_width_max"),
        numa_node=card.numa_node,
        ecc_enabled=switch(item(facts.get("ecc_mode"), 0)),
        temperature_c=_celsius(facts, "temperature"),
        power_limit_w=watts(facts.get("power_limit")),
        power_limit_default_w=watts(facts.get("power_limit_default")),
        throttle_reasons=throttle_reasons(facts),
        pci_id=_ids(part(facts, "pci", "pciDeviceId")) or _known(card.pci_id),
        pci_subsystem=_ids(part(facts, "pci", "pciSubSystemId")) or card.subsystem,
        pcie_generation_card=_generation(facts, "pcie_generation_card") or card.generation_card,
        pcie_width_card=card.width_card,
        pcie_generation_port=card.generation_port,
        pcie_width_port=card.width_port,
        pcie_replays=whole(facts.get("pcie_replays"), high=2**32 - 2),
        sm_clock_now_mhz=_clock(facts, "sm_clock"),
        sm_clock_max_mhz=_clock(facts, "sm_clock_max"),
        memory_clock_now_mhz=_clock(facts, "memory_clock"),
        # Where the sensor is missing drivers say 0.
        memory_temperature_c=_celsius(facts, "memory_temperature") or None,
        slowdown_temperature_c=_celsius(facts, "slowdown_temperature") or None,
        fan_percent=whole(facts.get("fan_speed"), high=200),
        power_draw_w=watts(facts.get("power_draw")),
        power_limit_max_w=watts(item(facts.get("power_limits"), 1)),
        performance_state=performance_state(facts),
        busy_percent=whole(part(facts, "utilization", "gpu"), high=100),
        ecc=ecc_counts(facts),
        retired_pages=retired_pages(facts),
        row_remaps=row_remaps(facts),
        persistence=switch(facts.get("persistence")),
        compute_mode=compute_mode(facts),
        mig=switch(item(facts.get("mig_mode"), 0)),
        bar1_bytes=whole(part(facts, "bar1", "bar1Total")) or None,
        processes=processes(facts),
    )


def _cuda(version: int | None) -> str | None:
    """`13.0` from 13000: cuda.h counts 1000 × major + 10 × minor."""
    value = whole(version, high=1_000_000)
    return f"{value // 1000}.{value % 1000 // 10}" if value else None


def _ids(answer: Any) -> str | None:
    """`10de:1db6` from 0x1DB610DE: the device in the upper half, the vendor in the lower."""
    value = whole(answer, high=2**32 - 2)
    return f"{value & 0xFFFF:04x}:{value >> 16:04x}" if value else None


def _known(pci_id: str) -> str | None:
    return None if not pci_id or "?" in pci_id else pci_id


def _capability(answer: Any) -> tuple[int, int] | None:
    major, minor = whole(item(answer, 0), high=99), whole(item(answer, 1), high=99)
    return None if major is None or minor is None else (major, minor)


def _generation(facts: dict[str, Any], query: str) -> int | None:
    return whole(facts.get(query), high=_GENERATION_MAX) or None


def _width(facts: dict[str, Any], query: str) -> int | None:
    lanes = whole(facts.get(query))
    return lanes if lanes in WIDTHS else None


def _clock(facts: dict[str, Any], query: str) -> int | None:
    return whole(facts.get(query), high=_CLOCK_MAX_MHZ) or None


def _celsius(facts: dict[str, Any], query: str) -> int | None:
    return whole(facts.get(query), high=_TEMPERATURE_MAX_C)
