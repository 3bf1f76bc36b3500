"""The folder of engine builds: several side by side, each whole or not there at all."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from workhorse.engines.supply.manifest import (
    Manifest,
    check_name,
    read_manifest,
    write_manifest,
)
from workhorse.errors import EXIT_USAGE, AppError
from workhorse.models.part_file import local_errors, sync_folder
from workhorse.text import Text

# What is being made lies beside the builds, under names that no build can have.
_UNFINISHED = ".part-"
# Environments lie beside the builds; see `environment.py`.
ENVIRONMENT = "environment.json"


@dataclass(frozen=True, slots=True)
class Build:
    """One build that is there."""

    folder: Path
    manifest: Manifest

    @property
    def program(self) -> Path:
        """Its llama-server."""
        return self.folder / self.manifest.program


@dataclass(frozen=True, slots=True)
class Builds:
    """The builds of one installation, in `folder`."""

    folder: Path

    def all(self) -> tuple[list[Build], list[AppError]]:
        """The builds by name, and an error for each folder that is none."""
        found, errors = [], []
        for name in self.names():
            try:
                found.append(Build(self.folder / name, read_manifest(self.folder / name)))
            except AppError as error:
                errors.append(error)
        return found, errors

    def names(self) -> list[str]:
        """The names that are taken."""
        with suppress(FileNotFoundError), local_errors(self.folder):
            if self.folder.is_dir():
                return sorted(
                    p.name
                    for p in self.folder.iterdir()
                    if p.is_dir() and p.name[0] != "." and not (p / ENVIRONMENT).exists()
                )
        return []

    def get(self, name: str) -> Build:
        """The build called `name`; AppError with the names that there are."""
        if name not in self.names():
            raise self._unknown(name)
        return Build(self.folder / name, read_manifest(self.folder / name))

    def _unknown(self, name: str) -> AppError:
        names = ", ".join(self.names())
        return AppError(
            Text(
                f"There is no engine build {name[:80]!r}.", f"没有名为 {name[:80]!r} 的引擎构建。"
            ),
            Text(f"There are: {names}.", f"已有：{names}。")
            if names
            else Text("Make one: workhorse engine build", "请先构建：workhorse engine build"),
            exit_code=EXIT_USAGE,
        )

    def refuse_taken(self, name: str) -> None:
        """AppError when a build has this name already."""
        if check_name(name) in self.names() or (self.folder / name / ENVIRONMENT).exists():
            raise AppError(
                Text(f"There is a build {name!r} already.", f"已存在名为 {name!r} 的构建。"),
                Text(
                    f"Choose another --name, or first: workhorse engine remove {name}",
                    f"请用 --name 另取名称，或先执行：workhorse engine remove {name}",
                ),
                exit_code=EXIT_USAGE,
            )

    @contextmanager
    def making(self) -> Iterator[Path]:
        """A new empty folder beside the builds; what is left in it at the end is removed."""
        with local_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            scratch = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=self.folder))
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def keep(self, made: Path, manifest: Manifest) -> Build:
        """Give the finished folder its name, at once: before it there is nothing of it to see."""
        self.refuse_taken(manifest.name)
        write_manifest(made, manifest)
        target = self.folder / manifest.name
        with local_errors(target):
            made.chmod(0o755)  # mkdtemp lets nobody else in
            for path in (*made.rglob("*"), made):
                sync(path)
            made.rename(target)
            sync_folder(self.folder)
        return Build(target, manifest)

    def remove(self, name: str) -> Build | None:
        """Remove the build, also a damaged one; AppError while a process runs it."""
        if name not in self.names():
            raise self._unknown(name)
        folder = self.folder / name
        if users := processes_in(folder):
            listed = ", ".join(map(str, users))
            raise AppError(
                Text(
                    f"The build {name!r} is in use by process {listed}.",
                    f"构建 {name!r} 正被进程 {listed} 使用。",
                ),
                Text(
                    "Stop the service that runs it, then remove it.", "请先停止使用它的服务再删除。"
                ),
            )
        build = None
        with suppress(AppError):
            build = self.get(name)
        with local_errors(folder):
            # Renamed first: an interrupted removal leaves no half build under the name.
            gone = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=self.folder))
            folder.rename(gone / name)
            shutil.rmtree(gone)
            sync_folder(self.folder)
        return build

    def sweep(self) -> None:
        """Remove what an interrupted install or removal left; call it with the lock."""
        for left in self.folder.glob(f"{_UNFINISHED}*"):
            shutil.rmtree(left, ignore_errors=True)

    @contextmanager
    def alone(self) -> Iterator[int]:
        """Only one process makes, installs or removes builds at a time; AppError for the second.

        Gives the lock's descriptor: a child that inherits it keeps the lock if we are killed.
        """
        with local_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise AppError(
                    Text(
                        "Another process is building, installing or removing an engine.",
                        "另一个进程正在构建、安装或删除引擎。",
                    ),
                    Text("Wait for it, then try again.", "请等它结束后再试。"),
                ) from error
            self.sweep()
            yield handle
        finally:
            os.close(handle)


def sync(path: Path) -> None:
    """Make a file's bytes survive a crash."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def processes_in(folder: Path) -> list[int]:
    """The processes that run a program or hold a library below `folder`, as far as we may see.

    By what they have mapped and by how they were started: a Python whose own program is a link
    to the system's maps nothing of its environment before it imports compiled code, and what it
    starts as a helper never does.
    """
    inside = {f"{folder.absolute()}/", f"{folder.resolve()}/"}
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and any(
            word in held for held in _held_by(entry) for word in inside
        ):
            found.append(int(entry.name))
    return sorted(found)


def _held_by(process: Path) -> Iterator[str]:
    """The program that a process was started as, then what it has mapped; other users' may hide."""
    for name in ("cmdline", "maps"):
        with suppress(OSError):
            text = (process / name).read_text(errors="replace")
            yield text.partition("\0")[0] if name == "cmdline" else text


def disk_bytes(folder: Path) -> int:
    """What a folder takes on the disk, in blocks; 0 when it is not there."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            total += path.lstat().st_blocks * 512
    return total
