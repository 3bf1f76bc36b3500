"""The batch script: what Slurm reads of it, what a shell makes of it, and what Ray is told."""

import argparse
import shlex
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from workhorse.cli.fleet_slurm import add_arguments
from workhorse.errors import AppError
from workhorse.fleet.ray_start import NodeStart, Ports, arguments
from workhorse.fleet.slurm import SlurmJob, script, symmetric_run
from workhorse.fleet.slurm_node import patiently, wait_for_head
from workhorse.text import Text

PROGRAM = ("/opt/work horse/bin/python", "-m", "workhorse")
HOSTILE = (
    "hf:a/b'; touch /tmp/x; '",
    '$(reboot) `reboot` "quoted"',
    "--host",
    "甲 乙",
    "back\\slash",
    "#SBATCH --nodes=9",
)


def job(**more: object) -> SlurmJob:
    told: dict[str, object] = {"nodes": 4, "up": HOSTILE, "program": PROGRAM}
    return SlurmJob(**(told | more))  # type: ignore[arg-type]


@pytest.mark.parametrize("port", [0, 65530])
def test_a_port_with_no_room_behind_it_is_refused_before_the_job_waits(port: int) -> None:
    with pytest.raises(AppError, match=f"--port cannot be '{port}'"):
        script(job(port=port))


def directives(text: str) -> list[str]:
    """What sbatch reads: up to the first line that is neither empty nor a comment."""
    found = []
    for line in text.splitlines():
        if line and not line.startswith("#"):
            break
        if line.startswith("#SBATCH "):
            found.append(line.removeprefix("#SBATCH "))
    return found


def test_what_slurm_is_asked_for() -> None:
    text = script(
        job(
            gpus_per_node=2,
            partition="gpu",
            time="2-00:00:00",
            account="physics",
            qos="low",
            constraint="v100|p40",
            name="chat",
        )
    )
    assert directives(text) == [
        "--job-name=chat",
        "--nodes=4",
        "--ntasks-per-node=1",
        "--partition=gpu",
        "--time=2-00:00:00",
        "--account=physics",
        "--qos=low",
        '--constraint="v100|p40"',
        "--gpus-per-node=2",
        "--output=chat-%j.log",
        "--signal=B:TERM@120",
        "--exclusive",
        "--mem=0",
    ]


@pytest.mark.parametrize("interface", [None, "ib0"])
@pytest.mark.parametrize("shared", [None, "/shared/of us"])
def test_a_shell_and_shellcheck_take_it(
    tmp_path: Path, interface: str | None, shared: str | None
) -> None:
    path = tmp_path / "fleet.sh"
    path.write_text(script(job(interface=interface, shared=shared)), encoding="utf-8")
    subprocess.run(["bash", "-n", str(path)], check=True)
    checked = subprocess.run(
        # SC2016 wonders at $ in single quotes: that it stays one is what they are for.
        [shellcheck(), "--exclude=SC2016", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.stdout == ""
    assert checked.returncode == 0


def shellcheck() -> str:
    """The program that the development environment brings."""
    beside = Path(sys.executable).with_name("shellcheck")
    return str(beside) if beside.exists() else shutil.which("shellcheck") or "shellcheck"


def run(
    tmp_path: Path, address: str, *, up: str = "cat", **more: object
) -> subprocess.CompletedProcess[str]:
    """The script with programs of ours in the place of Slurm's and the machine's."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, body in (
        ("hostname", f"echo {address} 10.9.9.9"),
        # What srun was given, one word a line; the token as the nodes would find it.
        ("srun", f'printf "%s\\n" "$@"; {up} "$SLURM_SUBMIT_DIR"/.workhorse-fleet-7.*/token'),
    ):
        (programs / name).write_text(f"#!/bin/sh\n{body}\n")
        (programs / name).chmod(0o755)
    place = tmp_path / "submitted from here"
    place.mkdir()
    path = tmp_path / "fleet.sh"
    path.write_text(script(job(**more)), encoding="utf-8")
    return subprocess.run(
        ["bash", str(path)],
        capture_output=True,
        text=True,
        check=False,
        env={
            "PATH": f"{programs}:/usr/bin:/bin",
            "SLURM_JOB_ID": "7",
            "SLURM_SUBMIT_DIR": str(place),
        },
    )


def test_every_word_arrives_as_it_was_given(tmp_path: Path) -> None:
    done = run(tmp_path, "10.1.2.3")
    assert done.returncode == 0, done.stderr
    *words, token = done.stdout.splitlines()
    assert len(token) == 64
    assert not set(token) - set("0123456789abcdef")
    at = words.index(PROGRAM[0])
    assert words[at : at + 6] == [*PROGRAM, "fleet", "slurm", "--nodes=4"]
    assert "--on-node=10.1.2.3:6379" in words
    assert tuple(words[words.index("--") + 1 :]) == HOSTILE
    assert list((tmp_path / "submitted from here").iterdir()) == [], "the token goes with the job"


def test_the_token_is_read_by_nobody_else(tmp_path: Path) -> None:
    done = run(tmp_path, "10.1.2.3", up="stat -c %a")
    assert done.stdout.splitlines()[-1] == "600"


@pytest.mark.parametrize("address", ["127.0.1.1", "''"])
def test_a_head_that_nobody_reaches_is_told(tmp_path: Path, address: str) -> None:
    done = run(tmp_path, address if address != "''" else "; exit 0;")
    assert done.returncode == 1
    assert "no address by which the other nodes reach" in done.stderr


def test_a_job_that_fails_says_so(tmp_path: Path) -> None:
    assert run(tmp_path, "10.1.2.3", up="false").returncode == 1
    assert list((tmp_path / "submitted from here").iterdir()) == []


def test_at_its_time_limit_the_service_is_told_to_drain(tmp_path: Path) -> None:
    """Slurm tells the batch script alone; what `srun` started hears it by its process id."""
    up = (
        'echo $$ > "$(dirname "$SLURM_SUBMIT_DIR"/.workhorse-fleet-7.*/token)"/up.pid; '
        'trap "echo drained; exit 0" TERM; kill -TERM $PPID; while :; do sleep 0.1; done; :'
    )
    done = run(tmp_path, "10.1.2.3", up=up)
    assert done.stdout.splitlines()[-1] == "drained"
    assert list((tmp_path / "submitted from here").iterdir()) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"nodes": 0},
        {"nodes": 10_001},
        {"gpus_per_node": 0},
        {"partition": "gpu\n#SBATCH --nodes=99"},
        {"partition": "gpu --uid=0"},
        {"account": "--exclusive"},
        {"time": "soon"},
        {"time": "1-00:00:00; reboot"},
        {"qos": ""},
        {"constraint": 'v100" --nodes=9'},
        {"interface": "ib0; reboot"},
        {"name": "a b"},
        {"up": ("two\nlines",)},
        {"shared": "/a\nb"},
    ],
)
def test_what_slurm_would_take_for_something_else_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(AppError, match="in a Slurm script"):
        script(job(**wrong))


def test_what_it_asks_of_this_program_is_understood() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser, "en")
    text = script(job()).replace("\\\n", "")
    line = next(line for line in text.splitlines() if line.startswith("srun "))
    words = shlex.split(line.removesuffix("&"))
    args = parser.parse_args(words[words.index("slurm") + 1 :])
    assert args.nodes == 4
    assert args.on_node == "$head_address:6379"
    assert tuple(args.up) == HOSTILE


@pytest.mark.parametrize("head", [True, False])
def test_ray_gets_the_node_and_not_what_it_sets_itself(head: bool) -> None:
    start = NodeStart(
        "n1", "10.0.0.1:6379", "10.0.0.2", head, "/t", "/tmp/r", Ports(), {"gpu_0": 1.0}, {"a": "b"}
    )
    words = symmetric_run(arguments(start), start.address, 3, ("echo", "--head"), head=head)
    at = words.index("--")
    assert words[:5] == ("symmetric-run", "--address", "10.0.0.1:6379", "--min-nodes", "3")
    assert words[at + 1 :] == ("echo", "--head")
    named = [word.partition("=")[0] for word in words[5:at]]
    assert not {"--head", "--block", "--port", "--address", "start"} & set(named)
    assert ("--node-ip-address" in named) is not head
    assert {"--resources", "--labels", "--temp-dir"} <= set(named)


def test_a_node_waits_for_the_head() -> None:
    with socket.create_server(("127.0.0.1", 0)) as head:
        port = head.getsockname()[1]
        wait_for_head("127.0.0.1", port)
    with pytest.raises(AppError, match=r"The head at 127\.0\.0\.1 did not begin within 0 s"):
        wait_for_head("127.0.0.1", port, within_s=0)


def test_a_head_that_is_not_ready_is_asked_again() -> None:
    pauses, tries = list[float](), list[int]()
    there = threading.Event()
    start = NodeStart("n", "h", "a", False, "t", "d", Ports(), {}, {})

    def prepare() -> NodeStart:
        tries.append(1)
        if not there.is_set():
            there.set()
            raise AppError(Text("not yet", "尚未"), Text("wait", "等待"))
        return start

    assert patiently(prepare, pauses.append) is start
    assert len(tries) == 2
    there.clear()
    with pytest.raises(AppError, match="not yet"):
        patiently(lambda: (there.clear(), prepare())[1], pauses.append)
