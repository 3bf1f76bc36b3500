"""Runs llama.cpp's converter: its progress, its failures in one sentence, no network, no code."""

import os
import re
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

from workhorse.errors import AppError
from workhorse.models.refusals import shown
from workhorse.text import Text

_SHARE = re.compile(r"Writing:\s+(\d{1,3})%")
LINES_KEPT = 200
# Ends the converter with us, then becomes it: the kernel would leave it at work (linux/prctl.h).
_TIED = (
    "import ctypes, os, sys; "
    "ctypes.CDLL(None).prctl(1, 9, 0, 0, 0); "
    "os.getppid() == int(sys.argv[1]) or os._exit(1); "
    "os.execv(sys.argv[2], sys.argv[2:])"
)


def run_converter(
    command: Sequence[str], place: Path, progress: Callable[[int, int | None], None]
) -> None:
    """Run it to its end; AppError with the cause when it fails, an interruption ends it first."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "HF_", "TRANSFORMERS_"))
    }
    environment |= {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "TMPDIR": str(place),
        "HF_HOME": str(place / "home"),
        "USE_TF": "0",
    }
    tied = [sys.executable, "-I", "-c", _TIED, str(os.getpid()), *command]
    said: deque[str] = deque(maxlen=LINES_KEPT)
    progress(0, None)
    with subprocess.Popen(
        tied,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        cwd=place,
    ) as process:
        try:
            for line in _lines(process.stdout):
                if found := _SHARE.search(line):
                    progress(int(found[1]), 100)
                else:
                    said.append(line)
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise converter_failed(process.returncode, list(said))


def _lines(stream: IO[bytes] | None) -> Iterator[str]:
    """Lines, also those that a progress bar writes over."""
    rest = b""
    while stream is not None and (raw := os.read(stream.fileno(), 65536)):
        *whole, rest = re.split(rb"[\r\n]", rest + raw)
        yield from (line.decode(errors="replace") for line in whole if line.strip())
        rest = rest[-65536:]
    if rest.strip():
        yield rest.decode(errors="replace")


def converter_failed(code: int, said: Iterable[str]) -> AppError:
    """Why there is no file, in one sentence and one step; pure."""
    lines = [shown(line.strip()) for line in said if line.strip()]
    text = "\n".join(lines)
    last = next((line for line in reversed(lines) if not line.startswith("File ")), f"code {code}")
    step = Text(
        "Fetch the model again (`workhorse pull`), whole and with its tokenizer; or take a GGUF "
        "file of it.",
        "请重新完整下载该模型（`workhorse pull`，含分词器），或直接使用其 GGUF 文件。",
    )
    if "No space left" in text:
        last, step = (
            "the disk is full",
            Text(
                "Free some space, or choose another disk with --output.",
                "请清理磁盘空间，或用 --output 指定其他磁盘。",
            ),
        )
    elif code == -9:
        last, step = (
            "it was killed, most likely because memory ran out",
            Text("Use a machine with more memory.", "请使用内存更大的机器。"),
        )
    elif "is not supported" in text or "NotImplementedError" in text:
        why = [line for line in lines if "not supported" in line or "NotImplemented" in line]
        last = why[-1]
        step = Text(
            "This version of llama.cpp cannot convert it; take a GGUF file of the model, or an "
            "engine for checkpoints (--engine vllm).",
            "本版本的 llama.cpp 无法转换；请使用该模型的 GGUF 文件，或使用支持原始模型的引擎"
            "（--engine vllm）。",
        )
    elif "trust_remote_code" in text or "dynamic_module" in text:
        last = "its tokenizer needs Python code from the model's publisher, which is not run"
        step = Text("Take a GGUF file of the model.", "请使用该模型的 GGUF 文件。")
    return AppError(
        Text(f"llama.cpp's converter: {last[:300]}.", f"llama.cpp 转换程序：{last[:300]}。"), step
    )
