"""Asks pip where a package's wheel is, so that the user's index, mirror and settings hold."""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from workhorse.errors import AppError
from workhorse.models.fetch import Progress
from workhorse.models.part_file import local_errors
from workhorse.text import Text

# -P: a file called pip.py in the current directory must not be run instead of pip.
PIP = (sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", "--no-input")
WANTED = ("--no-deps", "--only-binary=:all:")
# Without it, pip downloads the whole wheel to read its metadata from an index that does not serve
# metadata apart (PEP 658), as many mirrors do not. Called experimental, so it may go one day.
LAZY = "--use-feature=fast-deps"
USAGE_ERROR = 2  # pip's exit code for an option that it does not know

_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")  # of `--progress-bar raw`, pip 24.1 on


def wheel_url(requirement: str) -> str:
    """The address of the wheel that pip would install for `requirement` (`NAME==VERSION`).

    A http, https or file address, without the credentials that pip may have. Nothing is
    installed and, where the server allows, nothing but metadata is downloaded. Raises AppError
    with pip's own words when pip finds none.
    """
    with tempfile.TemporaryDirectory() as folder:
        # Into a file: on stdout, FORCE_COLOR would put colours between the braces.
        report = Path(folder, "report.json")
        command = [*PIP, "install", "--dry-run", "--ignore-installed", "--quiet", *WANTED]
        command += ["--report", str(report), requirement]
        done = _run([*command, LAZY])
        if done.returncode == USAGE_ERROR:
            done = _run(command)
        if done.returncode:
            raise _not_found(requirement, done.stderr)
        url = json.loads(report.read_text("utf-8"))["install"][0]["download_info"]["url"]
    return str(url)


def download_wheel(requirement: str, target: Path, progress: Progress) -> None:
    """Let pip itself download the wheel to `target`: slower to resume, but with its credentials.

    For indexes that ask for a password, client certificates and proxies that only pip knows.
    Raises AppError with pip's own words when it fails too.
    """
    with local_errors(target), tempfile.TemporaryDirectory(dir=target.parent) as folder:
        command = [*PIP, "download", *WANTED, "--progress-bar", "raw", "--dest", folder]
        with subprocess.Popen(
            [*command, requirement],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            said = []
            for line in process.stdout or ():
                if match := _PROGRESS.search(line):
                    progress(int(match[1]), int(match[2]))
                else:
                    said.append(line)
        wheels = list(Path(folder).glob("*.whl"))
        if process.returncode or not wheels:
            raise _not_found(requirement, "".join(said))
        wheels[0].replace(target)


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )


def _not_found(requirement: str, words: str) -> AppError:
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    said = (errors or lines or ["no reason given"])[0]
    return AppError(
        Text(
            f"pip finds no package {requirement}: {said}",
            f"pip 找不到软件包 {requirement}：{said}",
        ),
        Text(
            "Connect to the network, set pip's index to a mirror that you can reach, or name a "
            "model file of your own.",
            "请连接网络，或将 pip 源设为可访问的镜像，或指定您自己的模型文件。",
        ),
    )
