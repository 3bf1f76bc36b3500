"""The state a GPU is in: memory errors, throttling, who uses it. From raw answers, pure."""

from typing import Any, Literal

from workhorse.machine.nvml_values import base_name, item, switch, whole
from workhorse.records import EccCounts, GpuProcess, RetiredPages, RowRemaps

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
# nvmlComputeMode_t; 1 is the exclusive mode of threads, gone since CUDA 8 and read as its heir.
_COMPUTE_MODES: dict[int, Literal["default", "exclusive process", "prohibited"]] = {
    0: "default",
    1: "exclusive process",
    2: "prohibited",
    3: "exclusive process",
}
# nvmlPstates_t: 32 says unknown.
_SLOWEST_STATE = 15
_PROCESSES_MAX = 64
_PAGES_MAX = 100_000


def throttle_reasons(facts: dict[str, Any]) -> tuple[str, ...] | None:
    """Why the clocks are not at their highest; a bit without a name as its number."""
    mask = whole(facts.get("clocks_event_reasons"))
    if mask is None:
        return None
    bits = [1 << position for position in range(mask.bit_length()) if mask >> position & 1]
    return tuple(THROTTLE_REASONS.get(bit, hex(bit)) for bit in bits)


def ecc_counts(facts: dict[str, Any]) -> EccCounts | None:
    """Memory errors; None when the card counts none."""
    counts = EccCounts(
        corrected=whole(facts.get("ecc_corrected")),
        uncorrected=whole(facts.get("ecc_uncorrected")),
        corrected_lifetime=whole(facts.get("ecc_corrected_lifetime")),
        uncorrected_lifetime=whole(facts.get("ecc_uncorrected_lifetime")),
    )
    return None if counts == EccCounts(None, None, None, None) else counts


def retired_pages(facts: dict[str, Any]) -> RetiredPages | None:
    """Pages out of use; None on a card that replaces rows instead."""
    pages = RetiredPages(
        single_bit=_count(facts.get("retired_single_bit")),
        double_bit=_count(facts.get("retired_double_bit")),
        pending=switch(facts.get("retired_pending")),
    )
    return None if pages == RetiredPages(None, None, None) else pages


def row_remaps(facts: dict[str, Any]) -> RowRemaps | None:
    """Rows replaced; None on a card that retires pages instead."""
    answer = facts.get("remapped_rows")
    remaps = RowRemaps(
        correctable=whole(item(answer, 0)),
        uncorrectable=whole(item(answer, 1)),
        pending=switch(item(answer, 2)),
        failed=switch(item(answer, 3)),
    )
    return None if remaps == RowRemaps(None, None, None, None) else remaps


def processes(facts: dict[str, Any]) -> tuple[GpuProcess, ...] | None:
    """Who holds memory of the card; () when nobody does, None when the driver does not say."""
    listed = facts.get("processes")
    if not isinstance(listed, list):
        return None
    found: list[GpuProcess] = []
    for entry in listed[:_PROCESSES_MAX]:
        pid = whole(entry.get("pid")) if isinstance(entry, dict) else None
        if pid is not None:
            memory = whole(entry.get("memory"))
            found.append(GpuProcess(pid, base_name(entry.get("name")), memory))
    return tuple(found)


def compute_mode(
    facts: dict[str, Any],
) -> Literal["default", "exclusive process", "prohibited"] | None:
    """Who may open a context on the card."""
    mode = whole(facts.get("compute_mode"))
    return None if mode is None else _COMPUTE_MODES.get(mode)


def performance_state(facts: dict[str, Any]) -> int | None:
    """0 (fastest) to 15."""
    return whole(facts.get("performance_state"), high=_SLOWEST_STATE)


def _count(pages: Any) -> int | None:
    """How many pages: NVML lists them, nvidia-smi counts them."""
    return len(pages) if isinstance(pages, list) else whole(pages, high=_PAGES_MAX)
