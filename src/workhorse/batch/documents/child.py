"""The process that reads documents: `python -m ….documents.child`.

Requests come on stdin, answers go to stdout, each a message of msgpack behind its length. It ends
when stdin does.
"""

import math
import os
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec

from workhorse.batch.documents.apart import LENGTH_BYTES, Said, Wanted, framed
from workhorse.batch.documents.refusal import Unreadable, shown
from workhorse.batch.item import NewItem
from workhorse.errors import AppError

CPU_S = 120  # of one document: a PDF of 1,000 pages takes 5 to 10
MEMORY_BYTES = 3 * 2**30
TEXT_CHARS_MAX = 64 * 2**20  # 30,000 pages; no job reads more in one item
ROWS_CHARS = 2**20  # that go out together


def read(wanted: Wanted) -> Iterator[Said]:
    """The answer to a request, in parts; raises Unreadable, AppError, whatever a library does."""
    path = Path(os.fsdecode(wanted.path))
    if wanted.rows:
        from workhorse.batch.documents.sheet import sheet_items

        yield from _packed(sheet_items(path, wanted.column, wanted.id_column, wanted.where))
        return
    text = _text(path, wanted)
    if len(text) > TEXT_CHARS_MAX:
        raise Unreadable(
            f"Its text has {len(text)} characters; {TEXT_CHARS_MAX} are read.",
            f"文本共 {len(text)} 个字符，上限为 {TEXT_CHARS_MAX} 个。",
        )
    yield Said(text=text.encode("utf-8", "replace").decode())


def _text(path: Path, wanted: Wanted) -> str:
    # Each library is loaded when its first document comes.
    if wanted.form == "pdf":
        from workhorse.batch.documents.pdf import pdf_text

        return pdf_text(path)
    if wanted.form == "docx":
        from workhorse.batch.documents.office import docx_text

        return docx_text(path)
    if wanted.form == "sheet":
        from workhorse.batch.documents.sheet import sheet_text

        return sheet_text(path)
    from workhorse.batch.documents.markup import decoded_page, markdown_of

    return markdown_of(decoded_page(path.read_bytes()).text)


def _packed(items: Iterator[NewItem]) -> Iterator[Said]:
    waiting: list[NewItem] = []
    n_chars = 0
    for item in items:
        waiting.append(item)
        n_chars += len(item.content or "") + len(item.id)
        if n_chars > ROWS_CHARS:
            yield Said(items=waiting, last=False)
            waiting, n_chars = [], 0
    yield Said(items=waiting)


def _answer(wanted: Wanted, out: IO[bytes]) -> bool:
    """Write the answer; False: this process is not to be trusted any more."""
    try:
        for said in read(wanted):
            _say(out, said)
        return True
    except Unreadable as error:
        _say(out, Said(unreadable=(error.seen, error.seen_zh)))
        return True
    except AppError as error:
        what, then = error.what, error.next_step
        _say(out, Said(refused=(what.en, what.zh, then.en, then.zh)))
        return True
    except BrokenPipeError:
        raise  # nobody reads any more
    except OSError as error:
        why = error.strerror or str(error)
        _say(out, Said(unreadable=(f"It cannot be read: {why}.", f"无法读取：{why}。")))
        return True
    except BaseException as error:  # noqa: BLE001 - whatever a document makes a library raise
        error = error.with_traceback(None)  # lets go of what filled the memory
        if isinstance(error, MemoryError):
            english = f"Reading it takes more than {MEMORY_BYTES // 2**30} GiB of memory."
            chinese = f"读取所需内存超过 {MEMORY_BYTES // 2**30} GiB。"
        elif isinstance(error, RecursionError):
            english, chinese = "It nests its parts too deeply.", "文档内部嵌套过深。"
        else:
            why = shown(f"{type(error).__name__}: {error}")
            english, chinese = f"Its reader fails: {why}.", f"读取失败：{why}。"
        _say(out, Said(unreadable=(english, chinese)))
        return False


def _say(out: IO[bytes], said: Said) -> None:
    out.write(framed(msgspec.msgpack.encode(said)))
    out.flush()


def limit_computing() -> None:
    """Have the kernel end us when the next document takes more than CPU_S."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = math.ceil(used.ru_utime + used.ru_stime) + CPU_S
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    if hard == resource.RLIM_INFINITY or most <= hard:
        resource.setrlimit(resource.RLIMIT_CPU, (most, hard))


def main() -> None:
    """Answer until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who asks; it ends us
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    if hard == resource.RLIM_INFINITY or hard > MEMORY_BYTES:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    source = sys.stdin.buffer
    while head := source.read(LENGTH_BYTES):
        message = source.read(int.from_bytes(head, "little"))
        limit_computing()
        if not _answer(msgspec.msgpack.decode(message, type=Wanted), out):
            return


if __name__ == "__main__":
    main()
