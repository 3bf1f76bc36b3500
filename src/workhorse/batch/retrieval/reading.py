"""What is searched, from disk: a folder of documents, or a file of questions and answers."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from workhorse.batch.documents import read_input
from workhorse.batch.documents.apart import ReaderApart
from workhorse.batch.documents.kinds import kind_of
from workhorse.batch.documents.refusal import Unreadable, wrong_input
from workhorse.batch.documents.streams import csv_text
from workhorse.batch.retrieval.knowledge import NoColumns, entries_of_rows, markdown_tables
from workhorse.batch.retrieval.library import Shelf
from workhorse.batch.retrieval.passages import Passage, passages_of
from workhorse.errors import AppError

# All of it is held in memory, its words as well: some 2 GB for this many characters.
LARGEST_CHARS = 50_000_000


def read_folder(folder: Path) -> Shelf:
    """The passages of all documents below a folder; raises AppError."""
    passages: list[Passage] = []
    unread: list[str] = []
    n_chars = 0
    for item in read_input(folder):
        if item.content is None:
            unread.append(item.source)
            continue
        n_chars += len(item.content)
        if n_chars > LARGEST_CHARS:
            raise _too_much(folder)
        passages += passages_of(item.content, item.media_type, item.source)
    if not passages:
        raise wrong_input(
            f"None of the documents in {folder} could be read: {', '.join(unread[:5])}.",
            f"{folder} 中的文档均无法读取：{'、'.join(unread[:5])}。",
            "Choose another folder.",
            "请选择其他文件夹。",
        )
    return Shelf(passages, unread)


def read_knowledge(path: Path) -> Shelf:
    """The entries of a knowledge file: a table with questions and answers, or a text with headings.

    Raises AppError: no such file, none of the columns, nothing in it.
    """
    kind = kind_of(path.name)
    try:
        if kind is not None and kind.form == "rows":
            with csv_text(path) as rows:
                entries = _bounded(path, entries_of_rows(rows, path.name))
        elif kind is not None and kind.form == "sheet":
            with ReaderApart() as apart:
                text = apart.text(path, "sheet")
            entries = _bounded(path, _of_sheets(text, path.name))
        else:
            entries = _bounded(path, _of_text(path))
    except NoColumns as error:
        names = ", ".join(f"“{name}”" for name in error.names)
        raise wrong_input(
            f"{path} has no columns for questions and answers; it has {names}.",
            f"{path} 中没有问题列和答案列，现有列：{names}。",
            "Call two of them “question” and “answer”.",
            "请将其中两列命名为“问题”和“答案”。",
        ) from error
    except (Unreadable, OSError) as error:
        seen, seen_zh = (
            (error.seen, error.seen_zh) if isinstance(error, Unreadable) else (str(error),) * 2
        )
        raise wrong_input(
            f"{path}: {seen}", f"{path}：{seen_zh}", "Choose another file.", "请选择其他文件。"
        ) from error
    if not entries:
        raise wrong_input(
            f"{path} has no entries.",
            f"{path} 中没有任何条目。",
            "Choose another file.",
            "请选择其他文件。",
        )
    return Shelf(entries)


def _of_text(path: Path) -> Iterator[Passage]:
    for item in read_input(path):
        if item.content is not None:
            yield from passages_of(item.content, item.media_type, item.source)


def _of_sheets(text: str, source: str) -> Iterator[Passage]:
    """The entries of every table that has the columns; `NoColumns` where none has."""
    refused, fitted = None, False
    for rows in markdown_tables(text):
        try:
            yield from entries_of_rows(rows, source)
            fitted = True
        except NoColumns as error:
            refused = error
    if refused and not fitted:
        raise refused


def _bounded(path: Path, passages: Iterable[Passage]) -> Sequence[Passage]:
    kept, n_chars = [], 0
    for passage in passages:
        n_chars += len(passage.text)
        if n_chars > LARGEST_CHARS:
            raise _too_much(path)
        kept.append(passage)
    return kept


def _too_much(path: Path) -> AppError:
    return wrong_input(
        f"{path} holds more than {LARGEST_CHARS} characters of text, too many to be searched.",
        f"{path} 的文本超过 {LARGEST_CHARS} 个字符，无法检索。",
        "Choose a smaller part of it.",
        "请选择其中的一部分。",
    )
