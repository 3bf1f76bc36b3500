"""The file system under a path: what kind, how large, how much is free."""

import os
import re
from pathlib import Path

from workhorse.machine.files import HostFiles
from workhorse.records import Disk
from workhorse.text import Text


def read_disk(files: HostFiles, path: Path) -> tuple[Disk, tuple[Text, ...]]:
    """The file system that holds `path`, or would hold it once it exists."""
    place = path.absolute()
    file_system: str | None = None
    try:
        while not place.exists() and place != place.parent:
            place = place.parent
        mounts = files.text("proc/self/mountinfo") or ""
        file_system = file_system_of(mounts, os.path.realpath(place))
        facts = os.statvfs(place)
    except OSError as error:
        doubt = Text(
            f"The file system of {path} could not be read: {error.strerror}.",
            f"无法读取 {path} 所在的文件系统：{error.strerror}。",
        )
        return Disk(str(path), file_system, None, None), (doubt,)
    return Disk(
        path=str(path),
        file_system=file_system,
        total_bytes=facts.f_blocks * facts.f_frsize,
        free_bytes=facts.f_bavail * facts.f_frsize,
    ), ()


def file_system_of(mountinfo: str, place: str) -> str | None:
    """The type of the file system mounted over `place`, from /proc/self/mountinfo's text.

    The fields are those of proc(5): the mount point is the fifth, the type follows the dash.
    """
    best, found = "", None
    for line in mountinfo.splitlines():
        before, dash, after = line.partition(" - ")
        columns, kind = before.split(" "), after.split(" ")[0]
        if not dash or len(columns) < 5 or not kind:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), columns[4])
        inside = place == point or place.startswith(point.rstrip("/") + "/")
        # `>=`: of two mounts on one point the later one hides the earlier one.
        if inside and len(point) >= len(best):
            best, found = point, kind
    return found
