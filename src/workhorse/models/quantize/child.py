"""Runs one job on the embedded engine's library: `python -m ….quantize.child PARENT`.

The job comes as JSON on stdin, lines of JSON go to stdout. What the engine says goes to stderr.
"""

import ctypes
import errno
import os
import signal
import sys
import time

from workhorse.codec import from_json, to_line
from workhorse.errors import AppError
from workhorse.models.quantize.jobs import Job, Line
from workhorse.models.quantize.library import LibraryUnknown, load

TELL_EVERY_S = 0.2
PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Out:
    """The lines on stdout; engines print there too, so it is kept for us alone."""

    def __init__(self) -> None:
        self._handle = os.dup(1)
        os.dup2(2, 1)
        self._told_s = 0.0

    def progress(self, done: int, total: int) -> None:
        """How far it is, not too often."""
        now_s = time.monotonic()
        if now_s - self._told_s >= TELL_EVERY_S or done == total:
            self._told_s = now_s
            self.line(Line(done, total))

    def line(self, line: Line) -> None:
        """One line."""
        os.write(self._handle, (to_line(line) + "\n").encode())


def run(job: Job, out: Out) -> Line:
    """The answer to the job; raises OSError, RuntimeError, LibraryUnknown."""
    from workhorse.models.quantize import child_compare, child_imatrix, child_quantise

    library = load()
    library.llama_backend_init()
    if job.quantise:
        done = child_quantise.quantise(library, job.quantise, out.progress)
        return Line(quantised=done)
    if job.imatrix:
        return child_imatrix.importance(library, job.imatrix, out.progress)
    if job.compare:
        return child_compare.compare(library, job.compare, out.progress)
    return Line(failed="no job was given")


def die_with(parent: int) -> None:
    """Have the kernel end us when the command is killed: nobody else would read the answer."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> int:
    """Do the job; 0 also when the answer is that it failed: the line says why."""
    die_with(int(sys.argv[1]))
    out = Out()
    job = from_json(Job, sys.stdin.buffer.read(), what="the job")
    try:
        answer = run(job, out)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        answer = Line(failed=error.strerror or str(error), disk_full=full)
    except (RuntimeError, LibraryUnknown, MemoryError) as error:
        answer = Line(failed=str(error) or type(error).__name__)
    except AppError as error:
        answer = Line(failed=error.what.en)
    out.line(answer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
