"""`workhorse diagnose`: from a log to the cause, the fix, and how to check it."""

import argparse
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from workhorse.cli.progress import LateBar
from workhorse.cli.show import console, print_verdict
from workhorse.codec import to_json
from workhorse.config import places
from workhorse.errors import EXIT_FAILED, EXIT_GOOD, EXIT_NO, EXIT_USAGE, AppError
from workhorse.records import Verdict
from workhorse.text import Language, Text

_CHUNK_BYTES = 4 * 1024**2
# A unit's journal of weeks is larger than anybody needs: the last start is at its end.
_JOURNAL_LINES = 200_000
READING = Text("Reading the log", "正在读取日志")


def add_arguments(parser: argparse.ArgumentParser, language: Language) -> None:
    """The options of `diagnose`."""
    parser.add_argument(
        "logs",
        nargs="*",
        metavar="LOG",
        help=Text(
            "log files; - reads a pipe; left out: the newest engine log of workhorse",
            "日志文件；- 表示读取管道；省略则读取 workhorse 最新的引擎日志",
        ).in_language(language),
    )
    parser.add_argument(
        "--unit",
        metavar="NAME",
        help=Text("the journal of a systemd unit", "systemd 单元的日志").in_language(language),
    )
    parser.add_argument(
        "--machine",
        type=Path,
        metavar="CAPTURE",
        help=Text(
            "the machine that the log comes from (probe --save); else this one",
            "日志所属机器的采集（probe --save）；默认为本机",
        ).in_language(language),
    )


def run(args: argparse.Namespace) -> int:
    """Print what the log means; exit 3 when a cause was found, 0 when nothing was."""
    from workhorse.diagnose.facts import facts_of_machine
    from workhorse.diagnose.judge import diagnose, scan
    from workhorse.machine.probe import probe

    if args.logs and args.unit:
        raise AppError(
            Text("Both a log and --unit were given.", "同时给出了日志文件和 --unit。"),
            Text("Give one of them.", "请只给出其中之一。"),
            exit_code=EXIT_USAGE,
        )
    # A capture that cannot be read is better told before a large log has been.
    machine = probe(args.machine or Path("/"), measure_s=0)
    with ExitStack() as open_files, LateBar(READING, args.lang) as bar:
        if args.unit:
            names, chunks = [args.unit], iter([journal(args.unit)])
        else:
            names = args.logs or [str(newest_log(places().logs))]
            sources = [open_log(name, open_files) for name in names]
            chunks = read_all(sources, sum(size_bytes(name) for name in names) or None, bar)
        scanner = scan(chunks)
    verdict = diagnose(scanner, facts_of_machine(machine))
    if args.json:
        print(to_json(verdict))
    else:
        print_diagnosis(verdict, names, scanner.lines, args.lang)
    return EXIT_NO if any(f.level == "cause" for f in verdict.findings) else EXIT_GOOD


def print_diagnosis(verdict: Verdict, names: list[str], lines: int, language: Language) -> None:
    """The findings, the likeliest first; or that nothing is wrong."""
    read = Text(f"{', '.join(names)}: {lines:,} lines", f"{', '.join(names)}：{lines:,} 行")
    console().print(read.in_language(language), style="dim", markup=False)
    if not verdict.findings:
        nothing = Text("Nothing in it points to a trouble.", "日志中没有发现问题。")
        console().print(nothing.in_language(language))
    print_verdict(verdict, language)


def open_log(name: str, open_files: ExitStack) -> BinaryIO:
    """The log's bytes; `-` is standard input. Raises AppError when it cannot be read."""
    if name == "-":
        return sys.stdin.buffer
    try:
        file = Path(name).open("rb")  # noqa: SIM115
        open_files.callback(file.close)
        file.peek(1)  # a folder opens, and fails only when it is read
    except OSError as error:
        raise AppError(
            Text(
                f"{name} cannot be read: {error.strerror}.",
                f"无法读取 {name}：{error.strerror}。",
            ),
            Text("Give the path of a readable log file.", "请给出可读的日志文件路径。"),
        ) from error
    return file


def size_bytes(name: str) -> int:
    """The log's size; 0 when it has none, as a pipe."""
    try:
        return 0 if name == "-" else Path(name).stat().st_size
    except OSError:
        return 0


def read_all(sources: list[BinaryIO], total_bytes: int | None, bar: LateBar) -> Iterator[bytes]:
    """The bytes of all logs, one after the other, with the progress told."""
    done = 0
    for source in sources:
        last = b""
        while chunk := source.read(_CHUNK_BYTES):
            yield chunk
            last = chunk
            done += len(chunk)
            bar.step(done, total_bytes)
        if last and not last.endswith(b"\n"):
            yield b"\n"  # else the next log would go on in this one's last line


def newest_log(folder: Path) -> Path:
    """The engine log that was written last. Raises AppError when there is none."""
    logs = sorted(folder.glob("engine-*.log"), key=lambda path: path.stat().st_mtime)
    if not logs:
        raise AppError(
            Text(f"There is no engine log in {folder} yet.", f"{folder} 中还没有引擎日志。"),
            Text(
                "Give a log file: workhorse diagnose LOG.",
                "请给出日志文件：workhorse diagnose LOG。",
            ),
        )
    return logs[-1]


def journal(unit: str) -> bytes:
    """The unit's journal of this boot. Raises AppError when systemd gives none."""
    command = ("journalctl", "--no-pager", "-o", "cat", "-b", "-n", str(_JOURNAL_LINES), "-u", unit)
    try:
        done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        said = str(error)
    else:
        if (
            done.returncode == 0
            and done.stdout.strip()
            and done.stdout.strip() != b"-- No entries --"
        ):
            return done.stdout
        said = done.stderr.decode(errors="replace").strip() or "no entries"
    raise AppError(
        Text(f"The journal of {unit} cannot be read: {said}.", f"无法读取 {unit} 的日志：{said}。"),
        Text(
            f"Check the name (systemctl status {unit}); another user's units need root.",
            f"请核对单元名（systemctl status {unit}）；其他用户的单元需要 root 权限。",
        ),
        exit_code=EXIT_FAILED,
    )
