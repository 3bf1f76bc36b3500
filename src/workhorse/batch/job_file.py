"""A job as a person orders it: a TOML file, words on the command line, or both; the words win."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from workhorse.batch.job import Job, OutputForm, Pace, Window
from workhorse.batch.output import check_output
from workhorse.batch.template_files import Found, settle_options
from workhorse.batch.windows import window_of
from workhorse.codec import mistake_in_words
from workhorse.errors import EXIT_USAGE, AppError
from workhorse.text import Text, same
from workhorse.units import MIB

SUFFIX = ".toml"
LARGEST_BYTES = MIB
REQUESTS = "request"  # the template of a job whose items are requests as they are
ENDINGS: dict[OutputForm, str] = {
    "jsonl": ".jsonl",
    "csv": ".csv",
    "xlsx": ".xlsx",
    "folder": "",
    "openai": ".jsonl",
}
Language = Literal["en", "zh", "auto"]


class PaceOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table `pace` of a job file."""

    streams: Annotated[int, msgspec.Meta(ge=1, le=4096)] | None = None
    yield_to_chat: bool = False
    windows: list[str] = []


class JobFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job file: paths are relative to its folder."""

    input: str
    template: str | None = None
    output: str | None = None
    form: OutputForm | None = None
    language: Language = "auto"
    column: str | None = None
    id_column: str | None = None
    accept: list[str] = []
    url: str | None = None
    model: str | None = None
    attempts: Annotated[int, msgspec.Meta(ge=1, le=100)] = 3
    options: dict[str, Any] = {}
    pace: PaceOrder = PaceOrder()


@dataclass(frozen=True, slots=True)
class Words:
    """What the command line says; None: nothing. Paths are relative to the current folder."""

    template: str | None = None
    output: Path | None = None
    form: OutputForm | None = None
    language: Language | None = None
    column: str | None = None
    id_column: str | None = None
    accept: tuple[str, ...] = ()
    url: str | None = None
    model: str | None = None
    attempts: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    streams: int | None = None
    yield_to_chat: bool = False
    windows: tuple[Window, ...] = ()


@dataclass(frozen=True, slots=True)
class Order:
    """A whole order; only its service and its template's own checks are open."""

    input: Path
    template: str | None
    output: Path | None
    form: OutputForm | None
    language: Language
    column: str | None
    id_column: str | None
    accept: tuple[str, ...]  # names of files in a folder, such as *.py; none: all
    url: str | None
    model: str | None
    attempts: int
    options: Mapping[str, Any]  # of the job file, its paths from `folder` on
    told: Mapping[str, str]  # options on the command line
    folder: Path
    pace: Pace


def order_of(path: Path, words: Words) -> Order:
    """The order for a job file, or for documents named on the command line.

    Raises `AppError` for an input that is not there and for every mistake in a job file.
    """
    if not path.exists():
        raise not_there(path)
    if path.suffix.lower() != SUFFIX:
        file, folder = JobFile(input=str(path)), Path()
    else:
        file, folder = read_job_file(path), path.parent
    template = words.template or file.template
    if words.template is None and file.template is not None and is_path(file.template):
        template = str(folder / file.template)
    pace = Pace(
        streams=words.streams or file.pace.streams,
        yield_to_chat=words.yield_to_chat or file.pace.yield_to_chat,
        windows=words.windows or windows_of(file.pace.windows, path),
    )
    found = folder / file.input
    if not found.exists():
        raise not_there(found)
    return Order(
        input=found,
        template=template,
        output=words.output or (None if file.output is None else folder / file.output),
        form=words.form or file.form,
        language=words.language or file.language,
        column=words.column or file.column,
        id_column=words.id_column or file.id_column,
        accept=words.accept or tuple(file.accept),
        url=words.url or file.url,
        model=words.model or file.model,
        attempts=words.attempts or file.attempts,
        options=file.options,
        told=words.options,
        folder=folder,
        pace=pace,
    )


def is_path(template: str) -> bool:
    """Whether a template is named by its file."""
    return "/" in template or template.endswith(SUFFIX)


def read_job_file(path: Path) -> JobFile:
    """The job in a TOML file; AppError with the place of what is wrong in it."""
    try:
        if not path.is_file():  # a pipe would never end
            raise unusable(path, Text("it is no file", "不是文件"))
        if path.stat().st_size > LARGEST_BYTES:
            raise unusable(path, same(f"> {LARGEST_BYTES} B"))
        return msgspec.toml.decode(path.read_bytes().removeprefix(b"\xef\xbb\xbf"), type=JobFile)
    except OSError as error:
        raise unusable(path, same(error.strerror or str(error))) from error
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise unusable(path, mistake_in_words(str(error))) from error


def windows_of(words: list[str], path: Path) -> tuple[Window, ...]:
    """The windows of a job file."""
    found = []
    for word in words:
        try:
            found.append(window_of(word))
        except ValueError:
            raise unusable(
                path,
                Text(
                    f"`pace.windows` holds {word!r}, which is no span such as 20:00-07:00",
                    f"`pace.windows` 中的 {word!r} 不是 20:00-07:00 这样的时段",
                ),
            ) from None
    return tuple(found)


def job_of(order: Order, found: Found | None, *, url: str, overwrite: bool = False) -> Job:
    """The job for the ledger, with its template (None: requests as they are) and options settled.

    Raises `AppError` for options that the template does not take, and for an output that would be
    written over something (`overwrite` allows that).
    """
    options: dict[str, Any] = {}
    if found is not None:
        kinds = {name: option.kind for name, option in found.template.options.items()}
        told = {
            name: str(Path(value).absolute())
            if kinds.get(name) in ("file", "folder", "schema")
            else value
            for name, value in order.told.items()
        }
        options = settle_options(found.template, {**order.options, **told}, order.folder)
    elif order.options or order.told:
        raise no_options()
    name = REQUESTS if found is None else found.template.name
    form = order.form or form_of(order.output, found)
    output = order.output or default_output(order.input, name, form)
    check_output(output, form, replace=overwrite)
    return Job(
        template=name,
        definition=None if found is None else found.definition,
        language=order.language,
        options=options,
        input=str(order.input.absolute()),
        output=str(output.absolute()),
        form=form,
        url=url,
        model=order.model,
        attempts=order.attempts,
        pace=order.pace,
    )


def form_of(output: Path | None, found: Found | None) -> OutputForm:
    """The form that the output's name says, else the template's own.

    A file whose ending says another form than can be written is an `AppError`.
    """
    if found is None:
        return "openai"
    by_name: dict[str, OutputForm] = {".jsonl": "jsonl", ".csv": "csv", ".xlsx": "xlsx"}
    own, ending = found.template.form, "" if output is None else output.suffix.lower()
    if ending and ending not in by_name and own != "folder":
        raise AppError(
            Text(
                f"The ending {ending} of {output} is none that can be written.",
                f"无法写入扩展名为 {ending} 的 {output}。",
            ),
            Text(
                "End it in .jsonl, .csv or .xlsx, or say with --form what goes in.",
                "请使用 .jsonl、.csv 或 .xlsx，或用 --form 指定格式。",
            ),
            exit_code=EXIT_USAGE,
        )
    return by_name.get(ending, own)


def default_output(source: Path, template: str, form: OutputForm) -> Path:
    """A name in the current folder that tells input and template."""
    stem = source.resolve().name if source.is_dir() else source.stem
    return Path(f"{stem}.{template}{ENDINGS[form]}")


def not_there(path: Path) -> AppError:
    """The documents are not there."""
    return AppError(
        Text(f"There is no {path}.", f"没有 {path}。"),
        Text(
            "Name a folder or file of documents, or a job file (TOML).",
            "请指定文档目录、文件或任务文件（TOML）。",
        ),
        exit_code=EXIT_USAGE,
    )


def no_options() -> AppError:
    """Requests have no template that could take options."""
    return AppError(
        Text(
            "The input holds requests as they are: there is no template that takes options.",
            "输入为原样请求：没有模板，不能设置选项。",
        ),
        Text("Leave them out.", "请去掉这些选项。"),
        exit_code=EXIT_USAGE,
    )


def unusable(path: Path, why: Text) -> AppError:
    """The job file cannot be used, and why."""
    return AppError(
        Text(
            f"The job file {path} cannot be used: {why.en}.", f"无法使用任务文件 {path}：{why.zh}。"
        ),
        Text("docs/batch.md shows one that can.", "可参考 docs/batch.zh.md 中的示例。"),
        exit_code=EXIT_USAGE,
    )
