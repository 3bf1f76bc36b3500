"""The batch script that makes a fleet of the nodes of one Slurm job. Pure.

Sources: sbatch(1), srun(1) and scontrol(1) of Slurm 22.05; ray/scripts/symmetric_run.py of Ray
2.60.0 (2026-11).
"""

import re
import shlex
from dataclasses import dataclass

from workhorse.errors import EXIT_USAGE, AppError
from workhorse.text import Text

NODES_MAX = 10_000
HEAD_PORT = 6379
PORT_MAX = 65535 - 8  # the first of nine in a row
# Seconds that `fleet up` has to drain before Slurm ends the job at its time limit.
DRAIN_S = 120
# How long the head waits for the last node; `ray symmetric-run` gives up after 30 s on its own.
CLUSTER_WAIT_S = 600

# What Slurm's own names are made of. Whatever else ends an #SBATCH line or the comment that it is.
_NAME = re.compile(r"[A-Za-z0-9_.,:+@/-]{1,200}", re.ASCII)
_CONSTRAINT = re.compile(r"[A-Za-z0-9_.,:&|()\[\]*+@/-]{1,200}", re.ASCII)
# minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]]: sbatch(1), --time
_TIME = re.compile(r"\d{1,6}(:\d{1,2}){0,2}|\d{1,4}-\d{1,2}(:\d{1,2}){0,2}|UNLIMITED", re.ASCII)
_INTERFACE = re.compile(r"[A-Za-z0-9_.@-]{1,15}", re.ASCII)  # IFNAMSIZ - 1, netdevice(7)


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """What is asked of Slurm, and what the fleet serves.

    `program`: how `workhorse` is called on every node; `shared`: a folder that all nodes see,
    for the token; `up`: what `workhorse fleet up` gets, the model first.
    """

    nodes: int
    up: tuple[str, ...]
    program: tuple[str, ...]
    gpus_per_node: int | None = None
    partition: str | None = None
    time: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    interface: str | None = None  # of the network that the nodes speak over; None: the first
    shared: str | None = None  # None: where the script was submitted
    name: str = "workhorse-fleet"
    port: int = HEAD_PORT


def script(job: SlurmJob) -> str:
    """The script for `sbatch`; AppError for what Slurm or a shell would take for something else."""
    _check(job)
    return "\n".join([*_directives(job), "", *_preparation(job), "", *_work(job), ""])


def _directives(job: SlurmJob) -> list[str]:
    asked: list[tuple[str, str | None]] = [
        ("job-name", job.name),
        ("nodes", str(job.nodes)),
        ("ntasks-per-node", "1"),
        ("partition", job.partition),
        ("time", job.time),
        ("account", job.account),
        ("qos", job.qos),
        ("constraint", None if job.constraint is None else f'"{job.constraint}"'),
        ("gpus-per-node", None if job.gpus_per_node is None else str(job.gpus_per_node)),
        ("output", f"{job.name}-%j.log"),
        # To the batch script alone, which tells `fleet up`: to all, Ray would end before it.
        ("signal", f"B:TERM@{DRAIN_S}"),
    ]
    return [
        "#!/bin/bash",
        *(f"#SBATCH --{key}={value}" for key, value in asked if value is not None),
        # `ray symmetric-run` ends with `ray stop`, which ends every Ray of this user on a node:
        # only where the whole node is ours is that ours to end. And the plan takes all of it.
        "#SBATCH --exclusive",
        "#SBATCH --mem=0",
    ]


def _preparation(job: SlurmJob) -> list[str]:
    """The head's address, and the token in a folder that all nodes see."""
    shared = "$SLURM_SUBMIT_DIR" if job.shared is None else None
    place = '"$SLURM_SUBMIT_DIR"' if shared else shlex.quote(str(job.shared))
    if job.interface is None:
        address = "hostname -I | awk '{print $1}'"
    else:
        address = (
            f"ip -4 -o addr show dev {shlex.quote(job.interface)} | "
            "awk '{split($4, a, \"/\"); print a[1]; exit}'"
        )
    return [
        "set -euo pipefail",
        "umask 077",
        "",
        "# This script runs on the first node: it is the head.",
        f"head_address=$({address})",
        'if [ -z "$head_address" ] || [[ "$head_address" == 127.* ]]; then',
        '    echo "workhorse: no address by which the other nodes reach $(hostname)" >&2',
        "    exit 1",
        "fi",
        "",
        "# A token of this job alone, where all nodes can read it; it goes with the job.",
        f"place={place}",
        'fleet_dir=$(mktemp -d -- "$place/.workhorse-fleet-$SLURM_JOB_ID.XXXXXX")',
        "od -An -N32 -tx1 /dev/urandom | tr -d ' \\n' > \"$fleet_dir/token\"",
    ]


def _work(job: SlurmJob) -> list[str]:
    program = " ".join(shlex.quote(word) for word in job.program)
    up = " ".join(shlex.quote(word) for word in job.up)
    return [
        "finish() {",
        "    trap '' TERM INT",
        "    # `fleet up` drains its replicas, then the nodes end with it.",
        '    if [ -s "$fleet_dir/up.pid" ]; then',
        '        kill -TERM "$(cat -- "$fleet_dir/up.pid")" 2> /dev/null || true',
        "    else",
        '        kill -TERM "$fleet" 2> /dev/null || true',
        "    fi",
        '    wait "$fleet" || true',
        "}",
        "trap finish TERM INT",
        "trap 'rm -rf -- \"$fleet_dir\"' EXIT",
        "",
        "# One task a node: Ray's node by what the probe finds there; on the head `fleet up` too.",
        f"export RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT={CLUSTER_WAIT_S}",
        # Not bound: one task would get one core, and the engines choose their own.
        f"srun --nodes={job.nodes} --ntasks={job.nodes} --ntasks-per-node=1 --cpu-bind=none \\",
        "    --kill-on-bad-exit=1 \\",
        f"    {program} fleet slurm --nodes={job.nodes} \\",
        f'    --on-node="$head_address:{job.port}" --token-file="$fleet_dir/token" \\',
        f"    -- {up} &",
        "fleet=$!",
        'wait "$fleet"',
    ]


def _check(job: SlurmJob) -> None:
    if not 1 <= job.nodes <= NODES_MAX:
        raise _not_taken("--nodes", str(job.nodes))
    if not 0 < job.port <= PORT_MAX:
        raise _not_taken("--port", str(job.port))
    if job.gpus_per_node is not None and not 0 < job.gpus_per_node <= 64:
        raise _not_taken("--gpus-per-node", str(job.gpus_per_node))
    for option, value, form in (
        ("--partition", job.partition, _NAME),
        ("--account", job.account, _NAME),
        ("--qos", job.qos, _NAME),
        ("--name", job.name, _NAME),
        ("--constraint", job.constraint, _CONSTRAINT),
        ("--time", job.time, _TIME),
        ("--interface", job.interface, _INTERFACE),
    ):
        if value is not None and (not form.fullmatch(value) or value.startswith("-")):
            raise _not_taken(option, value)
    for word in (*job.up, *job.program, job.shared or ""):
        if "\n" in word or "\r" in word or "\0" in word:
            raise _not_taken("MODEL", word)


def _not_taken(option: str, value: str) -> AppError:
    return AppError(
        Text(
            f"{option} cannot be {value[:80]!r} in a Slurm script.",
            f"Slurm 脚本中 {option} 不能是 {value[:80]!r}。",
        ),
        Text(
            "Write it as sbatch(1) shows it: a name, a number, or a time such as 2-00:00:00.",
            "请按 sbatch(1) 的写法：名称、数字，或 2-00:00:00 这样的时间。",
        ),
        exit_code=EXIT_USAGE,
    )


def symmetric_run(
    start: tuple[str, ...], address: str, nodes: int, command: tuple[str, ...], *, head: bool
) -> tuple[str, ...]:
    """What follows `ray`: Ray's node as `start` (of `ray_start.arguments`) has it, then `command`.

    `ray symmetric-run` sets some of them itself, and refuses them.
    """
    # It names the head's address by itself; that of any other node it leaves to a guess.
    address_too = ("--node-ip-address=",) if head else ()
    own = ("--head", "--block", "--port=", "--address=", *address_too)
    kept = [word for word in start if word != "start" and not word.startswith(own)]
    return (
        *("symmetric-run", "--address", address, "--min-nodes", str(nodes)),
        *kept,
        "--",
        *command,
    )
