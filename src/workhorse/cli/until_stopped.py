"""Work that a user may end in order: by Ctrl-C, by SIGTERM, by closing the terminal."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def until_stopped(work: Coroutine[Any, Any, T]) -> T | None:
    """The work's end; None when SIGINT, SIGTERM or a closed terminal ended it in order."""
    job = asyncio.ensure_future(work)
    stopping = False

    def stop() -> None:
        nonlocal stopping
        stopping = True
        job.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as nohup has it
        loop.add_signal_handler(signal.SIGHUP, stop)
    try:
        return await job
    except asyncio.CancelledError:
        if not stopping:
            raise
        return None
