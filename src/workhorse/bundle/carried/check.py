"""Whether a bundle's folder holds what its manifest says: every file, every byte."""

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from .manifest import FILES_MAX, MANIFEST, File, Manifest
from .words import Progress, Refusal, Words, listed

CHUNK_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Difference:
    """Where a bundle is not what its manifest says; paths below the bundle's folder."""

    missing: tuple[str, ...]
    extra: tuple[str, ...]
    changed: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.missing or self.extra or self.changed)

    def told(self) -> Words:
        """All of it in one sentence."""
        groups = (
            (self.missing, "missing", "缺少"),
            (self.extra, "extra", "多出"),
            (self.changed, "changed", "被改动"),
        )
        there = [(listed(names), en, zh) for names, en, zh in groups if names]
        return Words(
            "; ".join(f"{en}: {names}" for names, en, _ in there),
            "；".join(f"{zh}：{names}" for names, _, zh in there),
        )


def compare_folder(folder: Path, manifest: Manifest, progress: Progress) -> Difference:
    """What is missing, extra or changed; a link is extra, wherever it leads.

    Reads every byte, so it takes as long as the disk does.
    """
    there, links = _walked(folder)
    expected = {file.path: file for file in manifest.files}
    done_bytes, changed = 0, []
    for path, file in expected.items():
        if path in there and not _is_same(folder / path, file, done_bytes, manifest, progress):
            changed.append(path)
        done_bytes += file.n_bytes
        progress(done_bytes, manifest.n_bytes)
    return Difference(
        tuple(sorted(expected.keys() - there)),
        tuple(sorted((there | links) - expected.keys() - {MANIFEST})),
        tuple(sorted(changed)),
    )


def refuse_difference(found: Difference) -> None:
    """Refusal when the bundle is not as it was made."""
    if found:
        what = found.told()
        raise Refusal(
            Words(
                f"The bundle is not as it was made: {what.en}.",
                f"离线包与制作时不一致：{what.zh}。",
            ),
            Words(
                "Copy it again from where it was made; remove what does not belong to it.",
                "请从制作处重新复制，并删除不属于它的文件。",
            ),
            3,
        )


def opened_plainly(path: Path) -> int:
    """A descriptor of a regular file; OSError for a link, a pipe or a device."""
    # Without O_NONBLOCK a named pipe would hold us until somebody writes into it.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(f"{path} is no regular file")
    return handle


def _walked(folder: Path) -> tuple[set[str], set[str]]:
    """The regular files below `folder`, and whatever else is no folder."""
    files: set[str] = set()
    others: set[str] = set()
    for place, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = os.path.join(place, name)  # noqa: PTH118 - os.walk gives text
            mode, relative = os.lstat(path).st_mode, os.path.relpath(path, folder)
            if stat.S_ISREG(mode):
                files.add(relative)
            elif not stat.S_ISDIR(mode):
                others.add(relative)
        if len(files) + len(others) > FILES_MAX:
            break  # a bundle has fewer; the rest would be extra too
    return files, others


def _is_same(
    path: Path, file: File, before_bytes: int, manifest: Manifest, progress: Progress
) -> bool:
    try:
        handle = opened_plainly(path)
    except OSError:
        return False
    with os.fdopen(handle, "rb", buffering=0) as opened:
        if os.fstat(handle).st_size != file.n_bytes:
            return False
        digest, read_bytes = hashlib.sha256(), 0
        try:
            while chunk := opened.read(CHUNK_BYTES):
                digest.update(chunk)
                read_bytes += len(chunk)
                progress(before_bytes + read_bytes, manifest.n_bytes)
        except OSError:  # a bad block of the stick
            return False
    return digest.hexdigest() == file.sha256
