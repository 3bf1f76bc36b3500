"""New messages of the kernel's log, without a program and without reading the old ones again."""

import os
from contextlib import suppress
from pathlib import Path

from workhorse.machine.kernel_log import parse_log
from workhorse.records import KernelEvent

KMSG = Path("/dev/kmsg")
# Of one look; a flood goes on in the next one.
_RECORDS_MAX = 2000
_RECORD_BYTES = 8192  # CONSOLE_EXT_LOG_MAX of printk


class KernelMessages:
    """What came since the last look. Where the log may not be read, `readable` is False."""

    def __init__(self, path: Path = KMSG) -> None:
        self._handle: int | None = None
        with suppress(OSError):
            self._handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._handle, 0, os.SEEK_END)

    @property
    def readable(self) -> bool:
        """False: without the right to read it, as on hosts with kernel.dmesg_restrict."""
        return self._handle is not None

    def new_events(self) -> tuple[KernelEvent, ...]:
        """What of it tells of sick hardware or killed processes, since the last look."""
        lines: list[str] = []
        handle = self._handle
        if handle is None:
            return ()
        for _ in range(_RECORDS_MAX):
            try:
                record = os.read(handle, _RECORD_BYTES)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue  # the kernel overwrote what was not read yet: the next read goes on
            except OSError:
                break
            if not record:
                break
            for line in record.decode("utf-8", errors="replace").splitlines():
                # `priority,sequence,time,flags;text`; what follows begins with a blank.
                head, found, text = line.partition(";")
                if found and not head.startswith(" "):
                    lines.append(text)
        return parse_log("\n".join(lines)) if lines else ()

    def close(self) -> None:
        """Give the file back; safe more than once."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
