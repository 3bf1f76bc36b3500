"""Healthy machines for the doctor, and how tests make one thing wrong with them."""

from dataclasses import replace
from typing import Any

from builders import gpu, machine
from workhorse.doctor.judge import judge
from workhorse.records import (
    Dimm,
    EccCounts,
    Finding,
    Gpu,
    GpuLink,
    KernelEvent,
    KernelSettings,
    Machine,
    RetiredPages,
    RowRemaps,
    System,
)
from workhorse.units import GIB

BARE_METAL = System("6.1", "Debian", "2.36", True, hypervisor="", container="", iommu="off")
CARD_ADDRESS = "0000:18:00.0"


def dimms(
    *, sockets: int = 2, channels: int = 4, a_channel: int = 1, filled: int = 4, **facts: Any
) -> tuple[Dimm, ...]:
    """One slot or more a channel; the first `filled` channels of each socket hold modules."""
    values = {"rated_mt_s": 2400, "configured_mt_s": 2400, "size": 16 * GIB} | facts
    return tuple(
        Dimm(
            slot=f"P{socket}_{channel}_{slot}",
            socket=socket,
            channel=channel,
            size_bytes=values["size"] if channel < filled else 0,
            kind="DDR4" if channel < filled else None,
            rated_mt_s=values["rated_mt_s"] if channel < filled else None,
            configured_mt_s=values["configured_mt_s"] if channel < filled else None,
        )
        for socket in range(sockets)
        for channel in range(channels)
        for slot in range(a_channel)
    )


def server(**facts: Any) -> Machine:
    """A dual E5 v4 without a card, every channel filled; `facts` replace fields of the Machine."""
    base = machine(nodes=2, cores=14, threads_a_core=2, ram_bytes=128 * GIB, bandwidths=())
    base = replace(
        base,
        system=BARE_METAL,
        cpu=replace(base.cpu, memory_channels=4, memory_rate_max_mt_s=2400),
        memory=replace(
            base.memory,
            dimms=dimms(),
            channels_in_use=(4, 4),
            rated_bandwidth_bytes_per_s=153.6e9,
            ecc_corrected=0,
            ecc_uncorrected=0,
        ),
        settings=KernelSettings(
            governors=("performance",),
            governors_available=("performance", "powersave"),
            numa_balancing=False,
            swappiness=10,
            zone_reclaim=0,
            overcommit=0,
            huge_pages=0,
            huge_pages_overcommit=0,
        ),
        events=(),
    )
    return replace(base, **facts)


def with_memory(**facts: Any) -> Machine:
    """The server with other facts of its memory."""
    base = server()
    return replace(base, memory=replace(base.memory, **facts))


def with_settings(**facts: Any) -> Machine:
    """The server with other settings of its kernel."""
    base = server()
    return replace(base, settings=replace(base.settings, **facts))


def card(index: int = 0, **facts: Any) -> Gpu:
    """An idle V100 in a full slot, all of whose health is known and good."""
    healthy = {
        "pci_address": f"0000:{0x18 + index:02x}:00.0",
        "pci_id": "10de:1db4",
        "pcie_generation_card": 3,
        "pcie_width_card": 16,
        "pcie_generation_port": 3,
        "pcie_width_port": 16,
        "pcie_replays": 0,
        "slowdown_temperature_c": 87,
        "throttle_reasons": ("idle",),
        "busy_percent": 0,
        "performance_state": 0,
        "sm_clock_now_mhz": 135,
        "sm_clock_max_mhz": 1380,
        "memory_clock_now_mhz": 877,
        "ecc": EccCounts(0, 0, 0, 0),
        "retired_pages": RetiredPages(0, 0, False),
        "persistence": True,
        "compute_mode": "default",
        "mig": None,
        "bar1_bytes": 16 * GIB,
        "processes": (),
    }
    return replace(gpu(index), **(healthy | facts))


def with_card(**facts: Any) -> Machine:
    """The server with one card; `facts` replace fields of it."""
    return server(gpus=(card(**facts),))


def with_cards(*cards: Gpu, **facts: Any) -> Machine:
    """The server with several cards; `facts` replace fields of the Machine."""
    return server(gpus=cards, **facts)


def with_events(*events: KernelEvent, **facts: Any) -> Machine:
    """The server with one card and lines in its kernel's log."""
    return server(**({"gpus": (card(),), "events": events} | facts))


def xid(number: int, address: str | None = CARD_ADDRESS, times: int = 1) -> KernelEvent:
    """One Xid line."""
    return KernelEvent("xid", number, address, f"NVRM: Xid (PCI:{address}): {number}", times)


def pair(path: Any, *, peer: bool | None = True, nvlinks: int | None = None) -> GpuLink:
    """How cards 0 and 1 reach each other."""
    return GpuLink(0, 1, path, nvlinks, peer)


REMAPS = RowRemaps(0, 0, False, False)


def found(machine: Machine) -> dict[str, Finding]:
    """What the doctor says of the machine, by its code."""
    return {f.code: f for f in judge(machine).findings}


def assert_finds_just(code: str, ill: Machine, near_miss: Machine) -> None:
    """The rule finds the ill machine in both languages, and leaves out what is close to it."""
    finding = found(ill)[code]
    assert code not in found(near_miss)
    assert finding.evidence and finding.source
    for text in (finding.seen, finding.why, finding.remedy):
        assert text.en and text.zh and text.en != text.zh
        assert "{" not in text.en + text.zh
