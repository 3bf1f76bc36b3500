"""Downloads packages through pip: the user's mirror, proxy, certificates and cache apply."""

import json
import os
import re
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from workhorse.errors import AppError
from workhorse.models.fetch import Progress
from workhorse.models.part_file import local_errors
from workhorse.models.pip_source import PIP
from workhorse.text import Text

_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")  # of `--progress-bar raw`, pip 24.1 on
REPORT = "packages.json"  # of `pip install --report`, pip 22.2 on
_NO_NETWORK = re.compile(
    r"NewConnectionError|Connect(?:ion)?Timeout|ReadTimeout|ProxyError|Failed to establish|"
    r"name resolution|Network is unreachable|Connection (?:refused|reset|broken)|"
    r"from versions: none",
    re.IGNORECASE,
)

# What a user may have set for installs of their own: `--target` does not go with --user, and
# other versions than ours would be asked for. Empty is unset, also for pip's own files.
_PINNED = {"PIP_USER": "0", "PIP_CONSTRAINT": "", "PIP_TARGET": "", "PIP_PREFIX": ""}


def run_pip(
    arguments: Sequence[str],
    what: Text,
    progress: Progress,
    lock: int | None = None,
    scratch: Path | None = None,
) -> None:
    """Run one pip command; AppError with the cause in its words when it fails.

    `lock`: the descriptor of a lock that pip holds on to when we are killed, so that nobody else
    begins while it still writes. `scratch`: where it unpacks instead of /tmp, which is often small.
    """
    environment = {**os.environ, **_PINNED}
    if scratch is not None:
        with local_errors(scratch):
            scratch.mkdir(exist_ok=True)
        environment["TMPDIR"] = str(scratch.absolute())
    command = [*PIP, *arguments, "--progress-bar", "raw"]
    said: list[str] = []
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment,
        pass_fds=() if lock is None else (lock,),
    ) as pip:
        try:
            for line in pip.stdout or ():
                if match := _PROGRESS.search(line):
                    progress(int(match[1]), int(match[2]))
                else:
                    said.append(line.strip())
        except BaseException:
            pip.terminate()
            raise
    if pip.returncode:
        raise pip_failed(what, said)


def pip_failed(what: Text, said: Sequence[str]) -> AppError:
    """Why pip failed, in one sentence and one step; pure."""
    text = "\n".join(said)
    lines = [line.removeprefix("ERROR: ") for line in said if line.startswith("ERROR: ")]
    words = (lines or [line for line in said if line][-1:] or ["no reason given"])[0][:300]
    step = Text("Mend that and run the command again.", "请解决后重新运行。")
    if "No space left" in text:
        words, step = (
            "No space left on device",
            Text("Free some space and run the command again.", "请清理磁盘空间后重新运行。"),
        )
    elif "DO NOT MATCH THE HASHES" in text:
        words = "a download is not the file that is pinned here; the mirror may be out of order"
        step = Text(
            "Set pip's index to another mirror (PIP_INDEX_URL).",
            "请将 pip 源换成其他镜像（PIP_INDEX_URL）。",
        )
    elif _NO_NETWORK.search(text):
        step = Text(
            "Connect to the network or set pip's index to a mirror that you can reach "
            "(PIP_INDEX_URL); or bring a build from another machine: workhorse engine install FILE",
            "请连接网络，或将 pip 源设为可访问的镜像（PIP_INDEX_URL）；"
            "也可从另一台机器带来构建：workhorse engine install 文件",
        )
    elif "No matching distribution found" in text:
        step = Text(
            "Let pip look where it is as well (PIP_EXTRA_INDEX_URL), or wait until your mirror "
            "has it.",
            "请让 pip 也查找含有该软件包的源（PIP_EXTRA_INDEX_URL），或等待镜像同步。",
        )
    return AppError(
        Text(f"{what.en} cannot be had: {words}.", f"无法获取{what.zh}：{words}。"), step
    )


def write_requirements(path: Path, lines: Sequence[str]) -> Path:
    """A requirements file with hashes, for pip."""
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


@dataclass(frozen=True, slots=True)
class Fetched:
    """One package that was fetched: what its file was."""

    name: str
    version: str
    sha256: str  # of the file that pip took


def install_pinned(lock: Path, target: Path, what: Text, progress: Progress) -> None:
    """Unpack the packages of a lock file below `target`, and note there what they were."""
    arguments = ["install", "--no-deps", "--only-binary=:all:", "--require-hashes"]
    arguments += ["--no-compile", "--target", str(target), "--report", str(target / REPORT)]
    with local_errors(target):
        target.mkdir(parents=True, exist_ok=True)
    run_pip([*arguments, "-r", str(lock)], what, progress)


def fetched_packages(root: Path) -> dict[str, Fetched]:
    """What was unpacked below `root`, by name; empty where nothing was noted."""
    found = {}
    with suppress(OSError, ValueError, KeyError, TypeError):
        report = json.loads((root / REPORT).read_bytes())
        for row in report["install"]:
            name = str(row["metadata"]["name"])
            sha256 = str(row["download_info"]["archive_info"]["hashes"]["sha256"])
            found[name] = Fetched(name, str(row["metadata"]["version"]), sha256)
    return found


@dataclass(frozen=True, slots=True)
class Pin:
    """One package of a lock file."""

    version: str
    hashes: tuple[str, ...]  # SHA-256 of its files, one for each kind of machine


def pinned(lock: str) -> dict[str, Pin]:
    """The packages that one of our lock files names."""
    text = files("workhorse.engines.supply").joinpath(lock).read_text("utf-8")
    found = {}
    for block in re.split(r"\n(?=\S)", text):
        if match := re.match(r"([\w-]+)==([\w.]+)", block):
            found[match[1]] = Pin(match[2], tuple(re.findall(r"sha256:(\w{64})", block)))
    return found
