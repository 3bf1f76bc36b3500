"""Takes files out of an archive that somebody else made: none lands outside of its folder."""

import lzma
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from workhorse.engines.supply.manifest import is_inside
from workhorse.errors import AppError
from workhorse.models.part_file import local_errors
from workhorse.text import Text

# The source tree has 3,741 files and 176 MB (2026-11); a build with code for each card 2 GB.
FILES_MAX = 20_000
BYTES_MAX = 8 * 1024**3

# (path in the archive, bytes, is it executable, its content)
Member = tuple[str, int, bool, IO[bytes]]


def unpack(archive: Path, target: Path, wanted: Callable[[str], str | None]) -> int:
    """Unpack the regular files for which `wanted(path)` gives a path below `target`.

    Returns how many there were. Links and devices are left out: neither a build nor a source
    tree has any that count. Raises AppError for a damaged archive, for a path that leads out, and
    for one that would fill the disk.
    """
    count = n_bytes = 0
    with local_errors(target), _readable(archive):
        for path, size, executable, content in _members(archive):
            place = wanted(path)
            if place is None:
                continue
            count, n_bytes = count + 1, n_bytes + size
            if not is_inside(place):
                raise _refused(archive, f"{place[:80]!r} leads out", f"{place[:80]!r} 越出目录")
            if count > FILES_MAX or n_bytes > BYTES_MAX:
                raise _refused(archive, "it is far too large", "体积过大")
            file = target / place
            file.parent.mkdir(parents=True, exist_ok=True)
            # "x": a name that comes twice is no archive of ours.
            with file.open("xb") as out:
                shutil.copyfileobj(content, out, 1024 * 1024)
            file.chmod(0o755 if executable else 0o644)
    return count


def _members(archive: Path) -> Iterator[Member]:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            for entry in zipped.infolist():
                mode = entry.external_attr >> 16
                if not entry.is_dir() and mode & 0o170000 in (0, 0o100000):
                    with zipped.open(entry) as content:
                        yield entry.filename, entry.file_size, bool(mode & 0o100), content
        return
    with tarfile.open(archive) as packed:
        for member in packed:
            taken = packed.extractfile(member) if member.isreg() else None
            if taken is not None:
                yield member.name, member.size, bool(member.mode & 0o100), taken


@contextmanager
def _readable(archive: Path) -> Iterator[None]:
    """Turns what a damaged archive raises into an AppError."""
    try:
        yield
    except FileExistsError as error:
        raise _refused(archive, "it names a file twice", "文件重名") from error
    except (
        tarfile.TarError,
        zipfile.BadZipFile,
        EOFError,
        NotImplementedError,  # a zip with a compression that Python does not have
        zlib.error,
        lzma.LZMAError,
    ) as error:
        raise _refused(archive, "it is damaged or no archive", "已损坏或不是归档") from error


def _refused(archive: Path, why: str, why_zh: str) -> AppError:
    return AppError(
        Text(f"{archive.name} cannot be unpacked: {why}.", f"无法解压 {archive.name}：{why_zh}。"),
        Text("Get it again from where it came from.", "请从来源处重新获取。"),
    )
