"""A batch's input read from its file, and its results written to files. Blocks; run in a thread."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from workhorse.batch.api_lines import result_line
from workhorse.batch.api_record import Batch, RequestCounts, StoredFile
from workhorse.batch.api_store import ApiStore, new_id, unusable
from workhorse.batch.item import ENDED
from workhorse.batch.ledger import Ledger
from workhorse.batch.output.lines import Where


def read_lines(path: Path, most_bytes: int, stop: Callable[[], bool]) -> Iterator[bytes | None]:
    """The lines of a file; None for one that is longer. Raises `InterruptedError` to stop."""
    with path.open("rb") as file:
        first = True
        while line := file.readline(most_bytes + 1):
            if stop():
                raise InterruptedError
            if first:
                line, first = line.removeprefix(b"\xef\xbb\xbf"), False
            if len(line) <= most_bytes or line.endswith(b"\n"):
                yield line
                continue
            while (rest := file.readline(most_bytes)) and not rest.endswith(b"\n"):
                if stop():
                    raise InterruptedError
            yield None


class Written:
    """What came of a batch: its files, in place but not kept in the store yet, and the counts."""

    def __init__(self, files: dict[Where, StoredFile], counts: RequestCounts, left: int) -> None:
        self.files, self.counts = files, counts
        self.left = left  # requests that were not answered before the batch ended


def write_results(
    store: ApiStore,
    ledger: Ledger,
    batch: Batch,
    *,
    now_unix_s: float,
    keep_s: float,
    stop: Callable[[], bool],
) -> Written:
    """Write the output and the error file of a batch whose job has ended, in the input's order."""
    if batch.job_id is None:
        return Written({}, batch.counts, 0)
    counted: dict[str, int] = {"output": 0, "error": 0}
    left = 0
    expires_unix_s = now_unix_s + min(keep_s, batch.output_expires_s or keep_s)
    writers = {where: _Writer(store, where) for where in _WHERES}
    try:
        with ExitStack() as open_files:
            for writer in writers.values():
                open_files.callback(writer.close)
            for item in ledger.items(batch.job_id, states=ENDED):
                if stop():
                    raise InterruptedError
                where, line = result_line(item, batch)
                writers[where].write(line, now_unix_s)
                left += item.state == "cancelled"
                counted[where] += 1
            for writer in writers.values():
                writer.settle()
    except InterruptedError:
        _remove(writers)
        raise
    except OSError as error:
        _remove(writers)
        raise unusable(store.folder, error) from error
    except BaseException:
        _remove(writers)
        raise
    counts = RequestCounts(
        total=counted["output"] + counted["error"],
        completed=counted["output"],
        failed=counted["error"] - left,
    )
    files = {
        where: StoredFile(
            id=writer.file_id,
            owner=batch.owner,
            name=f"{batch.id}_{where}.jsonl",
            purpose="batch_output",
            size_bytes=writer.size_bytes,
            created_unix_s=now_unix_s,
            expires_unix_s=expires_unix_s,
        )
        for where, writer in writers.items()
        if writer.file_id is not None
    }
    return Written(files, counts, left)


_WHERES: tuple[Where, ...] = ("output", "error")


class _Writer:
    """One of the two files, made with its first line."""

    def __init__(self, store: ApiStore, where: Where) -> None:
        self.file_id: str | None = None
        self.size_bytes = 0
        self._store, self._where = store, where
        self._file: BinaryIO | None = None

    @property
    def path(self) -> Path | None:
        """Where it lies; None: it has no line."""
        return None if self.file_id is None else self._store.path(self.file_id)

    def write(self, line: bytes, now_unix_s: float) -> None:
        """Add a line."""
        if self._file is None:
            self.file_id = new_id("file-", now_unix_s)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._file = os.fdopen(os.open(self._store.path(self.file_id), flags, 0o600), "wb")
        self._file.write(line)
        self.size_bytes += len(line)

    def settle(self) -> None:
        """Have it on the disk."""
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close it."""
        if self._file is not None:
            self._file.close()


def _remove(writers: dict[Where, _Writer]) -> None:
    for writer in writers.values():
        if writer.path is not None:
            writer.path.unlink(missing_ok=True)
