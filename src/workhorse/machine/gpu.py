"""GPUs, from what the driver answered and what the PCI bus shows. Pure."""

from collections.abc import Sequence
from typing import Any

from workhorse.machine.kernel_text import NUMBER_MAX, words
from workhorse.machine.nvml import NvmlAnswers, NvmlError
from workhorse.machine.pci import Card, pci_address
from workhorse.records import Gpu, GpuDriver
from workhorse.text import Text, same

# nvmlClocksEventReasons in nvml.h (driver 580), in nvidia-smi's words.
THROTTLE_REASONS: dict[int, str] = {
    0x1: "idle",
    0x2: "applications clocks setting",
    0x4: "SW power cap",
    0x8: "HW slowdown",
    0x10: "sync boost",
    0x20: "SW thermal slowdown",
    0x40: "HW thermal slowdown",
    0x80: "HW power brake slowdown",
    0x100: "display clock setting",
}

# nvmlReturn_t in nvml.h (driver 580): what a person does about it.
_REMEDIES: dict[int, Text] = {
    4: Text(  # NVML_ERROR_NO_PERMISSION
        "Let this user open /dev/nvidia*.",
        "请授予当前用户访问 /dev/nvidia* 的权限。",
    ),
    9: Text(  # NVML_ERROR_DRIVER_NOT_LOADED
        "Load it with `modprobe nvidia`; in a container, hand the GPU in (`--gpus all`).",
        "请用 `modprobe nvidia` 加载驱动；若在容器中，请把 GPU 交给容器（`--gpus all`）。",
    ),
    18: Text(  # NVML_ERROR_LIB_RM_VERSION_MISMATCH
        "The driver was updated while it was loaded: restart the machine.",
        "驱动在加载状态下被更新：请重启机器。",
    ),
}
_REMEDY = Text(
    "Look at what `nvidia-smi` and `dmesg | grep -i nvrm` say.",
    "请查看 `nvidia-smi` 和 `dmesg | grep -i nvrm` 的输出。",
)


def make_gpus(
    answers: NvmlAnswers | None, cards: Sequence[Card]
) -> tuple[tuple[Gpu, ...], GpuDriver | None, tuple[Text, ...]]:
    """The GPUs, their driver, and what is there but cannot be used.

    `answers` is None when there is no driver library.
    """
    if answers is None or answers.error is not None:
        error = answers.error if answers else None
        doubts = [_driver_fails(error, cards)] if error else [_without_driver(c) for c in cards]
        return (), None, tuple(doubts)
    driver = GpuDriver(version=words(answers.driver_version), cuda=_cuda(answers.cuda_version))
    node_of = {card.address: card.numa_node for card in cards}
    gpus: list[Gpu] = []
    doubts = []
    for index, facts in enumerate(answers.gpus):
        if "error" in facts:
            doubts.append(_gpu_fails(index, facts["error"]))
        else:
            gpus.append(_gpu(index, facts, node_of))
    shown = {gpu.pci_address for gpu in gpus}
    if len(gpus) == len(answers.gpus) and None not in shown:
        doubts += [_not_shown(card) for card in cards if card.address not in shown]
    return tuple(gpus), driver, tuple(doubts)


def rated_bandwidth_bytes_per_s(memory_clock_mhz: int | None, bus_bits: int | None) -> float | None:
    """What the memory could read at most: two transfers a clock over the whole bus.

    NVML's memory clock is half the data rate for HBM2, HBM3, GDDR5 and GDDR6 alike: 877 MHz ×
    4096 bit is the V100's 898 GB/s, 3201 MHz × 6016 bit the H200's 4814 GB/s (2026-11).
    """
    if not memory_clock_mhz or not bus_bits:
        return None
    return 2 * memory_clock_mhz * 1e6 * bus_bits / 8


def _gpu(index: int, facts: dict[str, Any], node_of: dict[str, int | None]) -> Gpu:
    address = pci_address(_text(_part(facts, "pci", "busId")))
    bus_bits = _whole(facts.get("memory_bus_width"), high=65536) or None
    clock_mhz = _whole(facts.get("memory_clock_max"), high=100_000) or None
    reasons = _whole(facts.get("clocks_event_reasons"))
    ecc = _item(facts.get("ecc_mode"), 0)
    return Gpu(
        index=index,
        name=_text(facts.get("name")) or "NVIDIA GPU",
        uuid=_text(facts.get("uuid")),
        pci_address=address,
        compute_capability=_capability(facts.get("compute_capability")),
        memory_total_bytes=_whole(_part(facts, "memory", "total")) or None,
        memory_free_bytes=_whole(_part(facts, "memory", "free")),
        memory_bus_bits=bus_bits,
        memory_clock_max_mhz=clock_mhz,
        rated_bandwidth_bytes_per_s=rated_bandwidth_bytes_per_s(clock_mhz, bus_bits),
        pcie_generation_now=_whole(facts.get("pcie_generation"), high=16) or None,
        pcie_generation_max=_whole(facts.get("pcie_generation_max"), high=16) or None,
        pcie_width_now=_whole(facts.get("pcie_width"), high=64) or None,
        pcie_width_max=_whole(facts.get("pcie_width_max"), high=64) or None,
        numa_node=None if address is None else node_of.get(address),
        ecc_enabled={0: False, 1: True}.get(ecc) if isinstance(ecc, int) else None,
        temperature_c=_whole(facts.get("temperature"), high=200),
        power_limit_w=_watts(facts.get("power_limit")),
        power_limit_default_w=_watts(facts.get("power_limit_default")),
        throttle_reasons=None if reasons is None else _reasons(reasons),
    )


def _reasons(mask: int) -> tuple[str, ...]:
    bits = [1 << position for position in range(mask.bit_length()) if mask >> position & 1]
    return tuple(THROTTLE_REASONS.get(bit, hex(bit)) for bit in bits)


def _cuda(version: int | None) -> str | None:
    """`13.0` from 13000: cuda.h counts 1000 × major + 10 × minor."""
    value = _whole(version, high=1_000_000)
    return f"{value // 1000}.{value % 1000 // 10}" if value else None


def _capability(answer: Any) -> tuple[int, int] | None:
    major, minor = _whole(_item(answer, 0), high=99), _whole(_item(answer, 1), high=99)
    return None if major is None or minor is None else (major, minor)


def _whole(answer: Any, *, high: int = NUMBER_MAX) -> int | None:
    """A whole number from 0 to `high`; drivers answer all bits set for what they don't know."""
    if isinstance(answer, bool) or not isinstance(answer, int):
        return None
    return answer if 0 <= answer <= high else None


def _watts(milliwatts: Any) -> float | None:
    value = _whole(milliwatts, high=10_000_000)
    return value / 1000 if value else None


def _text(answer: Any) -> str | None:
    return words(answer) if isinstance(answer, str) else None


def _part(facts: dict[str, Any], query: str, field: str) -> Any:
    answer = facts.get(query)
    return answer.get(field) if isinstance(answer, dict) else None


def _item(answer: Any, position: int) -> Any:
    return answer[position] if isinstance(answer, list) and len(answer) > position else None


def _driver_fails(error: NvmlError, cards: Sequence[Card]) -> Text:
    said = words(error.words) or "?"
    remedy = _REMEDIES.get(error.code or 0, _REMEDY)
    listed = ", ".join(f"{card.address} [{card.pci_id}]" for card in cards[:8])
    here = Text(f"Cards here: {listed}. ", f"本机显卡：{listed}。") if cards else same("")
    return Text(
        f"The NVIDIA driver does not work: {said}. {here.en}{remedy.en}",
        f"NVIDIA 驱动无法工作：{said}。{here.zh}{remedy.zh}",
    )


def _gpu_fails(index: int, error: Any) -> Text:
    said = words(_text(error.get("words")) if isinstance(error, dict) else None) or "?"
    return Text(
        f"GPU {index} does not answer: {said}. {_REMEDY.en}",
        f"GPU {index} 没有响应：{said}。{_REMEDY.zh}",
    )


def _without_driver(card: Card) -> Text:
    match card.kernel_driver:
        case "nvidia":
            # The kernel has the driver, this process does not see its library.
            return Text(
                f"NVIDIA card {card.address} ({card.pci_id}) has a driver, but its library"
                " libnvidia-ml.so.1 is not here, so it cannot be used. In a container, hand the"
                " GPU in (`--gpus all`); else install the driver's libraries.",
                f"NVIDIA 显卡 {card.address}（{card.pci_id}）已有内核驱动，但找不到其用户态库"
                " libnvidia-ml.so.1，因此无法使用。若在容器中，请把 GPU 交给容器（`--gpus all`）；"
                "否则请安装驱动的用户态库。",
            )
        case None:
            held = Text("no driver", "没有驱动")
        case other:
            held = Text(f"the {other} driver", f"{other} 驱动")
    return Text(
        f"NVIDIA card {card.address} ({card.pci_id}) is here with {held.en}, so it cannot be"
        " used. Install NVIDIA's own driver for it and restart.",
        f"发现 NVIDIA 显卡 {card.address}（{card.pci_id}），但目前为{held.zh}，无法使用。"
        "请安装 NVIDIA 官方驱动并重启。",
    )


def _not_shown(card: Card) -> Text:
    return Text(
        f"NVIDIA card {card.address} ({card.pci_id}) is on the bus, but the driver does not show"
        " it: it is held back (CUDA devices of a container, another driver) or it has failed."
        f" {_REMEDY.en}",
        f"NVIDIA 显卡 {card.address}（{card.pci_id}）在总线上，但驱动没有列出它："
        f"可能被容器限制、被其他驱动占用，或已出故障。{_REMEDY.zh}",
    )
