"""What this process may use: the affinity mask and its control group, version 1 or 2.

A group is held by its own limits and by those of every group above it, so each limit is the
smallest on the way up to the root. In a container the path in /proc/self/cgroup may be the
host's: then only the root of the mount is there, and that is the container's own group.
"""

from workhorse.machine.files import HostFiles
from workhorse.machine.kernel_text import cpu_list, fields, number
from workhorse.records import Limits

CGROUP_ROOT = "sys/fs/cgroup"
_DEPTH_MAX = 64
# Version 1 writes "no limit" as the largest multiple of a page that fits 63 bits; nobody has
# 4 EiB of memory.
_NO_LIMIT_BYTES = 2**62
# Version 2, version 1, and version 1 before the kernel told what the groups above leave over.
_CPUS = ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus")
_MEMORY_NODES = ("cpuset.mems.effective", "cpuset.effective_mems", "cpuset.mems")


def read_limits(
    files: HostFiles,
    cpus: tuple[int, ...],
    affinity: tuple[int, ...] | None,
    total_bytes: int | None,
) -> Limits:
    """The CPUs, CPU time, memory and memory nodes that this process may use.

    `cpus` are those online; `affinity` is the mask of the process that looked, None where it
    is not known: there all CPUs of the group's cpuset count.
    """
    groups = _groups(files)
    allowed = None if affinity is None else tuple(sorted(set(affinity) & set(cpus)))
    if not allowed:
        allowed = tuple(sorted(set(cpus) & set(_cpuset(files, groups, _CPUS) or cpus)))
    memory_bytes, used_bytes = _memory(files, groups, total_bytes)
    return Limits(
        cpus=allowed,
        quota_cpus=_quota_cpus(files, groups, len(cpus)),
        memory_bytes=memory_bytes,
        memory_used_bytes=used_bytes,
        memory_nodes=_memory_nodes(files, groups),
    )


def cpu_groups(files: HostFiles) -> tuple[str, ...]:
    """The directories of the groups that limit this process's CPU time, innermost first."""
    groups = _groups(files)
    return (*groups[""], *groups.get("cpu", ()))


def _groups(files: HostFiles) -> dict[str, tuple[str, ...]]:
    """The directories of this process's groups, innermost first, for each controller.

    The unified hierarchy of version 2 goes by the empty name.
    """
    groups: dict[str, tuple[str, ...]] = {}
    for line in (files.text("proc/self/cgroup") or "").splitlines()[:64]:
        number_text, _, rest = line.partition(":")
        controllers, found, path = rest.partition(":")
        if not found:
            continue
        if controllers == "" and number_text == "0":
            groups[""] = _upwards(CGROUP_ROOT, path)
        for name in controllers.split(","):
            if name in ("cpu", "cpuset", "memory"):
                # The mount is named after all controllers it carries; most systems also
                # link each single name to it.
                mounts = (f"{CGROUP_ROOT}/{mount}" for mount in dict.fromkeys((name, controllers)))
                groups[name] = tuple(place for mount in mounts for place in _upwards(mount, path))
    groups.setdefault("", (CGROUP_ROOT,))
    return groups


def _upwards(mount: str, path: str) -> tuple[str, ...]:
    """The group's directory and all above it, up to the mount."""
    parts = [part for part in path.split("/") if part]
    if ".." in parts or len(parts) > _DEPTH_MAX:
        parts = []  # a group outside of what this mount shows
    return tuple("/".join([mount, *parts[:depth]]) for depth in range(len(parts), -1, -1))


def _quota_cpus(files: HostFiles, groups: dict[str, tuple[str, ...]], online: int) -> float | None:
    """CPU time per second, in CPUs; None when no group limits it below what is online."""
    quotas: list[float] = []
    for place in groups[""]:
        quota_text, _, period_text = (files.text(f"{place}/cpu.max") or "").strip().partition(" ")
        quotas += _ratio(quota_text, period_text)
    for place in groups.get("cpu", ()):
        quotas += _ratio(
            files.text(f"{place}/cpu.cfs_quota_us"), files.text(f"{place}/cpu.cfs_period_us")
        )
    quota = min(quotas, default=None)
    return None if quota is None or (online and quota >= online) else quota


def _ratio(quota_text: str | None, period_text: str | None) -> tuple[float, ...]:
    """Quota over period; nothing for `max`, -1 and anything else that is no quota."""
    quota, period = number(quota_text), number(period_text)
    return (quota / period,) if quota and period else ()


def _memory(
    files: HostFiles, groups: dict[str, tuple[str, ...]], total_bytes: int | None
) -> tuple[int | None, int | None]:
    """The tightest memory limit and what the group that has it uses, in bytes."""
    found: list[tuple[int, int | None]] = []
    for place in groups[""]:
        limit = number(files.text(f"{place}/memory.max"))
        if limit is not None:
            used = number(files.text(f"{place}/memory.current"))
            found.append((limit, _working_set(files, place, "inactive_file", used)))
    for place in groups.get("memory", ()):
        limit = number(files.text(f"{place}/memory.limit_in_bytes"))
        if limit is not None and limit < _NO_LIMIT_BYTES:
            used = number(files.text(f"{place}/memory.usage_in_bytes"))
            found.append((limit, _working_set(files, place, "total_inactive_file", used)))
    limit, used = min(found, key=lambda pair: pair[0], default=(None, None))
    if limit is None or (total_bytes is not None and limit >= total_bytes):
        return None, None
    return limit, used


def _working_set(files: HostFiles, place: str, cache: str, used: int | None) -> int | None:
    """Used bytes without the page cache that the kernel drops first.

    The same figure as Kubernetes' working set. With the cache counted in, a container that has
    just read a model file looks full.
    """
    if used is None:
        return None
    stat = fields(files.text(f"{place}/memory.stat"), separator=" ")
    return max(0, used - (number(stat.get(cache)) or 0))


def _cpuset(
    files: HostFiles, groups: dict[str, tuple[str, ...]], names: tuple[str, ...]
) -> tuple[int, ...] | None:
    """The CPUs or memory nodes that the innermost group with a cpuset may use."""
    for place in (*groups.get("cpuset", ()), *groups[""]):
        for name in names:
            listed = cpu_list(files.text(f"{place}/{name}"))
            if listed:
                return listed
    return None


def _memory_nodes(files: HostFiles, groups: dict[str, tuple[str, ...]]) -> tuple[int, ...] | None:
    """The nodes whose memory the kernel lets this process have, whatever group says so.

    A captured tree may have the group's files alone.
    """
    told = cpu_list(fields(files.text("proc/self/status")).get("Mems_allowed_list"))
    return told or _cpuset(files, groups, _MEMORY_NODES)
