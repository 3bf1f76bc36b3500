"""The systemd unit of a service: every line with why it is there. Pure.

Source of what each setting means: systemd.service(5), systemd.exec(5), systemd.resource-control(5),
systemd 252 (2026-11).
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

# Names of units that need no escaping anywhere.
NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")
# The event loop of a service that is well answers in milliseconds; a minute is a hang.
WATCHDOG_S = 60
START_S = 120  # the service asks for more while a model is loading
# After the running answers: TERM, TERM, KILL for the engine (`run/process.py`), then the port.
END_S = 60
OPEN_FILES = 65536  # two a streamed answer, and some beside them
TASKS_MAX = 4096


@dataclass(frozen=True, slots=True)
class UnitFacts:
    """What a unit is written for."""

    command: tuple[str, ...]  # `workhorse up …`, absolute paths
    reload: tuple[str, ...]
    port: int
    data_folder: str  # WORKHORSE_HOME
    user: str | None  # None: a unit of the user's own manager
    home_is_needed: bool  # something of it lies below /home or /root
    tmp_is_needed: bool  # or below /tmp
    cards: bool
    compiles: bool  # an engine writes machine code that it then runs, without a card too
    caches: tuple[str, ...]  # where it keeps that, outside the data folder
    cpus: tuple[int, ...]  # (): not pinned
    memory_nodes: tuple[int, ...] | None
    drain_s: float
    local_only: bool  # asked and asking on this machine alone


Line = tuple[str, str]  # a setting, and why; the reason may be empty


def unit(facts: UnitFacts) -> str:
    """The whole unit file."""
    sections = (
        ("Unit", _about(facts)),
        ("Service", (*_life(facts), *_resources(facts), *_sandbox(facts))),
        ("Install", _wanted(facts)),
    )
    return "\n".join(line for name, lines in sections for line in section(name, lines))


def section(name: str, lines: Iterable[Line]) -> Iterator[str]:
    """One section of a unit, its reasons as comments."""
    yield f"[{name}]"
    for setting, why in lines:
        if why:
            yield f"# {why}"
        yield setting
    yield ""


def _about(facts: UnitFacts) -> Iterator[Line]:
    yield f"Description=workhorse: LLM service on port {facts.port}", ""
    after = "network.target" if facts.local_only else "network-online.target"
    if facts.user is not None:
        if not facts.local_only:
            yield "Wants=network-online.target", ""
        yield f"After={after}{' nvidia-persistenced.service' if facts.cards else ''}", ""
    yield (
        "StartLimitIntervalSec=600",
        "Five failed starts in ten minutes: it stays down, and says so.",
    )
    yield "StartLimitBurst=5", ""


def _life(facts: UnitFacts) -> Iterator[Line]:
    yield "Type=notify", "Ready is when the engine answers, not when the process is there."
    yield "NotifyAccess=main", ""
    if facts.cards and facts.user is not None:
        yield (
            "ExecStartPre=-+/usr/bin/nvidia-modprobe -u -c=0",
            "Makes the cards' device files; inside the sandbox the driver's own way is shut.",
        )
    yield f"ExecStart={words(facts.command)}", ""
    yield f"ExecReload={words(facts.reload)}", ""
    yield "Restart=on-failure", ""
    yield "RestartSec=5", ""
    yield "RestartPreventExitStatus=2 3", "Wrong settings, or a plan that says no: it would again."
    yield f"TimeoutStartSec={START_S}", "The service asks for more while a model is loading."
    stop_s = round(facts.drain_s) + END_S
    yield f"TimeoutStopSec={stop_s}", "Running answers may end first ([supervision] drain_s)."
    yield f"WatchdogSec={WATCHDOG_S}", "Fed only while the event loop and every engine's owner run."
    yield "KillMode=mixed", "TERM for workhorse alone, which stops its engines in order."
    yield "OOMPolicy=continue", "An engine that the kernel ends is started again; the port stays."
    if facts.user is not None:
        yield f"User={facts.user}", "Whose keys, builds and measurements the commands see."
        yield (
            "OOMScoreAdjust=-200",
            "The gateway stays; the engine offers itself to the kernel first (run/enter.py).",
        )
    yield f"Environment={quoted(f'WORKHORSE_HOME={facts.data_folder}')}", ""
    if facts.cards:
        cache = f"CUDA_CACHE_PATH={facts.data_folder}/cuda-cache"
        yield f"Environment={quoted(cache)}", "Code that the driver compiled, kept between starts."


def _resources(facts: UnitFacts) -> Iterator[Line]:
    if facts.cpus:
        yield f"CPUAffinity={_ranges(facts.cpus)}", "As planned; `service install` plans it anew."
    if facts.memory_nodes:
        policy = "bind" if len(facts.memory_nodes) == 1 else "interleave"
        yield f"NUMAPolicy={policy}", ""
        yield f"NUMAMask={_ranges(facts.memory_nodes)}", ""
    if facts.user is not None:
        yield "LimitMEMLOCK=infinity", "Weights that are locked in memory, and buffers of cards."
    yield f"LimitNOFILE={OPEN_FILES}", "Two a streamed answer."
    yield "LimitCORE=0", "A dump of the memory would hold what people asked."
    yield f"TasksMax={TASKS_MAX}", ""


def _sandbox(facts: UnitFacts) -> Iterator[Line]:
    yield "NoNewPrivileges=yes", ""
    yield "UMask=0077", ""
    yield "LockPersonality=yes", ""
    yield "RestrictRealtime=yes", ""
    yield "RestrictSUIDSGID=yes", ""
    yield "RestrictNamespaces=yes", ""
    yield "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK", ""
    yield "SystemCallArchitectures=native", ""
    # `syslog` reads the kernel's log, where the driver reports a card's errors (Xid).
    yield f"SystemCallFilter=@system-service{' syslog' if facts.cards else ''}", ""
    yield "SystemCallErrorNumber=EPERM", ""
    if facts.cards:
        yield (
            "MemoryDenyWriteExecute=no",
            "The driver compiles code for a card into memory that it then runs.",
        )
    elif facts.compiles:
        # "could not create a primitive": PyTorch 2.13 with oneDNN, BF16 (tried 2026-11).
        yield "MemoryDenyWriteExecute=no", "The engine compiles its kernels for this CPU."
    else:
        yield "MemoryDenyWriteExecute=yes", ""
    if facts.user is not None:  # a user's own manager has not the right to any of these
        yield from _system_sandbox(facts)


def _system_sandbox(facts: UnitFacts) -> Iterator[Line]:
    capabilities = [
        *(["CAP_SYSLOG"] if facts.cards else []),
        *(["CAP_NET_BIND_SERVICE"] if facts.port < 1024 else []),
    ]
    why = "The kernel's log has the cards' errors." if facts.cards else ""
    yield f"CapabilityBoundingSet={' '.join(capabilities)}", why
    if capabilities:
        yield f"AmbientCapabilities={' '.join(capabilities)}", ""
    yield "ProtectSystem=strict", ""
    yield f"ReadWritePaths={quoted(facts.data_folder)}", ""
    for folder in facts.caches:
        yield f"ReadWritePaths={quoted(f'-{folder}')}", "What the engine has compiled."
    if facts.home_is_needed:
        yield "ProtectHome=read-only", "The program, the model or the data lie below a home folder."
    else:
        yield "ProtectHome=yes", ""
    if facts.tmp_is_needed:
        yield "PrivateTmp=no", "The program, the model or the data lie below /tmp."
    else:
        yield "PrivateTmp=yes", ""
    if facts.cards:
        yield "DevicePolicy=closed", ""
        yield "DeviceAllow=char-nvidia* rw", "The cards, and nothing else of the machine."
        yield "DeviceAllow=/dev/kmsg r", ""
    else:
        yield "PrivateDevices=yes", ""
        yield "ProtectKernelLogs=yes", ""
    yield "ProtectKernelTunables=yes", ""
    yield "ProtectKernelModules=yes", ""
    yield "ProtectControlGroups=yes", ""
    yield "ProtectClock=yes", ""
    yield "ProtectHostname=yes", ""
    yield "ProtectProc=default", "The guard names who else uses a card, a port or the memory."
    yield "RemoveIPC=yes", ""
    yield "KeyringMode=private", ""
    if facts.local_only:
        yield "IPAddressDeny=any", "Nobody outside is served, nobody outside is asked."
        yield "IPAddressAllow=localhost", ""


def _wanted(facts: UnitFacts) -> Iterator[Line]:
    yield f"WantedBy={'default.target' if facts.user is None else 'multi-user.target'}", ""


def words(command: Sequence[str]) -> str:
    """A command as a unit takes it."""
    return " ".join(quoted(word) for word in command)


def quoted(word: str) -> str:
    """A word as systemd.syntax(7) wants it: specifiers, variables and quotes taken literally."""
    word = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    word = word.replace("\n", "\\n")
    return f'"{word}"' if re.search(r"[\s\"'\\;]", word) or not word else word


def _ranges(numbers: Iterable[int]) -> str:
    """`0-3 8` for 0, 1, 2, 3 and 8."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return " ".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)
