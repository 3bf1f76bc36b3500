"""`workhorse diagnose`: from a log to the cause, the fix, and how to check it."""

import argparse
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from workhorse.cli.log_files import Log, no_text, open_log, pipe_waits
from workhorse.cli.progress import LateBar
from workhorse.cli.show import console, print_verdict
from workhorse.codec import to_json
from workhorse.config import places
from workhorse.errors import EXIT_FAILED, EXIT_GOOD, EXIT_NO, EXIT_USAGE, AppError
from workhorse.records import Machine, Verdict
from workhorse.text import Language, Text

if TYPE_CHECKING:
    from workhorse.diagnose.scan import Scanner

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
            "log files, also packed ones; left out: what a pipe feeds, else the newest engine log"
            " of workhorse",
            "日志文件，可为压缩文件；省略则读取管道输入，若无则读取 workhorse 最新的引擎日志",
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

    if args.logs and args.unit:
        raise AppError(
            Text("Both a log and --unit were given.", "同时给出了日志文件和 --unit。"),
            Text("Give one of them.", "请只给出其中之一。"),
            exit_code=EXIT_USAGE,
        )
    # A capture that cannot be read is better told before a large log has been.
    machine = stated_machine(args.machine)
    scanner = scan([])
    with ExitStack() as open_files, LateBar(READING, args.lang) as bar:
        if args.unit:
            scanner.read([journal(args.unit)])
            ends = [(args.unit, scanner.lines)]
        else:
            names = args.logs or ["-" if pipe_waits() else str(newest_log(places().logs))]
            logs = [open_log(name, open_files) for name in names]
            ends = read_all(logs, scanner, bar)
    verdict = diagnose(scanner, facts_of_machine(machine))
    if not args.unit and all(f.level == "note" for f in verdict.findings):
        for log in logs:
            if not log.text:
                raise no_text(log.name)
    if len(ends) > 1:
        verdict = located(verdict, ends)
    if args.json:
        print(to_json(verdict))
    else:
        print_diagnosis(verdict, [name for name, _ in ends], scanner.lines, args.lang)
    return EXIT_NO if any(f.level == "cause" for f in verdict.findings) else EXIT_GOOD


def print_diagnosis(verdict: Verdict, names: list[str], lines: int, language: Language) -> None:
    """The findings, the likeliest first; or that nothing is wrong."""
    read = Text(f"{', '.join(names)}: {lines:,} lines", f"{', '.join(names)}：{lines:,} 行")
    console().print(read.in_language(language), style="dim", markup=False)
    if not verdict.findings:
        nothing = (
            Text("Nothing in it points to a trouble.", "日志中没有发现问题。")
            if lines
            else Text("The log is empty.", "日志为空。")
        )
        console().print(nothing.in_language(language))
    print_verdict(verdict, language)


def read_all(logs: list[Log], scanner: "Scanner", bar: LateBar) -> list[tuple[str, int]]:
    """All logs, one after the other, with the progress told; the last line of each."""
    sizes = [log.size_bytes for log in logs if log.size_bytes is not None]
    total_bytes = sum(sizes) if len(sizes) == len(logs) else None
    done_bytes = 0
    ends = []

    def told(chunks: Iterator[bytes]) -> Iterator[bytes]:
        nonlocal done_bytes
        for chunk in chunks:
            yield chunk
            done_bytes += len(chunk)
            bar.step(done_bytes, total_bytes)

    for log in logs:
        scanner.read(told(log.chunks()))
        ends.append((log.name, scanner.lines))
    return ends


def located(verdict: Verdict, ends: Sequence[tuple[str, int]]) -> Verdict:
    """The same with each line's own log and number in it: `ends` has the last line of each."""

    def own(line: str) -> str:
        number, _, words = line.partition(": ")
        before = 0
        for name, end in ends:
            if int(number) <= end:
                return f"{name}:{int(number) - before}: {words}"
            before = end
        return line

    return replace(
        verdict,
        findings=tuple(
            replace(f, evidence=tuple(own(line) for line in f.evidence)) for f in verdict.findings
        ),
    )


def stated_machine(path: Path | None) -> Machine:
    """The machine that the log comes from: the capture named, else this one.

    Raises AppError when there is no such capture.
    """
    from workhorse.machine.probe import probe

    try:
        return probe(path or Path("/"), measure_s=0)
    except AppError as error:
        if path is None:
            raise
        raise AppError(
            error.what,
            Text(
                "Give --machine a capture (workhorse probe --save DIR), or leave it out when the"
                " log is of this machine.",
                "请为 --machine 指定采集（workhorse probe --save DIR）；若日志来自本机，请省略。",
            ),
            exit_code=error.exit_code,
        ) from error


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
