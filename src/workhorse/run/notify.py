"""Tells systemd how the service is: ready, reloading, stopping, alive. A few lines over a socket.

Source: sd_notify(3), systemd 252 (2026-11). Without NOTIFY_SOCKET nothing is sent.
"""

import asyncio
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping

# systemd waits so much longer for a start each time that we ask: a model may load for half an
# hour, a start that hangs asks no more.
START_EXTENSION_S = 120
ASK_EVERY_S = 30.0
KEPT_MAX = 20  # messages that nobody took yet


class Notify:
    """The way to systemd; silent where nobody listens."""

    def __init__(self, environ: Mapping[str, str] = os.environ, pid: int | None = None) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        self._ready = False
        self._unsent: deque[str] = deque(maxlen=KEPT_MAX)
        meant_for = environ.get("WATCHDOG_PID")
        ours = meant_for is None or meant_for == str(os.getpid() if pid is None else pid)
        wanted = environ.get("WATCHDOG_USEC", "")
        self.watchdog_s = int(wanted) / 1e6 if ours and wanted.isdecimal() else None

    def ready(self, status: str) -> None:
        """The service answers; also after a reload."""
        self._ready = True
        self._send("READY=1", f"STATUS={status}")

    def status(self, status: str) -> None:
        """One line for `systemctl status`."""
        self._send(f"STATUS={status}")

    def reloading(self) -> None:
        """A reload begins; `ready` ends it."""
        now_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send("RELOADING=1", f"MONOTONIC_USEC={now_us}")

    def stopping(self) -> None:
        """The service is on its way to its end."""
        self._send("STOPPING=1")

    async def feed(self, alive: Callable[[], bool]) -> None:
        """Tell for ever that the service lives, as long as `alive` says so.

        Runs on the event loop, so a loop that hangs tells nothing, and systemd acts.
        """
        if not self._address:
            return
        pause_s = ASK_EVERY_S if self.watchdog_s is None else min(ASK_EVERY_S, self.watchdog_s / 3)
        while True:
            if not self._ready:
                self._send(f"EXTEND_TIMEOUT_USEC={START_EXTENSION_S * 1_000_000}", lasting=False)
            if alive() and self.watchdog_s is not None:
                self._send("WATCHDOG=1", lasting=False)
            await asyncio.sleep(pause_s)

    def _send(self, *lines: str, lasting: bool = True) -> None:
        """Say it now, after what was kept; what is `lasting` is kept when nobody takes it.

        systemd that is busy for a moment must not miss that the service is ready.
        """
        if not self._address:
            return
        # A line end in a status would begin another assignment.
        words = "\n".join(line.replace("\n", " ") for line in lines)
        waiting = [*self._unsent, words]
        self._unsent.clear()
        while waiting and self._hand_over(waiting[0]):
            waiting.pop(0)
        self._unsent.extend(waiting if lasting else waiting[:-1])

    def _hand_over(self, words: str) -> bool:
        # An @ stands for the zero byte of an abstract address.
        address = self._address.replace("@", "\0", 1)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
                out.setblocking(False)  # a full queue must not hold the streams
                out.sendto(words.encode(), address)
        except BlockingIOError:
            return False
        except OSError:  # nobody is there any more: nothing is to be kept for him
            return True
        return True
