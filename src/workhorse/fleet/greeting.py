"""What a head says of itself before a machine joins, and whether the two go together."""

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from workhorse import __version__
from workhorse.codec import from_json
from workhorse.errors import EXIT_NO, AppError
from workhorse.fleet.connect import ray_version
from workhorse.fleet.node_facts import HTTP_PORT_LABEL, NAME, VERSION
from workhorse.fleet.ray_start import HTTP_PORT, Ports, cluster_environment, without_ray
from workhorse.text import Text

ANSWER_WITHIN_S = 120.0  # importing Ray takes seconds on an old machine with a slow disk
SAID_LONGEST = 300


@dataclass(frozen=True, slots=True)
class Met:
    """One node that the head told of."""

    name: str
    address: str
    head: bool
    alive: bool
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Greeting:
    """What the head said: versions and nodes, or `said`: why it said nothing else."""

    ray: str | None = None
    python: str | None = None
    nodes: tuple[Met, ...] = ()
    refused: bool = False  # it did not take the token
    said: str | None = None

    @property
    def workhorse(self) -> str | None:
        """The version of this program on the head."""
        heads = [node for node in self.nodes if node.head and node.alive]
        return heads[0].labels.get(VERSION) if heads else None

    @property
    def http_port(self) -> int:
        """The port on which every node of the fleet serves."""
        heads = [node for node in self.nodes if node.head and node.alive]
        told = heads[0].labels.get(HTTP_PORT_LABEL, "") if heads else ""
        return int(told) if told.isdecimal() else HTTP_PORT


def ask_head(address: str, token_file: str, temp_dir: str) -> Greeting:
    """What the head says; blocks, seconds. An AppError when it refuses or says nothing of use."""
    command = [sys.executable, "-m", "workhorse.fleet.on_ray.greet", address]
    environment = without_ray(os.environ) | cluster_environment(token_file, temp_dir, Ports())
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=ANSWER_WITHIN_S,
            check=False,
            env=environment,
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        words = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    except subprocess.TimeoutExpired:
        lines, words = [], f"no answer within {ANSWER_WITHIN_S:.0f} s"
    except OSError as error:
        lines, words = [], str(error)
    greeting = (
        from_json(Greeting, lines[-1], what="answer of the head") if lines else Greeting(said=words)
    )
    refuse_silence(greeting, address)
    return greeting


def refuse_silence(greeting: Greeting, address: str) -> None:
    """An AppError when the head said nothing but why it says nothing."""
    if greeting.said is None:
        return
    if greeting.refused:
        raise AppError(
            Text(f"The head at {address} refuses this token.", f"主节点 {address} 拒绝了该令牌。"),
            Text(
                "Copy the token file from the head anew: `workhorse fleet init` names it there.",
                "请重新从主节点复制令牌文件：在主节点执行 `workhorse fleet init` 会显示其位置。",
            ),
            exit_code=EXIT_NO,
        )
    said = greeting.said[:SAID_LONGEST]
    raise AppError(
        Text(
            f"What listens at {address} does not speak as the head of a fleet: {said}",
            f"{address} 上的程序不像集群的主节点：{said}",
        ),
        Text(
            "Is it the address that `workhorse fleet init` told?",
            "请核对 `workhorse fleet init` 显示的地址。",
        ),
        exit_code=EXIT_NO,
    )


def refuse_unlike(greeting: Greeting, name: str, address: str) -> None:
    """An AppError when the head has other versions than this machine, or another node its name.

    Ray itself would start, and fail later with words of its own.
    """
    here = {
        "workhorse": __version__,
        "Ray": ray_version(),
        "Python": platform.python_version(),
    }
    there = {"workhorse": greeting.workhorse, "Ray": greeting.ray, "Python": greeting.python}
    for what, version in here.items():
        if there[what] != version:
            other = there[what] or "?"
            raise AppError(
                Text(
                    f"The head runs {what} {other}, this machine {version}: "
                    "both have to have the same.",
                    f"主节点的 {what} 为 {other}，本机为 {version}：两者必须一致。",
                ),
                _same_version(what, other),
                exit_code=EXIT_NO,
            )
    for node in greeting.nodes:
        if node.alive and node.address != address and node.labels.get(NAME) == name:
            raise AppError(
                Text(
                    f"The fleet has a node {name} already, at {node.address}.",
                    f"集群中已有名为 {name} 的节点（{node.address}）。",
                ),
                Text("Give this one another name: --name", "请用 --name 给本节点另取名称。"),
                exit_code=EXIT_NO,
            )


def _same_version(what: str, version: str) -> Text:
    if what == "Python":
        return Text(
            f"Install workhorse here with Python {version} (a bundle made on the head carries "
            "what is needed).",
            f"请在本机用 Python {version} 安装 workhorse（可用主节点制作的离线包）。",
        )
    package = "ray[serve]" if what == "Ray" else what
    return Text(
        f'Type here: {sys.executable} -m pip install "{package}=={version}"',
        f'请在本机执行：{sys.executable} -m pip install "{package}=={version}"',
    )
