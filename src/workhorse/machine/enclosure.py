"""What this system runs inside of: a hypervisor, a container, both or neither."""

import re
from collections.abc import Mapping

from workhorse.machine.files import HostFiles
from workhorse.machine.kernel_text import words

# The folder in /sys/class is a link, which a captured tree may not have.
_DMI_PLACES = ("sys/class/dmi/id", "sys/devices/virtual/dmi/id")
# What makers leave in the table when they fill nothing in (seen on boards, 2026-11).
_FILLERS = re.compile(
    r"(?i)to be filled.*|default string|not (?:specified|applicable|available)|base board.*"
    r"|system (?:manufacturer|product name|version)|o\.?e\.?m\.?|none|unknown|invalid|x+"
    r"|[.\-0 ]+|123\d+"
)
# The makers and products that hypervisors put into the table (systemd, src/basic/virt.c, and the
# clouds' own pages; read 2026-11).
_GUEST_TABLES = (
    (re.compile(r"(?i)vmware"), "vmware"),
    (re.compile(r"(?i)virtualbox|innotek"), "virtualbox"),
    (re.compile(r"(?i)hvm domu|^xen"), "xen"),
    (re.compile(r"(?i)microsoft.*virtual machine"), "hyper-v"),
    (re.compile(r"(?i)parallels"), "parallels"),
    (re.compile(r"(?i)bhyve"), "bhyve"),
    (re.compile(r"(?i)qemu|\bkvm\b|bochs|openstack|rhev|ovirt|google compute engine"), "kvm"),
    (re.compile(r"(?i)alibaba cloud|tencent cloud|huawei.*\becs\b|kubevirt"), "kvm"),
)
_CLOCKS = (("kvm-clock", "kvm"), ("hyperv", "hyper-v"), ("xen", "xen"))
_CONTAINER_GROUPS = (
    (re.compile(r"/kubepods"), "kubernetes"),
    (re.compile(r"/libpod|/libpod_parent"), "podman"),
    (re.compile(r"/docker[/-]"), "docker"),
    (re.compile(r"/lxc[./]"), "lxc"),
    (re.compile(r"/machine\.slice/.*(?:nspawn|machine-)"), "systemd-nspawn"),
    (re.compile(r"containerd"), "containerd"),
)
_NAMES = re.compile(r"[a-z][a-z0-9._-]{1,30}")


def dmi_word(files: HostFiles, name: str) -> str | None:
    """One word of the board's table; None when its maker did not fill it in."""
    for place in _DMI_PLACES:
        word = words(files.text(f"{place}/{name}"), longest=80)
        if word is not None:
            return None if _FILLERS.fullmatch(word) else word
    return None


def read_hypervisor(files: HostFiles, flags: tuple[str, ...]) -> str | None:
    """The hypervisor under this system: `kvm`, `vmware` …, `unknown` for one without a name.

    An empty word is bare metal; None: nothing tells, as without the CPU's flags.
    """
    kind = words(files.text("sys/hypervisor/type"), longest=30)
    if kind is not None and _NAMES.fullmatch(kind.lower()):
        return kind.lower()
    table = " ".join(
        word for name in ("sys_vendor", "product_name") if (word := dmi_word(files, name))
    )
    for pattern, name in _GUEST_TABLES:
        if pattern.search(table):
            return name
    if "linux,kvm" in (files.text("proc/device-tree/hypervisor/compatible") or "")[:200]:
        return "kvm"
    if "hypervisor" in flags:
        # Guests without a table, such as micro virtual machines, still get a clock of their host.
        place = "sys/devices/system/clocksource/clocksource0/available_clocksource"
        clocks = (files.text(place) or "")[:200]
        return next((name for word, name in _CLOCKS if word in clocks), "unknown")
    # Only x86 has the flag: its absence says nothing where there are no x86 flags.
    return "" if "lm" in flags else None


def read_container(files: HostFiles, told: str | None) -> str | None:
    """The container around this process: docker, podman, lxc, kubernetes …

    An empty word is none; None: no file of the process tells. `told` is what its environment
    says, see `container_of`.
    """
    if told:
        return told
    if not files.live:
        # A live environment is asked by `container_of`: it holds secrets, which are not recorded.
        named = container_of(_environment(files.text("proc/1/environ")))
        if named:
            return named
    if "kubernetes.io" in (*files.names("run/secrets"), *files.names("var/run/secrets")):
        return "kubernetes"
    if files.text("run/.containerenv") is not None:
        return "podman"
    word = words(files.text("run/systemd/container"), longest=30)
    if word is not None and _NAMES.fullmatch(word):
        return word
    groups = [files.text(f"proc/{process}/cgroup") for process in ("1", "self")]
    text = "\n".join(group[:16384] for group in groups if group is not None)
    for pattern, name in _CONTAINER_GROUPS:
        if pattern.search(text):
            return name
    if files.text(".dockerenv") is not None:
        return "docker"
    return "" if text else None


def container_of(environment: Mapping[str, str]) -> str | None:
    """The container that a process's environment names; None when it names none. Pure."""
    if "KUBERNETES_SERVICE_HOST" in environment:
        return "kubernetes"
    named = environment.get("container", "")
    return named if _NAMES.fullmatch(named) else None


def _environment(text: str | None) -> dict[str, str]:
    pairs = (entry.partition("=") for entry in (text or "").split("\0"))
    return {name: value for name, found, value in pairs if found}
