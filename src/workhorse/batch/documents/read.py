"""Reads an input: what it is, and an item for each of its documents, rows or requests."""

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from workhorse.batch.documents.apart import ReaderApart
from workhorse.batch.documents.folder import EMPTY, Found, Skipped, plain, walked
from workhorse.batch.documents.json_lines import items_of_lines
from workhorse.batch.documents.kinds import TEXT_FORMS, Kind, kind_of, save_as
from workhorse.batch.documents.refusal import Unreadable, wrong_input
from workhorse.batch.documents.streams import csv_text, json_lines
from workhorse.batch.documents.tables import items_of_rows
from workhorse.batch.documents.text import binary, decoded, decoded_python
from workhorse.batch.item import NewItem
from workhorse.units import show_bytes

TEXT_BYTES_MAX = 64 * 2**20  # of a text: a thousand books
DOCUMENT_BYTES_MAX = 2 * 2**30  # of a PDF or an Office file: most of it is pictures
TOLD_MAX = 5  # of what was passed over, in an error
_CODE_ENCODINGS = ("utf-8", "ascii")

TellSkipped = Callable[[Skipped], None]


def read_input(
    path: Path,
    *,
    column: str | None = None,
    id_column: str | None = None,
    accept: Sequence[str] = (),
    skipped: TellSkipped | None = None,
) -> Iterator[NewItem]:
    """An item for each document of a folder, row of a table, line of a JSONL file; or for a file.

    The order is the same each time. `column` and `id_column` name where a table's texts and ids
    stand (a key in JSONL, `Sheet!Column` in a spreadsheet), `accept` which files of a folder are
    wanted (`*.py`). `skipped` is told what is no document. What cannot be read is an item with a
    reason. Raises AppError: no such input, nothing in it, no such column, a library is missing.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise wrong_input(
            f"{path} cannot be read: {why}.",
            f"无法读取 {path}：{why}。",
            "Name a folder or a file that is there.",
            "请指定一个存在的文件夹或文件。",
        ) from error
    with ReaderApart() as apart:
        if stat.S_ISDIR(mode):
            if column or id_column:
                raise _no_table(path)
            yield from _of_folder(path, accept, skipped or (lambda _: None), apart)
        elif stat.S_ISREG(mode):
            if accept:
                raise _no_folder(path)
            yield from _of_file(path, column, id_column, apart)
        else:
            raise wrong_input(
                f"{path} is a pipe or a device.",
                f"{path} 是管道或设备。",
                "Name a folder or a file.",
                "请指定文件夹或普通文件。",
            )


def _of_folder(
    root: Path, accept: Sequence[str], skipped: TellSkipped, apart: ReaderApart
) -> Iterator[NewItem]:
    count, passed = 0, 0
    told: list[Skipped] = []
    taken: set[str] = set()
    for found in walked(root, accept):
        item = found if isinstance(found, Skipped) else _of_document(found, taken, apart)
        if isinstance(item, NewItem):
            count += 1
            yield item
        else:
            passed += 1
            told += [item][: TOLD_MAX - len(told)]
            skipped(item)
    if not count:
        raise _nothing_in(root, passed, told)


def _of_document(found: Found, taken: set[str], apart: ReaderApart) -> NewItem | Skipped:
    # Two names that are no UTF-8 may read the same.
    item_id = found.id
    while item_id in taken:
        item_id += "~"
    taken.add(item_id)
    item = _document(found.path, item_id, found.kind, apart)
    if item.content is not None and not item.content.strip():
        return Skipped(item_id, EMPTY)
    return item


def _of_file(
    path: Path, column: str | None, id_column: str | None, apart: ReaderApart
) -> Iterator[NewItem]:
    name = plain(path.name)
    kind = kind_of(path.name)
    form = kind.form if kind else None
    try:
        if form == "rows":
            with csv_text(path) as rows:
                yield from items_of_rows(rows, column, id_column, name)
        elif form == "lines":
            yield from items_of_lines(json_lines(path), column, id_column, name)
        elif form == "sheet":
            yield from apart.rows(path, column, id_column, name)
        elif column or id_column:
            raise _no_table(path)
        else:
            if kind is None and save_as(path.name) is None:
                kind = Kind("text", "text/plain")
            yield _whole_file(path, name, kind, apart)
    except (Unreadable, OSError) as error:  # the whole input, so it is the user's error
        seen, seen_zh = _in_words(error)
        raise wrong_input(
            f"{path}: {seen}", f"{path}：{seen_zh}", "Choose another file.", "请选择其他文件。"
        ) from error


def _whole_file(path: Path, name: str, kind: Kind | None, apart: ReaderApart) -> NewItem:
    item = _document(path, name, kind, apart)
    if item.content is not None and not item.content.strip():
        raise Unreadable("It holds no text.", "没有任何文本。")
    if item.reason is not None:
        raise Unreadable(item.reason.seen, item.reason.seen_zh)
    return item


def _document(path: Path, item_id: str, kind: Kind | None, apart: ReaderApart) -> NewItem:
    """The item of one file; what cannot be read has a reason."""
    try:
        if kind is None:
            raise _save_as(path)
        text, media_type = _text(path, kind, apart)
        if kind.form not in TEXT_FORMS and not text.strip():
            raise Unreadable("It holds no text.", "没有任何文本。")
        return NewItem(id=item_id, source=item_id, content=text, media_type=media_type)
    except (Unreadable, OSError) as error:
        seen, seen_zh = _in_words(error)
        reason = Unreadable(seen, seen_zh).reason
        return NewItem(id=item_id, source=item_id, reason=reason)


def _text(path: Path, kind: Kind, apart: ReaderApart) -> tuple[str, str]:
    size_bytes = path.stat().st_size
    plainly = kind.form in TEXT_FORMS
    most_bytes = TEXT_BYTES_MAX if plainly or kind.form == "html" else DOCUMENT_BYTES_MAX
    if size_bytes > most_bytes:
        raise Unreadable(
            f"It has {show_bytes(size_bytes)}; {show_bytes(most_bytes)} are read.",
            f"文件大小为 {show_bytes(size_bytes)}，上限为 {show_bytes(most_bytes)}。",
        )
    if not plainly:
        return apart.text(path, kind.form), kind.media_type
    # Without O_NONBLOCK a pipe that took the file's place would hold us.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        data = file.read(most_bytes)
    code = kind.form == "code"
    found = decoded_python(data) if kind.media_type == "text/x-python" else decoded(data)
    text = found.text if code else found.text.replace("\r\n", "\n").replace("\r", "\n")
    known = "" if found.charset in _CODE_ENCODINGS else f"; charset={found.charset}"
    return text, kind.media_type + known


def _save_as(path: Path) -> Unreadable:
    form, suffix = save_as(path.name), path.suffix
    if form is None:
        return binary()
    return Unreadable(
        f"Documents of the form {suffix} are not read. Save it as {form}.",
        f"不支持 {suffix} 格式，请另存为 {form}。",
    )


def _in_words(error: Unreadable | OSError) -> tuple[str, str]:
    if isinstance(error, Unreadable):
        return error.seen, error.seen_zh
    why = error.strerror or str(error)
    return f"It cannot be read: {why}.", f"无法读取：{why}。"


def _no_table(path: Path) -> Exception:
    return wrong_input(
        f"{path} is no table, so it has no columns.",
        f"{path} 不是表格，没有列。",
        "Leave out --column and --id-column, or name a csv, tsv, xlsx or jsonl file.",
        "请去掉 --column 和 --id-column，或指定 csv、tsv、xlsx、jsonl 文件。",
    )


def _no_folder(path: Path) -> Exception:
    return wrong_input(
        f"{path} is one file, so there are none to choose from.",
        f"{path} 是单个文件，无从筛选。",
        "Leave out --accept (in a job file: `accept`), or name a folder.",
        "请去掉 --accept（任务文件中为 `accept`），或指定文件夹。",
    )


def _nothing_in(root: Path, passed: int, told: Sequence[Skipped]) -> Exception:
    some = "; ".join(f"{one.source}: {one.why.en}" for one in told)
    some_zh = "；".join(f"{one.source}：{one.why.zh}" for one in told)
    more = " …" if passed > len(told) else ""
    if not passed:
        return wrong_input(
            f"{root} is empty.",
            f"{root} 是空文件夹。",
            "Choose another folder.",
            "请选择其他文件夹。",
        )
    return wrong_input(
        f"None of the {passed} files in {root} is a document ({some}{more}).",
        f"{root} 中的 {passed} 个文件均不是文档（{some_zh}{more}）。",
        "Choose another folder, or say with --accept which files are documents.",
        "请选择其他文件夹，或用 --accept 指定哪些文件是文档。",
    )
