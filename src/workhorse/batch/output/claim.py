"""Whose results a file or a folder holds: no job writes over another one's, or over yours.

A mark says it: `.NAME.job` beside a file, `.workhorse-job` in a folder. By it the reading of
documents knows results as well and leaves them out.
"""

from pathlib import Path

import msgspec

from workhorse.batch.job import OutputForm
from workhorse.batch.output.place import disk_errors, replacing
from workhorse.errors import EXIT_USAGE, AppError
from workhorse.text import Text

FOLDER_MARK = ".workhorse-job"
MARK_BYTES_MAX = 64 * 1024


class Mark(msgspec.Struct, frozen=True):
    """What a mark says: the job that writes here.

    `was_empty`: nothing was there when the job took the place, so all that its index names is its
    own; in a folder that it was let into it deletes nothing.
    """

    job: str
    was_empty: bool = False


def is_output_file(path: Path) -> bool:
    """Whether a file holds the results of a job."""
    return mark_of(path, "jsonl").is_file()


def is_output_folder(path: Path) -> bool:
    """Whether a folder holds the results of a job."""
    return mark_of(path, "folder").is_file()


def mark_of(path: Path, form: OutputForm) -> Path:
    """Where the mark of an output is."""
    if form == "folder":
        return path / FOLDER_MARK
    return path.with_name(f".{path.name[:100]}.job")


def error_file_of(path: Path) -> Path:
    """The error file beside an output file of the form `openai`: `x.jsonl`, `x.errors.jsonl`."""
    return path.with_name(f"{path.stem}.errors{path.suffix or '.jsonl'}")


def check_output(
    path: Path, form: OutputForm, *, job_id: str | None = None, replace: bool = False
) -> None:
    """Nothing is written yet. AppError: `path` holds something that is not of the job `job_id`.

    With `replace` other results may go; a file where a folder has to be, or the reverse, may not.
    """
    with disk_errors(path):
        if path.exists() and (path.is_dir() if form != "folder" else not path.is_dir()):
            raise _wrong_kind(path, form)
        if path.exists() and not path.is_file() and not path.is_dir():
            raise _wrong_kind(path, form)
        owner = _owner(mark_of(path, form))
        if replace or (owner is not None and owner == job_id):
            return
        if owner is not None:
            raise _taken(path, f"the results of job {owner}", f"任务 {owner} 的结果")
        if form == "folder":
            if path.exists() and any(path.iterdir()):
                raise _taken(path, "files of another origin", "其他来源的文件")
            return
        for one in (path, error_file_of(path)) if form == "openai" else (path,):
            if one.exists():
                raise _taken(one, "something already", "已有内容")


def claim_output(path: Path, form: OutputForm, job_id: str, *, replace: bool = False) -> None:
    """Make `path` the job's from now on; its folder is made. AppError as `check_output` has it."""
    check_output(path, form, job_id=job_id, replace=replace)
    with disk_errors(path):
        was_empty = not path.exists() or (path.is_dir() and not any(path.iterdir()))
        (path if form == "folder" else path.parent).mkdir(parents=True, exist_ok=True)
    mark = mark_of(path, form)
    if _owner(mark) != job_id:
        with replacing(mark) as file:
            file.write(msgspec.json.encode(Mark(job_id, was_empty)))


def may_delete(folder: Path) -> bool:
    """Whether all that an index in this folder names was written by its job."""
    mark = _read(mark_of(folder, "folder"))
    return mark is not None and mark.was_empty


def _owner(mark: Path) -> str | None:
    found = _read(mark)
    return None if found is None else found.job


def _read(mark: Path) -> Mark | None:
    try:
        with mark.open("rb") as file:
            return msgspec.json.decode(file.read(MARK_BYTES_MAX), type=Mark)
    except (OSError, msgspec.DecodeError):
        return None


def _taken(path: Path, what: str, what_zh: str) -> AppError:
    return AppError(
        Text(f"{path} holds {what}.", f"{path} 中是{what_zh}。"),
        Text(
            "Choose another --output, or add --overwrite to replace it.",
            "请另选 --output，或加 --overwrite 覆盖。",
        ),
        exit_code=EXIT_USAGE,
    )


def _wrong_kind(path: Path, form: OutputForm) -> AppError:
    needs, needs_zh = ("a folder", "文件夹") if form == "folder" else ("a file", "普通文件")
    return AppError(
        Text(
            f"The output {path} is there and is not {needs}.",
            f"输出位置 {path} 已存在且不是{needs_zh}。",
        ),
        Text("Choose another --output.", "请另选 --output。"),
        exit_code=EXIT_USAGE,
    )
