"""Opens the files that belong to one model, wherever they are: a directory, a hub, an address."""

import base64
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from workhorse.errors import AppError
from workhorse.models.cursor import ReadAt
from workhorse.models.hub import HubFolder, no_such_file
from workhorse.models.refusals import shown
from workhorse.models.remote_file import FIRST_PIECE_BYTES, Refused, RemoteFile, fetch_document
from workhorse.models.sources import HubSource, LocalSource, Source
from workhorse.text import Text

NAMES_MAX = 20_000
_KEPT = "/%:@!$&'()*+,;=~-._?"  # what an address may have as it is (RFC 3986)


class Folder(Protocol):
    """The files of one model. Everything raises AppError and nothing else."""

    label: str

    def name_of(self, file: str) -> str:
        """How errors and records call one file."""

    def listing(self) -> dict[str, int | None]:
        """The files with their sizes in bytes (None: unknown); {} when they cannot be listed."""

    def opened(self, file: str, first_piece_bytes: int = FIRST_PIECE_BYTES) -> tuple[ReadAt, int]:
        """Positioned reads of one file, and its size."""

    def document(self, file: str, max_bytes: int) -> bytes | None:
        """A small file whole; None when there is none of that name."""


@contextmanager
def opened_folder(
    source: Source, environment: Mapping[str, str], pause: Callable[[float], None] = time.sleep
) -> Iterator[tuple[Folder, str | None]]:
    """The folder that `source` is or is in, and the file or quantisation that it names."""
    if isinstance(source, HubSource):
        yield HubFolder(source, environment, pause), source.wanted
    elif isinstance(source, LocalSource):
        with local_errors_of(source.path):
            is_folder = source.path.is_dir()
        folder = LocalFolder(source.path if is_folder else source.path.parent)
        with folder.files:
            yield folder, None if is_folder else source.path.name
    else:
        folder_at = AddressFolder(source.url, pause)
        yield folder_at, folder_at.file


class LocalFolder:
    """The files of a directory; open ones are closed with `files`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.label = str(path)
        self.files = ExitStack()

    def name_of(self, file: str) -> str:
        """The path of the file."""
        return str(self.path / file)

    def listing(self) -> dict[str, int | None]:
        """The regular files of the directory itself."""
        found: dict[str, int | None] = {}
        with local_errors_of(self.path), os.scandir(self.path) as entries:
            for entry in entries:
                if len(found) >= NAMES_MAX:
                    break
                if entry.is_file():
                    found[entry.name] = entry.stat().st_size
        return found

    def opened(
        self,
        file: str,
        first_piece_bytes: int = FIRST_PIECE_BYTES,  # noqa: ARG002 - the pages are there already
    ) -> tuple[ReadAt, int]:
        """Positioned reads of one file, and its size."""
        handle, size_bytes = self.files.enter_context(opened_file(self.path / file))
        path = self.path / file

        def read_at(offset: int, size: int) -> bytes:
            with local_errors_of(path):
                return os.pread(handle, size, offset)

        return read_at, size_bytes

    def document(self, file: str, max_bytes: int) -> bytes | None:
        """A small file whole; None when there is none of that name."""
        path = self.path / file
        with local_errors_of(path):
            if not path.exists():
                return None
        with opened_file(path) as (handle, size_bytes), local_errors_of(path):
            if size_bytes > max_bytes:
                raise AppError(
                    Text(f"{shown(str(path))} is too large.", f"{shown(str(path))} 过大。"),
                    Text("Check the file.", "请检查该文件。"),
                )
            return os.pread(handle, max_bytes, 0)


@contextmanager
def opened_file(path: Path) -> Iterator[tuple[int, int]]:
    """A descriptor for reading a regular file, and its size."""
    with local_errors_of(path):
        # Without O_NONBLOCK a named pipe would hold us until somebody writes into it.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        with local_errors_of(path):
            status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise AppError(
                Text(
                    f"{shown(str(path))} is no regular file.", f"{shown(str(path))} 不是普通文件。"
                ),
                Text("Give the path of a model.", "请指定模型的路径。"),
            )
        yield handle, status.st_size
    finally:
        os.close(handle)


@contextmanager
def local_errors_of(path: Path) -> Iterator[None]:
    """Turn what the file system throws into an AppError that names `path`."""
    try:
        yield
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        place = shown(str(path))
        raise AppError(
            Text(f"{place} cannot be read: {why}.", f"无法读取 {place}：{why}。"),
            Text("Check the path.", "请检查路径。"),
        ) from error


def _basic(login: str) -> str:
    return "Basic " + base64.b64encode(unquote(login).encode()).decode()


class AddressFolder:
    """A file at an address, and what lies beside it."""

    def __init__(self, url: str, pause: Callable[[float], None] = time.sleep) -> None:
        parts = urlsplit(url)
        login, _, place = parts.netloc.rpartition("@")
        # A name and password stay out of addresses that are shown, and urllib wants them apart.
        self.headers = {"Authorization": _basic(login)} if login else {}
        self._parts = parts._replace(
            netloc=place, path=quote(parts.path, safe=_KEPT), query=quote(parts.query, safe=_KEPT)
        )
        self._pause = pause
        self._folder, _, last = self._parts.path.rpartition("/")
        self.file = unquote(last)
        self.label = shown(urlunsplit(self._parts._replace(query="", fragment="")))
        if not self.file:
            raise AppError(
                Text(f"{self.label} names no file.", f"{self.label} 没有指明文件。"),
                Text(
                    "Give the address of a .gguf file, a .safetensors file or a config.json.",
                    "请给出 .gguf、.safetensors 或 config.json 文件的地址。",
                ),
            )

    def name_of(self, file: str) -> str:
        """The address of the file, without what signs it."""
        return shown(urlunsplit(self._parts._replace(path=self._path(file), query="", fragment="")))

    def listing(self) -> dict[str, int | None]:
        """Nothing: an address has no listing."""
        return {}

    def opened(self, file: str, first_piece_bytes: int = FIRST_PIECE_BYTES) -> tuple[ReadAt, int]:
        """Positioned reads of one file, and its size."""
        remote = RemoteFile(
            self._address(file),
            self.headers,
            first_piece_bytes=first_piece_bytes,
            pause=self._pause,
        )
        try:
            return remote.read_at, remote.size_bytes
        except Refused as refusal:
            if refusal.status == 404 and file != self.file:
                raise no_such_file(self.label, file, []) from refusal
            raise refusal.explained() from refusal

    def document(self, file: str, max_bytes: int) -> bytes | None:
        """A small file whole; None when there is none of that name."""
        try:
            return fetch_document(self._address(file), self.headers, max_bytes, self._pause)[0]
        except Refused as refusal:
            if refusal.status in (403, 404, 410):
                return None
            raise refusal.explained() from refusal

    def addresses(self, file: str) -> list[str]:
        """Where one file is."""
        return [self._address(file)]

    def explained(self, refusal: Refused, _file: str | None) -> AppError:
        """The error for the user where the server refuses."""
        return refusal.explained()

    def _path(self, file: str) -> str:
        return self._parts.path if file == self.file else f"{self._folder}/{quote(file)}"

    def _address(self, file: str) -> str:
        return urlunsplit(self._parts._replace(path=self._path(file), fragment=""))
