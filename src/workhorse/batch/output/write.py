"""Results out: every item in the order of the input, those without a result in their place."""

import csv
import io
import json
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from itertools import chain, islice
from pathlib import Path
from typing import Any

import msgspec

from workhorse.batch.documents.kinds import TEXT_FORMS, kind_of
from workhorse.batch.item import Item
from workhorse.batch.job import Job, JobRecord, OutputForm
from workhorse.batch.output.claim import FOLDER_MARK, claim_output, error_file_of, may_delete
from workhorse.batch.output.lines import cells, defused, fields_of, heads, json_line, openai_line
from workhorse.batch.output.names import SafeNames
from workhorse.batch.output.place import disk_errors, replacing
from workhorse.batch.output.sheet import CELL_CHARS_MAX, LONG, check_can_write, write_sheet
from workhorse.text import Language, Text

LOOKED_AT = 200  # results, for the columns of a table
INDEX = "results.jsonl"  # of a folder: what became of each item, and its file


class Written(msgspec.Struct, frozen=True):
    """What was written."""

    files: tuple[Path, ...]  # without those of a folder's items
    items: int
    failed: int  # of them, those without a result
    notes: tuple[Text, ...] = ()  # what a reader has to know


def write_output(
    path: Path,
    form: OutputForm,
    items: Iterator[Item],
    job: JobRecord,
    *,
    replace: bool = False,
) -> Written:
    """Write all items of a job; a file appears whole, or stays as it was.

    Raises AppError: another job's results are there (`replace` lets them go), the disk refuses.
    """
    if form == "xlsx":
        check_can_write()
    claim_output(path, form, job.id, replace=replace)
    counted = _Counted(items)
    files, notes = _WRITERS[form](path, counted, job)
    failed = counted.all - counted.states["done"]
    return Written(files=files, items=counted.all, failed=failed, notes=notes)


class _Counted:
    """The items as they come, and how many there were of each state."""

    def __init__(self, items: Iterator[Item]) -> None:
        self._items = items
        self.states: Counter[str] = Counter()

    def __iter__(self) -> Iterator[Item]:
        for item in self._items:
            self.states[item.state] += 1
            yield item

    @property
    def all(self) -> int:
        """How many there were."""
        return self.states.total()


Outcome = tuple[tuple[Path, ...], tuple[Text, ...]]


def _jsonl(path: Path, items: _Counted, _job: JobRecord) -> Outcome:
    with replacing(path) as file:
        for item in items:
            file.write(json_line(item))
    return (path,), ()


def _openai(path: Path, items: _Counted, job: JobRecord) -> Outcome:
    error_path = error_file_of(path)
    with ExitStack() as both:
        files = {
            "output": both.enter_context(replacing(path)),
            "error": both.enter_context(replacing(error_path)),
        }
        for item in items:
            where, line = openai_line(item, job.id)
            files[where].write(line)
    with disk_errors(error_path):
        if not error_path.stat().st_size:  # OpenAI has no error file either where none failed
            error_path.unlink()
            return (path,), ()
    return (path, error_path), ()


def _csv(path: Path, items: _Counted, job: JobRecord) -> Outcome:
    n_long = 0
    with replacing(path) as file:
        # With the mark Excel takes it for UTF-8; without, Chinese is garbled.
        text = io.TextIOWrapper(file, "utf-8-sig", errors="replace", newline="", write_through=True)
        rows = csv.writer(text)
        head, all_rows = _table(items, job.job)
        rows.writerow([defused(name) for name in head])
        for row in all_rows:
            n_long += any(len(cell) > CELL_CHARS_MAX for cell in row)
            rows.writerow([defused(cell) for cell in row])
        text.flush()
        text.detach()
    return (path,), _long_in_csv(n_long) if n_long else ()


def _long_in_csv(n_long: int) -> tuple[Text, ...]:
    return (
        Text(
            f"{n_long} rows have a text of more than {CELL_CHARS_MAX} characters. The file has "
            "them whole; Excel shows only a part of such a cell. The form xlsx divides them.",
            f"{n_long} 行的文本超过 {CELL_CHARS_MAX} 个字符。文件内容完整，但 Excel 无法完整显示；"
            "xlsx 格式会将其拆分。",
        ),
    )


def _xlsx(path: Path, items: _Counted, job: JobRecord) -> Outcome:
    head, rows = _table(items, job.job)
    with replacing(path) as file:
        written = write_sheet(file, path.parent, head, rows)
    if not written.long_texts:
        return (path,), ()
    n_long = written.long_texts
    return (path,), (
        Text(
            f"{n_long} texts are longer than a cell of Excel takes ({CELL_CHARS_MAX} characters): "
            f"they stand whole on the sheet “{LONG}”.",
            f"{n_long} 个文本超过 Excel 单元格上限（{CELL_CHARS_MAX} 个字符），"
            f"全文见工作表 “{LONG}”。",
        ),
    )


def _table(items: _Counted, job: Job) -> tuple[list[str], Iterator[list[str]]]:
    """The head and the rows; what the first results have tells the columns, and the schema."""
    coming = iter(items)
    first = list(islice(coming, LOOKED_AT))
    fields = fields_of(_definition(job), job.options, first)
    language: Language = "zh" if job.language == "zh" else "en"
    return heads(fields), (cells(item, fields, language) for item in chain(first, coming))


def _definition(job: Job) -> Mapping[str, Any]:
    try:
        return tomllib.loads(job.definition or "")
    except tomllib.TOMLDecodeError:  # of another version; its columns come from the results
        return {}


# --- a folder ------------------------------------------------------------------------------------


def _folder(path: Path, items: _Counted, _job: JobRecord) -> Outcome:
    names = SafeNames(reserved=(INDEX, FOLDER_MARK))
    before = _files_before(path) if may_delete(path) else set()
    root = path.resolve()
    now: set[str] = set()
    index = path / INDEX
    with replacing(index) as file:
        for item in items:
            name, data, note = _file_of(item, names)
            if name is not None:
                _write_inside(root, name, data)
                now.add(name)
            file.write(json_line(item, file=name, **({"file_note": note} if note else {})))
    for gone in before - now:  # an item that has none any more, after `batch retry`
        target = root / gone
        if target.parent.resolve().is_relative_to(root):
            with disk_errors(target):
                target.unlink(missing_ok=True)
    return (index,), ()


def _files_before(folder: Path) -> set[str]:
    """The files that the index of an earlier run of the job names."""
    found: set[str] = set()
    try:
        with (folder / INDEX).open("rb") as file:
            for line in file:
                name = json.loads(line).get("file")
                if isinstance(name, str) and ".." not in name.split("/") and name[:1] != "/":
                    found.add(name)
    except (OSError, ValueError, AttributeError, RecursionError):
        return set()
    return found


def _file_of(item: Item, names: SafeNames) -> tuple[str | None, bytes, str | None]:
    """The file of an item: its name, what is in it, what to know of it."""
    # Each item takes its name, with a result or not: so the others keep theirs after a retry.
    result = item.result
    kind = kind_of(item.id)
    is_text = kind is None or kind.form in TEXT_FORMS
    if result is not None and result.text is not None:
        if result.file and is_text:
            data, note = _encoded(result.text, item.media_type)
            return names.path_for(item.id), data, note
        return names.path_for(item.id, ".md"), result.text.encode("utf-8", "replace"), None
    name = names.path_for(item.id, ".json")
    if result is None:
        return None, b"", None
    return name, json.dumps(result.value, ensure_ascii=False, indent=2).encode() + b"\n", None


def _encoded(text: str, media_type: str) -> tuple[bytes, str | None]:
    """A text that replaces a document, in the encoding of that where it has all the letters."""
    charset = media_type.partition("charset=")[2].strip() or "utf-8"
    try:
        return text.encode(charset), None
    except (UnicodeError, LookupError):
        return text.encode("utf-8", "replace"), f"written as UTF-8: {charset} lacks some letters"


def _write_inside(root: Path, name: str, data: bytes) -> None:
    target = root / name
    with disk_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.parent.resolve().is_relative_to(root):
            raise OSError("a folder there is a link that leads out of the results")
    with replacing(target) as file:
        file.write(data)


_WRITERS: dict[OutputForm, Callable[[Path, _Counted, JobRecord], Outcome]] = {
    "jsonl": _jsonl,
    "csv": _csv,
    "xlsx": _xlsx,
    "folder": _folder,
    "openai": _openai,
}
