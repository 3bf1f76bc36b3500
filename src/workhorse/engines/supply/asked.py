"""What an environment says of itself, asked by its own Python: nothing of it is imported here."""

import json
import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from workhorse.engines.supply import ask_environment
from workhorse.errors import AppError
from workhorse.text import Text

# Importing PyTorch and an engine from a cold disk.
ASK_TIMEOUT_S = 600
# An option's definition in a help text of argparse: `  -h, --help`, `  --dtype {auto,…}`.
_DEFINED = re.compile(r"^\s{1,8}(?:-\w,? )?(--[a-z][\w-]*(?:, --[a-z][\w-]*)*)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Asked:
    """What an environment said of itself."""

    version: str
    torch: str | None
    cuda: str | None
    architectures: tuple[str, ...]  # what its PyTorch has code for: sm_70 …
    options: tuple[str, ...]
    model_classes: tuple[str, ...] | None
    packages: tuple[str, ...]
    trouble: str | None = None  # why a part of it does not load here


def ask(home: Path, engine: str, module: str) -> Asked:
    """What the environment says that it is; AppError with its last words when it cannot."""
    python = str(home / "bin" / "python")
    last = _run([python, "-I", ask_environment.__file__, engine]).splitlines()[-1]
    try:
        said = dict(json.loads(last))
    except (ValueError, TypeError) as error:  # something in it writes behind our question
        raise _does_not_load(f"its answer is {last[:100]!r}") from error
    return Asked(
        version=str(said.get("version") or "unknown"),
        torch=said.get("torch"),
        cuda=said.get("cuda"),
        architectures=tuple(said.get("architectures") or ()),
        options=options_of(python, engine, module),
        model_classes=tuple(said["model_classes"]) if said.get("model_classes") else None,
        packages=tuple(said.get("packages") or ()),
        trouble=said.get("trouble"),
    )


def options_of(python: str, engine: str, module: str) -> tuple[str, ...]:
    """The options that the server understands, by its own help."""
    command = [python, "-m", module]
    if engine == "lmdeploy":
        text = _run([*command, "serve", "api_server", "--help"])
    else:
        try:
            text = _run([*command, "--help=all"])
        except AppError:  # versions whose help shows everything at once
            text = _run([*command, "--help"])
    return read_options(text)


def read_options(text: str) -> tuple[str, ...]:
    """The options that a help text of argparse defines. Pure."""
    found = {option for line in _DEFINED.findall(text) for option in line.split(", ")}
    return tuple(sorted(found))


def _run(command: Sequence[str]) -> str:
    try:
        answer = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ASK_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            check=False,
            # Neither ours nor a clone of the engine in the user's folder shadows what it imports,
            # and no colours come between the words.
            env={
                **_without_python(os.environ),
                "PYTHONSAFEPATH": "1",
                "NO_COLOR": "1",
                "COLUMNS": "200",
            },
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _does_not_load(str(error)) from error
    if answer.returncode or not answer.stdout.strip():
        lines = [line for line in answer.stderr.splitlines() if line.strip()]
        raise _does_not_load(lines[-1][:300] if lines else f"exit code {answer.returncode}")
    return answer.stdout


def _without_python(environ: "os._Environ[str]") -> dict[str, str]:
    return {name: value for name, value in environ.items() if not name.startswith("PYTHON")}


def _does_not_load(cause: str) -> AppError:
    return AppError(
        Text(f"The engine does not load: {cause}", f"引擎无法加载：{cause}"),
        Text(
            "Its packages do not fit this machine; install another environment.",
            "其软件包与本机不兼容；请安装其他环境。",
        ),
        speaker="engine",
    )
