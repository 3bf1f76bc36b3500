"""The systemd unit of a node: every line with why it is there. Pure.

Source: as `run/service_file.py`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from workhorse.run.service_file import OPEN_FILES, Line, quoted, section, words

UNIT_NAME = "workhorse-fleet"
# Ray's processes take seconds to start; a disk of an old machine, minutes.
START_S = 300
# A node tells the head that it goes, and its replicas may end their answers (30 s), then Ray's end.
STOP_S = 120


@dataclass(frozen=True, slots=True)
class NodeUnit:
    """What the unit of a node is written for."""

    command: Sequence[str]  # `workhorse fleet join … --foreground`, absolute paths
    data_folder: str  # WORKHORSE_HOME
    user: str
    cards: bool


def node_unit(facts: NodeUnit) -> str:
    """The whole unit file."""
    sections = (
        ("Unit", _about(facts)),
        ("Service", (*_life(facts), *_limits())),
        ("Install", iter([("WantedBy=multi-user.target", "")])),
    )
    return "\n".join(line for name, lines in sections for line in section(name, lines))


def _about(facts: NodeUnit) -> Iterator[Line]:
    yield "Description=workhorse: node of a fleet", ""
    yield "Wants=network-online.target", ""
    persistence = " nvidia-persistenced.service" if facts.cards else ""
    yield f"After=network-online.target{persistence}", ""
    yield (
        "StartLimitIntervalSec=0",
        "A node waits for its head as long as it takes: it may start before it.",
    )


def _life(facts: NodeUnit) -> Iterator[Line]:
    yield "Type=notify", "Ready is when the head knows the node."
    yield "NotifyAccess=main", ""
    if facts.cards:
        yield (
            "ExecStartPre=-+/usr/bin/nvidia-modprobe -u -c=0",
            "Makes the cards' device files, where nothing else has yet.",
        )
    yield f"ExecStart={words(facts.command)}", ""
    yield "Restart=on-failure", "`workhorse fleet leave` ends it for good."
    yield "RestartSec=10", ""
    yield "RestartPreventExitStatus=2 3", "Another version, a wrong token: it would again."
    yield f"TimeoutStartSec={START_S}", ""
    yield f"TimeoutStopSec={STOP_S}", "Replicas end their answers, then Ray ends."
    yield "KillMode=mixed", "TERM for workhorse alone, which ends the node in order."
    yield "OOMPolicy=continue", "An engine that the kernel ends is replaced; the node stays."
    yield f"User={facts.user}", "Whose builds, models and measurements the replicas use."
    yield f"Environment={quoted(f'WORKHORSE_HOME={facts.data_folder}')}", ""


def _limits() -> Iterator[Line]:
    yield "LimitMEMLOCK=infinity", "Weights that are locked in memory, and buffers of cards."
    yield f"LimitNOFILE={OPEN_FILES}", "Two a streamed answer, and Ray's own."
    yield "LimitCORE=0", "A dump of the memory would hold what people asked."
    yield "TasksMax=infinity", "Ray starts dozens of threads a process."
    yield "PrivateTmp=no", "`fleet up` and `fleet status` reach the node by sockets in /tmp."
    yield "NoNewPrivileges=yes", ""
    yield "UMask=0077", ""
    yield "ProtectSystem=full", ""
    yield "ProtectControlGroups=yes", ""
    yield "ProtectKernelModules=yes", ""
    yield "ProtectKernelTunables=yes", ""
    yield "RestrictSUIDSGID=yes", ""
