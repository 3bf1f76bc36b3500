"""Finds engine builds: the embedded one, or a `llama-server` that the user has."""

import os
import platform
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from workhorse.engines import embedded
from workhorse.engines.capabilities import Option, capabilities, read_help
from workhorse.engines.openmp import openmp_library_dir
from workhorse.errors import AppError
from workhorse.records import EngineBuild
from workhorse.text import Text

PACKAGE = "xllamacpp"

# The wheel is built for one instruction set without dispatch: it runs on an emulated Broadwell
# and dies of an illegal instruction on Ivy Bridge (tried 2026-11). Flags as in /proc/cpuinfo.
EMBEDDED_NEEDS = {"x86_64": ("avx2", "bmi2", "f16c", "fma"), "aarch64": ()}

# `--help` of a build that also initialises a GPU takes a few seconds on a cold driver.
ASK_TIMEOUT_S = 60


def embedded_build() -> EngineBuild:
    """The engine from our own dependencies. Raises `AppError` when it is not installed."""
    if find_spec(PACKAGE) is None:
        raise AppError(
            Text(
                f"The embedded engine ({PACKAGE}) is not installed for {platform.machine()}.",
                f"未安装适用于 {platform.machine()} 的内置引擎（{PACKAGE}）。",
            ),
            Text(
                "Pass a llama-server that you have: --engine PATH.",
                "请用 --engine 指定已有的 llama-server。",
            ),
        )
    try:
        installed = version(PACKAGE)
    except PackageNotFoundError:
        installed = "unknown"
    understood = capabilities(
        [
            Option(
                tuple(action.option_strings),
                None if action.nargs == 0 else "VALUE",
                # The embedded server's own scale has the level at which buffers are told.
                "trace" if action.dest == "verbosity" else "",
            )
            for action in embedded.parser()._actions
        ]
    )
    library_dir = openmp_library_dir()
    return EngineBuild(
        engine="llama.cpp",
        kind="embedded",
        # -I: nothing in the user's environment or folder shadows the engine's modules.
        command=(sys.executable, "-I", embedded.__file__),
        version=f"{PACKAGE} {installed}",
        needs_flags=EMBEDDED_NEEDS.get(platform.machine(), ()),
        gpu_architectures=(),
        openmp=True,
        library_dir=str(library_dir) if library_dir else None,
        knows=understood.knows,
        source=f"{PACKAGE} wheel, tried on emulated CPUs 2026-11",
        forms=understood.forms,
    )


def binary_build(path: Path) -> EngineBuild:
    """The `llama-server` at `path`, asked for its version, settings and devices.

    Raises `AppError` when it is no program, does not run here, or is no llama-server.
    """
    program = path.expanduser().absolute()
    if not program.is_file() or not os.access(program, os.X_OK):
        state, state_zh = "does not exist", "不存在"
        if program.is_dir():
            state = "is a folder without bin/python, so no environment"
            state_zh = "是目录，但其中没有 bin/python，不是环境"
        elif program.exists():
            state, state_zh = "is not executable", "没有执行权限"
        raise AppError(
            Text(f"The engine {program} {state}.", f"引擎 {program} {state_zh}。"),
            Text(
                "Give the path of a llama-server program, or of an environment with vLLM or "
                "LMDeploy.",
                "请给出 llama-server 程序，或含 vLLM、LMDeploy 的环境的路径。",
            ),
        )
    understood = capabilities(read_help(ask(program, "--help")))
    if not {"--ctx-size", "--parallel", "--model"} <= set(understood.knows):
        raise AppError(
            Text(f"{program} is not a llama-server.", f"{program} 不是 llama-server。"),
            Text(
                "Give the path of llama.cpp's `llama-server` program.",
                "请给出 llama.cpp 的 `llama-server` 路径。",
            ),
        )
    numbers = re.search(r"version: (.+)", ask(program, "--version"))
    devices = ask(program, "--list-devices") if "--list-devices" in understood.knows else ""
    return EngineBuild(
        engine="llama.cpp",
        kind="binary",
        command=(str(program),),
        version=f"llama-server {numbers[1].strip()}" if numbers else "llama-server",
        needs_flags=(),
        gpu_architectures=None if re.search(r"(?m)^\s*CUDA\d+:", devices) else (),
        openmp=None,
        library_dir=None,
        knows=understood.knows,
        forms=understood.forms,
        source=f"{program.name} --help, --version, --list-devices",
    )


def ask(program: Path, question: str) -> str:
    """What the program prints when asked; an `AppError` with its last line when it fails."""
    try:
        answer = subprocess.run(
            [program, question],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ASK_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise cannot_run(program, str(error)) from error
    said = answer.stdout + answer.stderr
    if answer.returncode != 0:
        lines = [line for line in said.splitlines() if line.strip()]
        raise cannot_run(program, how_it_ended(answer.returncode, lines[-1] if lines else ""))
    return said


def how_it_ended(returncode: int, last_line: str) -> str:
    """A return code in words; an illegal instruction is said as such."""
    if returncode == -4:
        return "illegal instruction: it was built for another CPU"
    return f"exit code {returncode}: {last_line}" if last_line else f"exit code {returncode}"


def cannot_run(program: Path, cause: str) -> AppError:
    """The program does not run on this host."""
    return AppError(
        Text(
            f"The engine {program} does not run here: {cause}.",
            f"引擎 {program} 无法运行：{cause}。",
        ),
        Text(
            "Make one for this machine (workhorse engine build), or leave out --engine.",
            "请为本机构建（workhorse engine build），或不加 --engine。",
        ),
        speaker="engine",
    )
