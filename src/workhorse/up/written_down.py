"""The service's own file: written while it lives, so that the next one finds what it left."""

import asyncio
import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from workhorse.errors import EXIT_NO, AppError
from workhorse.run.live_processes import LiveProcess, birthplace, read_process
from workhorse.run.orphans import Ended, end_orphans
from workhorse.run.run_file import ServiceFile, path_of, read_service_file, write_service_file
from workhorse.text import Text


class WrittenDown:
    """The owner of one service's file, from `open` to `remove`."""

    def __init__(
        self, folder: Path, engines: Callable[[], Sequence[LiveProcess]], config: Path | None
    ) -> None:
        self.marker = secrets.token_hex(16)
        self.token = secrets.token_urlsafe(32)
        self._folder = folder
        self._engines = engines
        self._config = None if config is None else str(config.absolute())
        self._file: ServiceFile | None = None  # as it was written last
        self._changed = asyncio.Event()

    async def open(
        self, host: str, port: int, now_unix_s: float, *, tls: bool = False
    ) -> tuple[Ended, ...]:
        """Write it, and end what the dead services of this folder left behind.

        Raises AppError when another service is written down under this port and lives.
        """
        ended = await asyncio.to_thread(end_orphans, self._folder)
        me = read_process(os.getpid())
        if me is None:  # no /proc: then nothing could be found again either
            return ended
        other = read_service_file(path_of(self._folder, port))
        if other is not None and other.lives():
            raise port_in_two_places(other)
        self._file = ServiceFile(
            birthplace=birthplace(),
            service=me,
            host=host,
            port=port,
            started_unix_s=now_unix_s,
            marker=self.marker,
            token=self.token,
            config=self._config,
            tls=tls,
        )
        await asyncio.to_thread(write_service_file, self._folder, self._file)
        return ended

    def renew(self) -> None:
        """An engine came or went: write that down soon."""
        self._changed.set()

    async def keep(self) -> None:
        """Keep the file up to date, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._file is not None:
                self._file = replace(self._file, engines=tuple(self._engines()))
                # A full disk: the marker still tells whose an engine is.
                await asyncio.to_thread(write_if_possible, self._folder, self._file)

    def remove(self) -> None:
        """The service ends in order: it leaves nothing behind."""
        if self._file is not None:
            path_of(self._folder, self._file.port).unlink(missing_ok=True)


def write_if_possible(folder: Path, file: ServiceFile) -> None:
    """Write the file; when that fails the old one stays."""
    try:
        write_service_file(folder, file)
    except AppError:
        return


def port_in_two_places(other: ServiceFile) -> AppError:
    """The refusal of a second service with the same port on another address."""
    return AppError(
        Text(
            f"A service with port {other.port} runs already, on {other.host} "
            f"(process {other.service.pid}).",
            f"端口 {other.port} 上已有服务在运行（地址 {other.host}，进程 {other.service.pid}）。",
        ),
        Text("Choose another port.", "请换一个端口。"),
        exit_code=EXIT_NO,
    )
