"""The options of `workhorse batch`."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workhorse.cli.arguments import positive
from workhorse.cli.parser import not_taken
from workhorse.cli.service_options import add_access
from workhorse.text import Language, Text

if TYPE_CHECKING:
    from workhorse.batch.job import Window

STREAMS_MAX = 4096


def add_arguments(parser: argparse.ArgumentParser, language: Language) -> None:
    """The verb's own options."""

    def words(en: str, zh: str) -> str:
        return Text(en, zh).in_language(language)

    add = parser.add_argument
    add(
        "job",
        nargs="?",
        metavar="JOB",
        help=words(
            "a folder or a file of documents, a file of OpenAI batch requests (.jsonl), a job file "
            "(.toml); or resume, status, cancel, retry (a folder of that name is ./status)",
            "文档目录或文件、OpenAI 批量请求文件（.jsonl）、任务文件（.toml）；"
            "或 resume、status、cancel、retry（同名目录请写作 ./status）",
        ),
    )
    add(
        "id",
        nargs="?",
        metavar="ID",
        help=words(
            "with resume, status, cancel, retry: which job (default: the latest that fits; status "
            "shows all)",
            "配合 resume、status、cancel、retry：哪个任务（默认最近一个符合的；status 列出全部）",
        ),
    )
    add(
        "--template",
        metavar="NAME|FILE",
        help=words(
            "what is done with each document; `workhorse templates list` shows them",
            "对每篇文档做什么；用 `workhorse templates list` 查看",
        ),
    )
    add(
        "--set",
        action="append",
        type=setting,
        metavar="OPTION=VALUE",
        help=words(
            "an option of the template, such as words=60; may be given several times",
            "模板的选项，例如 words=60；可多次给出",
        ),
    )
    add_result(parser, language)
    add_reading(parser, language)
    add_pace(parser, language)
    add_trial(parser, language)
    add(
        "--url",
        metavar="URL",
        help=words(
            "an OpenAI-compatible service (default: the one that runs here)",
            "兼容 OpenAI 的服务地址（默认为本机正在运行的服务）",
        ),
    )
    add_access(parser, language)


def add_trial(parser: argparse.ArgumentParser, language: Language) -> None:
    """The forecast without the job."""
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help=Text(
            "show the forecast alone: documents, tokens, hours (exit code 3: with --window, more "
            "than one day's hours)",
            "只显示预测：文档数、token 数、用时（配合 --window：一天的时段内做不完则退出码为 3）",
        ).in_language(language),
    )


def add_result(parser: argparse.ArgumentParser, language: Language) -> None:
    """Where the results go, and in which form."""
    rows: tuple[tuple[str, dict[str, Any], Text], ...] = (
        (
            "--output",
            {"type": Path, "metavar": "PATH"},
            Text(
                "the file or folder of the results (default: named after input and template, here)",
                "结果文件或目录（默认以输入和模板命名，位于当前目录）",
            ),
        ),
        (
            "--form",
            {"choices": ("jsonl", "csv", "xlsx", "folder", "openai")},
            Text(
                "form of the results (default: by the output's name, else the template's)",
                "结果的格式（默认按输出文件名，否则由模板决定）",
            ),
        ),
        (
            "--overwrite",
            {"action": "store_true"},
            Text("let the results replace what is there", "允许覆盖已有的结果"),
        ),
        (
            "--report",
            {"type": Path, "metavar": "FILE"},
            Text("write the report as Markdown too", "同时把报告写成 Markdown 文件"),
        ),
        (
            "--attempts",
            {"type": positive, "metavar": "N"},
            Text(
                "how often a document is tried before it is set aside (default 3)",
                "每篇文档最多尝试几次（默认 3）",
            ),
        ),
    )
    for option, how, about in rows:
        parser.add_argument(option, help=about.in_language(language), **how)


def add_reading(parser: argparse.ArgumentParser, language: Language) -> None:
    """How the documents are read."""
    rows: tuple[tuple[str, dict[str, Any], Text], ...] = (
        (
            "--language",
            {"choices": ("en", "zh", "auto")},
            Text(
                "language of the prompts (default: auto, each document's own)",
                "提示词的语言（默认 auto：随文档而定）",
            ),
        ),
        (
            "--column",
            {"metavar": "NAME"},
            Text(
                "the column (or JSON key) that holds the text, of a table whose rows are documents",
                "表格每行一篇文档时，正文所在的列（或 JSON 键）",
            ),
        ),
        (
            "--id-column",
            {"metavar": "NAME"},
            Text(
                "the column (or JSON key) that names each row", "每行的编号所在的列（或 JSON 键）"
            ),
        ),
        (
            "--accept",
            {"action": "append", "metavar": "PATTERN"},
            Text(
                "which files of a folder, such as '*.py'; may be given several times",
                "只处理目录中的哪些文件，例如 '*.py'；可多次给出",
            ),
        ),
    )
    for option, how, about in rows:
        parser.add_argument(option, help=about.in_language(language), **how)


def add_pace(parser: argparse.ArgumentParser, language: Language) -> None:
    """How much of the service the job takes, and when."""
    rows: tuple[tuple[str, dict[str, Any], Text], ...] = (
        (
            "--streams",
            {"type": streams, "metavar": "N"},
            Text(
                "at most so many requests at once (default: what was measured to be fastest)",
                "最多同时进行的请求数（默认为实测最快的并发数）",
            ),
        ),
        (
            "--yield-to-chat",
            {"action": "store_true"},
            Text(
                "keep slots free while people chat (they go first in any case)",
                "有人对话时留出空闲槽位（对话总是优先）",
            ),
        ),
        (
            "--window",
            {"action": "append", "type": window, "metavar": "HH:MM-HH:MM"},
            Text(
                "run within these hours alone, local time, such as 20:00-07:00; may be given "
                "several times",
                "只在该时段内运行（本地时间），例如 20:00-07:00；可多次给出",
            ),
        ),
    )
    for option, how, about in rows:
        parser.add_argument(option, help=about.in_language(language), **how)


def setting(word: str) -> tuple[str, str]:
    """`words=60` in two parts."""
    name, equals, value = word.partition("=")
    if not equals or not name.strip():
        raise not_taken(Text(f"{word!r} is no OPTION=VALUE", f"{word!r} 不是 选项=值"))
    return name.strip(), value


def window(word: str) -> "Window":
    """Hours of the day such as `20:00-07:00`."""
    from workhorse.batch.windows import window_of

    try:
        return window_of(word)
    except ValueError:
        raise not_taken(
            Text(
                f"{word!r} is no span such as 20:00-07:00", f"{word!r} 不是 20:00-07:00 这样的时段"
            )
        ) from None


def streams(word: str) -> int:
    """A count of requests at once."""
    number = positive(word)
    if number > STREAMS_MAX:
        raise not_taken(Text(f"{word} is more than {STREAMS_MAX}", f"{word} 超过 {STREAMS_MAX}"))
    return number
