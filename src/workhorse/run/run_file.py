"""Who runs here: one file a service, by which its engines are found when it died without a word.

It also holds the token with which a command of the same user may ask the service for its state
or for a reload, so only that user can read it.
"""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from workhorse.codec import from_json, to_json
from workhorse.errors import AppError
from workhorse.run.live_processes import LiveProcess, birthplace, read_process
from workhorse.text import Text
from workhorse.units import MIB

LARGEST_BYTES = MIB
MOST_FILES = 1000


@dataclass(frozen=True, slots=True)
class ServiceFile:
    """One service and the engines that it owns."""

    birthplace: str  # the start of this host and its process namespace: elsewhere ids mean others
    service: LiveProcess
    host: str
    port: int
    started_unix_s: float
    marker: str  # in the environment of every engine, and of what an engine started
    token: str
    engines: tuple[LiveProcess, ...] = ()
    config: str | None = None
    tls: bool = False

    @property
    def url(self) -> str:
        """Where it can be asked from this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104
        return f"http{'s' if self.tls else ''}://{f'[{host}]' if ':' in host else host}:{self.port}"

    def lives(self, proc: Path = Path("/proc")) -> bool | None:
        """Whether the service still runs; None: it was not started here, nobody can tell."""
        if self.birthplace != birthplace(proc):
            return None
        now = read_process(self.service.pid, proc)
        return now is not None and now.start_ticks == self.service.start_ticks


def path_of(folder: Path, port: int) -> Path:
    """Where the service on `port` is written down."""
    return folder / f"service-{port}.json"


def write_service_file(folder: Path, file: ServiceFile) -> None:
    """Write it whole or not at all, for this user alone; an AppError when that cannot be done."""
    path = path_of(folder, file.port)
    new = path.with_suffix(f".{os.getpid()}.new")
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            out.write(to_json(file))
        new.replace(path)
    except OSError as error:
        with suppress(OSError):
            new.unlink()  # what a full disk left of it
        raise AppError(
            Text(f"{path} cannot be written: {error}.", f"无法写入 {path}：{error}。"),
            Text(
                "Without it a killed service leaves its engine behind: make the folder writable.",
                "缺少该文件时，服务被强制终止后会遗留引擎进程：请确保目录可写。",
            ),
        ) from error


def read_service_file(path: Path) -> ServiceFile | None:
    """What the file says; None when there is none or it is none of ours."""
    try:
        if path.stat().st_size > LARGEST_BYTES:
            return None
        return from_json(ServiceFile, path.read_text(encoding="utf-8"), what="service file")
    except (OSError, UnicodeDecodeError, AppError):
        return None


def service_files(folder: Path) -> list[tuple[Path, ServiceFile]]:
    """Every service that is written down, by port."""
    paths = sorted(folder.glob("service-*.json"))[:MOST_FILES]
    found = [(path, read_service_file(path)) for path in paths]
    return sorted(((p, f) for p, f in found if f is not None), key=lambda both: both[1].port)
