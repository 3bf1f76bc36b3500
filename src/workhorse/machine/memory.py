"""Main memory and the kernel's page settings."""

import re
from typing import Literal

from workhorse.machine.files import HostFiles
from workhorse.machine.kernel_text import chosen, fields, number, size_bytes
from workhorse.records import Memory
from workhorse.text import Text

THP_MODE = "sys/kernel/mm/transparent_hugepage/enabled"


def read_memory(files: HostFiles) -> tuple[Memory, tuple[Text, ...]]:
    """Memory, swap, huge pages and the locked-memory limit, and what could not be read."""
    facts = fields(files.text("proc/meminfo"))
    total_bytes = size_bytes(facts.get("MemTotal"))
    available_bytes = size_bytes(facts.get("MemAvailable"))
    memory = Memory(
        total_bytes=total_bytes,
        available_bytes=available_bytes,
        swap_total_bytes=size_bytes(facts.get("SwapTotal")),
        swap_free_bytes=size_bytes(facts.get("SwapFree")),
        thp=_thp(files),
        huge_page_bytes=size_bytes(facts.get("Hugepagesize")),
        huge_pages_free=number(facts.get("HugePages_Free")),
        memlock_bytes=_memlock_bytes(files),
    )
    doubts: list[Text] = []
    if total_bytes is None or available_bytes is None:
        doubts.append(
            Text(
                "/proc/meminfo does not say how much memory there is and how much is available.",
                "/proc/meminfo 未给出内存总量与可用内存。",
            )
        )
    return memory, tuple(doubts)


def _thp(files: HostFiles) -> Literal["always", "madvise", "never"] | None:
    match chosen(files.text(THP_MODE)):
        case "always":
            return "always"
        case "madvise":
            return "madvise"
        case "never":
            return "never"
    return None


def _memlock_bytes(files: HostFiles) -> int | None:
    """The soft limit on locked memory of this process; None: unlimited or unknown."""
    text = files.text("proc/self/limits") or ""
    match = re.search(r"^Max locked memory +(\d{1,19}) ", text, re.MULTILINE | re.ASCII)
    return number(match[1]) if match else None
