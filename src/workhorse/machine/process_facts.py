"""One process: its memory, faults, CPUs and limits. `smaps` is dear and is never read."""

import re
from dataclasses import dataclass

from workhorse.machine.files import HostFiles
from workhorse.machine.kernel_text import cpu_list, fields, number, size_bytes
from workhorse.machine.load import process_ticks

# CONFIG_NODES_SHIFT is at most 10 (x86 Kconfig; read 2026-11).
_NODES_MAX = 1024
_TASKS_MAX = 512
_NODE_PAGES = re.compile(r" N(\d{1,4})=(\d{1,12})")
_PAGE_KIB = re.compile(r" kernelpagesize_kB=(\d{1,9})")


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """One process at one moment; `None`: the kernel does not say."""

    resident_bytes: int | None
    swapped_bytes: int | None
    major_faults: int | None  # since it started, of all its threads
    ticks: int | None  # of CPU time, all its threads
    allowed_cpus: tuple[int, ...] | None  # of its first thread, which leads the computing
    session: int | None  # the process that leads its session


class ProcessFiles:
    """The files of this machine, `/proc/self` being that of another process."""

    def __init__(self, files: HostFiles, pid: int) -> None:
        self.live = files.live
        self._files, self._pid = files, pid

    def text(self, path: str) -> str | None:
        """The file's text, cut at 1 MiB; None when it cannot be read."""
        return self._files.text(self._there(path))

    def names(self, path: str) -> tuple[str, ...]:
        """The names in a directory, sorted; none when it cannot be read."""
        return self._files.names(self._there(path))

    def said(self, *command: str) -> str | None:
        """What a program printed."""
        return self._files.said(*command)

    def _there(self, path: str) -> str:
        own = "proc/self/"
        return f"proc/{self._pid}/{path[len(own) :]}" if path.startswith(own) else path


def read_process(files: HostFiles, pid: int) -> ProcessFacts | None:
    """The facts now; None when there is no such process."""
    stat = files.text(f"proc/{pid}/stat")
    if stat is None:
        return None
    # The second field, the command's name, may hold spaces and brackets.
    columns = stat.rpartition(")")[2].split()
    status = fields(files.text(f"proc/{pid}/status"))
    return ProcessFacts(
        resident_bytes=size_bytes(status.get("VmRSS")),
        swapped_bytes=size_bytes(status.get("VmSwap")),
        # proc(5): 6 session, 12 majflt; the state is the third and here the first.
        major_faults=number(columns[9]) if len(columns) > 9 else None,
        ticks=process_ticks(stat),
        allowed_cpus=cpu_list(status.get("Cpus_allowed_list")),
        session=number(columns[3]) if len(columns) > 3 else None,
    )


def read_waits(files: HostFiles, pid: int) -> tuple[int, int] | None:
    """Nanoseconds that the process's threads ran and waited for a CPU; None: not told.

    What has ended meanwhile is not in it any more (Documentation/scheduler/sched-stats.rst).
    """
    ran = waited = 0
    for task in files.names(f"proc/{pid}/task")[:_TASKS_MAX]:
        words = (files.text(f"proc/{pid}/task/{task}/schedstat") or "").split()
        known = [number(word) for word in words[:2]]
        if len(known) == 2 and known[0] is not None and known[1] is not None:
            ran, waited = ran + known[0], waited + known[1]
    return (ran, waited) if ran or waited else None


def read_node_pages(files: HostFiles, pid: int) -> tuple[int, ...] | None:
    """Bytes of a process on each NUMA node, by node number.

    The kernel walks all page tables for it: half a second for 20 GB of small pages.
    """
    text = files.text(f"proc/{pid}/numa_maps")
    if not text:
        return None
    nodes: dict[int, int] = {}
    for line in text.splitlines():
        size = _PAGE_KIB.search(line)
        page_bytes = 1024 * int(size[1]) if size else 4096
        for node, pages in _NODE_PAGES.findall(line):
            index = int(node)
            if index < _NODES_MAX:
                nodes[index] = nodes.get(index, 0) + int(pages) * page_bytes
    if not nodes:
        return None
    return tuple(nodes.get(index, 0) for index in range(max(nodes) + 1))
