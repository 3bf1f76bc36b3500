"""Starts the child that does one job, passes on how far it is, and brings back its answer."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from workhorse.codec import from_json, to_json
from workhorse.errors import AppError
from workhorse.models.quantize.jobs import Job, Line
from workhorse.models.refusals import shown
from workhorse.text import Text

CHILD = "workhorse.models.quantize.child"
SAID_BYTES = 2000  # of the engine's last words
Progress = Callable[[int, int], None]
T = TypeVar("T")


def do(job: Job, progress: Progress, environment: Mapping[str, str], place: Path) -> Line:
    """The child's answer; `environment` is added to ours, `place` is where it writes.

    Raises AppError: the engine's library does not load or refuses, it died, the disk is full. An
    interruption ends the child first.
    """
    # -P: modules in the current folder, which may be the model's, are not run.
    command = [sys.executable, "-P", "-m", CHILD, str(os.getpid())]
    with tempfile.TemporaryFile() as said:
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            env={**os.environ, **environment},
        ) as child:
            try:
                with suppress(BrokenPipeError), needed(child.stdin) as stream:
                    stream.write(to_json(job).encode())
                answer = _listen(needed(child.stdout), progress)
            except BaseException:
                child.kill()
                raise
        said.seek(max(0, said.seek(0, os.SEEK_END) - SAID_BYTES))
        words = said.read().decode(errors="replace")
    if answer is None:
        raise died(child.returncode, words)
    if answer.disk_full:
        raise AppError(
            Text(f"The disk is full at {shown(str(place))}.", f"磁盘已满：{shown(str(place))}。"),
            Text("Free some space and run the command again.", "请清理磁盘空间后重新运行。"),
        )
    if answer.failed is not None and answer.too_short_tokens is None:
        raise failed(answer.failed, words)
    return answer


def needed(part: T | None) -> T:
    """A part of an answer that has to be there; AppError when it is not."""
    if part is None:
        raise failed("no answer", "")
    return part


def _listen(stream: Iterable[bytes], progress: Progress) -> Line | None:
    answer = None
    for raw in stream:
        line = from_json(Line, raw, what="an answer of the engine")
        if line.total is not None:
            progress(line.done, line.total)
        else:
            answer = line
    return answer


def died(code: int, words: str) -> AppError:
    """The child ended without an answer; pure."""
    if code == -4:  # SIGILL
        return AppError(
            Text(
                "The engine's library needs a CPU with AVX2, FMA and F16C, which this one is not.",
                "引擎库需要支持 AVX2、FMA 和 F16C 的 CPU，本机不支持。",
            ),
            Text(
                "Make the file on another machine and copy it here.",
                "请在其他机器上生成该文件后复制过来。",
            ),
        )
    if code == -9:
        return AppError(
            Text(
                "The engine was killed, most likely because memory ran out.",
                "引擎被终止，很可能是内存不足。",
            ),
            Text(
                "Use a machine with more memory than the model's file is large.",
                "请使用内存大于模型文件的机器。",
            ),
        )
    return failed(f"ended with {-code if code < 0 else code}", words)


def failed(why: str, words: str) -> AppError:
    """The engine said no; its last line beside it; pure."""
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower() or "libgomp" in line]
    last = shown((errors or [""])[-1])[:300]
    more = f" ({last})" if last else ""
    return AppError(
        Text(f"The engine: {shown(why)}{more}.", f"引擎：{shown(why)}{more}。"),
        Text(
            "Check the file with `workhorse plan FILE`; a damaged one has to be fetched again.",
            "请用 `workhorse plan 文件` 检查该文件；若已损坏请重新获取。",
        ),
    )
