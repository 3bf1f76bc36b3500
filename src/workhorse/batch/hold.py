"""One runner a job: a lock that the kernel gives up with its process, however that ends."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from workhorse.errors import EXIT_NO, AppError
from workhorse.text import Text

PID_BYTES = 32
# Whoever looks who holds a lock has it in that moment himself: look again before that is believed.
LOOKS, LOOK_PAUSE_S = 5, 0.01


@contextmanager
def holding(path: Path, job_id: str) -> Iterator[None]:
    """Hold the lock file of a job; AppError, exit code 3, while another has it."""
    handle = _take(path, job_id)
    try:
        os.truncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
        yield
    finally:
        # Still held: whoever opened the file meanwhile finds out that it is no longer there.
        with suppress(OSError):
            path.unlink()
        os.close(handle)


def holder(path: Path) -> int | None:
    """The process that holds a lock file; None: nobody does, or it has not said who it is yet."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _written_in(handle)
    except OSError:  # a file system without locks
        return None
    finally:
        os.close(handle)
    return None


def _take(path: Path, job_id: str) -> int:
    looks = 0
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _cannot_lock(path, error) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_still(path, handle):
                return handle
        except BlockingIOError:
            pid = _written_in(handle)
            os.close(handle)
            looks += 1
            if looks < LOOKS:
                time.sleep(LOOK_PAUSE_S)
                continue
            raise runs_already(job_id, pid) from None
        except OSError as error:
            os.close(handle)
            raise _cannot_lock(path, error) from error
        os.close(handle)  # its last holder has removed it between the two calls


def _is_still(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False


def _written_in(handle: int) -> int | None:
    said = os.pread(handle, PID_BYTES, 0).decode(errors="replace").strip()
    return int(said) if said.isascii() and said.isdigit() else None


def runs_already(job_id: str, pid: int | None) -> AppError:
    """Another process works on the job."""
    who, who_zh = ("", "") if pid is None else (f" (process {pid})", f"（进程 {pid}）")
    return AppError(
        Text(f"Job {job_id} runs already{who}.", f"任务 {job_id} 已在运行{who_zh}。"),
        Text(
            f"Watch it with `workhorse batch status {job_id}`, or end it with "
            f"`workhorse batch cancel {job_id}`.",
            f"可用 `workhorse batch status {job_id}` 查看，或用 "
            f"`workhorse batch cancel {job_id}` 取消。",
        ),
        exit_code=EXIT_NO,
    )


def _cannot_lock(path: Path, error: OSError) -> AppError:
    return AppError(
        Text(f"{path} cannot be locked: {error}.", f"无法锁定 {path}：{error}。"),
        Text(
            "Make its folder writable, on a local disk, or set WORKHORSE_HOME to one that is.",
            "请确保该目录可写且位于本地磁盘，或把 WORKHORSE_HOME 设为这样的目录。",
        ),
    )
