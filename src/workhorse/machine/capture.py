"""Write a machine down as a folder of texts that the probe reads anywhere: a bug report, a test.

The readers themselves say what belongs into it: they read through `RecordedFiles`, so what is
saved is what was read. Personal data are taken out on the way.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from pwd import getpwuid
from typing import Any

import msgspec

from workhorse import __version__
from workhorse.codec import to_json
from workhorse.errors import AppError
from workhorse.machine.files import CAPTURE_NOTE, COMMANDS, HostFiles, said_path
from workhorse.machine.measured import MEASURED_CAPTURE, measured_of
from workhorse.machine.nvml import NVML_CAPTURE, NvmlAnswers
from workhorse.machine.personal_data import scrub, scrub_file
from workhorse.machine.software import SOFTWARE_CAPTURE, to_note
from workhorse.machine.system import Running
from workhorse.records import Machine
from workhorse.text import Text

# Of a folder with more names than this, only those below which something was read are kept.
_UNREAD_NAMES_MAX = 512
# What lies elsewhere is somebody's own: `software.json` says what was found there.
_TOPS = frozenset({"proc", "sys", "etc", "dev", "run", ".dockerenv", COMMANDS, NVML_CAPTURE})
# Of the kernel's log only what an event is made of: the rest tells of disks, users and networks.
_LOG = said_path("dmesg")
_LOG_LINE = re.compile(
    r"NVRM|nvidia|Xid|AER|PCIe|DPC:|EDR:|EDAC|mce:|Hardware Error|Memory failure|ut of memory"
)
# Of the kernel's command line the switches of hardware: the rest names disks, hosts and users.
_BOOT_LINE = "proc/cmdline"
_BOOT_WORD = re.compile(
    r"(?:[\w.-]*(?:iommu|numa|hugepage|pci|nvidia|nouveau|pstate|cpu|nohz)[\w.-]*|mitigations|nosmt)"
    r"(?:=[\w.,:@-]*)?"
)
_ONE_OF_A_KIND = frozenset({"uuid", "serial", "board_serial", "pdi"})  # in NVML's answers


class RecordedFiles:
    """The files of a machine, each read once; what was read is kept for a capture."""

    def __init__(self, files: HostFiles) -> None:
        self._files = files
        self.live = files.live
        self.texts: dict[str, str | None] = {}
        self.folders: dict[str, tuple[str, ...]] = {}
        self.running = Running()

    def text(self, path: str) -> str | None:
        """The file's text as it was when first read: capture and Machine agree."""
        if path not in self.texts:
            self.texts[path] = self._files.text(path)
        return self.texts[path]

    def names(self, path: str) -> tuple[str, ...]:
        """The names in a directory as they were when first read."""
        if path not in self.folders:
            self.folders[path] = self._files.names(path)
        return self.folders[path]

    def said(self, *command: str) -> str | None:
        """What a program printed the first time."""
        path = said_path(*command)
        if path not in self.texts:
            self.texts[path] = self._files.said(*command)
        return self.texts[path]

    def keep(self, running: Running, answers: NvmlAnswers | None) -> None:
        """Keep what no file told: the running system's facts and the driver's answers."""
        self.running = running
        if answers is not None:
            document = msgspec.to_builtins(answers)
            for gpu in document["gpus"]:
                for name in _ONE_OF_A_KIND & gpu.keys():
                    del gpu[name]
            self.texts[NVML_CAPTURE] = to_json(document)


@dataclass(frozen=True, slots=True)
class Saved:
    """A capture that was written."""

    folder: Path
    files: int
    n_bytes: int


def refuse_used_folder(folder: Path) -> None:
    """Raise AppError when a capture must not be written to `folder`: something is there."""
    try:
        used = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    except OSError as error:
        raise _cannot_write(folder, error) from error
    if used:
        raise AppError(
            Text(
                f"{folder} has something in it: a capture is never written over other things.",
                f"{folder} 中已有内容：采集不会覆盖其他文件。",
            ),
            Text("Name a folder that is new or empty.", "请指定一个新的或空的目录。"),
        )


def save_capture(recorded: RecordedFiles, machine: Machine, folder: Path) -> Saved:
    """Write all that was read, and what was measured, to `folder`; all of it or nothing.

    Raises AppError when something is in `folder` already or it cannot be written.
    """
    refuse_used_folder(folder)
    target = Path(os.path.realpath(folder))
    today = datetime.now(UTC).date().isoformat()
    texts = capture_texts(recorded, machine, secrets=_names_of_here(recorded), date=today)
    partial: str | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Private: its owner has not looked it through yet.
        partial = tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent)
        for path, text in texts.items():
            _write(Path(partial, path), text)
        Path(partial).rename(target)  # takes the place of an empty folder, and of nothing else
    except OSError as error:
        raise _cannot_write(folder, error) from error
    finally:
        if partial is not None:  # gone where all went well
            shutil.rmtree(partial, ignore_errors=True)
    written = [text.encode() for text in texts.values() if text is not None]
    return Saved(folder, len(written), sum(map(len, written)))


def capture_texts(
    recorded: RecordedFiles, machine: Machine, *, secrets: Collection[str], date: str
) -> dict[str, str | None]:
    """The capture's files by path, without personal data; None stands for an empty folder. Pure."""
    running = recorded.running
    note = _note_before(recorded) | {
        "workhorse": __version__,
        "date": date,
        "architecture": running.architecture,
        "glibc": running.glibc,
        "libgomp": running.libgomp,
        "affinity": running.affinity,
        "container": running.container,
        "personal_data": "removed by workhorse",
    }
    texts: dict[str, str | None] = {}
    for path, text in _kept(recorded).items():
        clean = scrub(f"/{path}", secrets)[1:]
        if path == _LOG and text is not None:
            text = _telling_lines(text)
        elif path == _BOOT_LINE and text is not None:
            text = " ".join(filter(_BOOT_WORD.fullmatch, text.split())) + "\n"
        texts.setdefault(clean, None if text is None else scrub_file(path, text, secrets))
    texts[CAPTURE_NOTE] = scrub(to_json(note), secrets) + "\n"
    texts[SOFTWARE_CAPTURE] = scrub(to_note(machine.software), secrets) + "\n"
    texts[MEASURED_CAPTURE] = scrub(to_json(measured_of(machine)), secrets) + "\n"
    return texts


def _note_before(recorded: RecordedFiles) -> dict[str, Any]:
    """The note of a capture that is saved again: where its files came from, what was inferred."""
    try:
        return msgspec.json.decode(recorded.texts.get(CAPTURE_NOTE) or "{}", type=dict[str, Any])
    except (ValueError, RecursionError):
        return {}


def _kept(recorded: RecordedFiles) -> dict[str, str | None]:
    """What was read, and the names that were seen: an empty folder for each without a text."""
    kept: dict[str, str | None] = {
        path: text for path, text in recorded.texts.items() if text is not None and _ours(path)
    }
    above = {str(place) for path in kept for place in Path(path).parents}
    for folder, names in recorded.folders.items():
        seen = [f"{folder}/{name}" for name in names]
        if folder == "dev":  # whose other names say what hangs on the machine, and nothing to us
            seen = [path for path in seen if path.startswith("dev/nvidia")] or ["dev/null"]
        unread = [path for path in seen if path not in kept and path not in above]
        if len(unread) <= _UNREAD_NAMES_MAX and _ours(folder):
            kept |= dict.fromkeys(unread)
    return kept


def _ours(path: str) -> bool:
    """Of the machine, and nothing that climbs out of the capture."""
    parts = path.split("/")
    safe = all(
        part not in ("", ".", "..") and len(part) < 200 and "\0" not in part for part in parts
    )
    return safe and (parts[0] in _TOPS or path == "usr/lib/os-release")


def _telling_lines(log: str) -> str:
    """The lines that events are made of; a log without any still is one that could be read."""
    kept = [line for line in log.splitlines(keepends=True) if _LOG_LINE.search(line)]
    return "".join(kept) or (log and "[    0.000000] nothing of what is looked for\n")


def _names_of_here(recorded: RecordedFiles) -> frozenset[str]:
    """The names of this host and its users; those of another machine are not known here."""
    if not recorded.live:
        return frozenset()
    host = os.uname().nodename
    names = {host, host.partition(".")[0]}
    names |= {os.environ.get(name, "") for name in ("USER", "LOGNAME", "SUDO_USER")}
    try:
        names.add(getpwuid(os.getuid()).pw_name)
        names |= {place.name for place in Path("/home").iterdir()}
    except (KeyError, OSError):
        pass  # a user without an entry, a system without /home
    return frozenset(names)


def _write(place: Path, text: str | None) -> None:
    if text is None:
        place.mkdir(parents=True, exist_ok=True)
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text, encoding="utf-8", errors="replace")


def _cannot_write(folder: Path, error: OSError) -> AppError:
    said = error.strerror or str(error)
    return AppError(
        Text(f"{folder} cannot be written: {said}.", f"无法写入 {folder}：{said}。"),
        Text(
            "Name a folder that you may write to, on a disk with room.",
            "请指定一个有写权限、磁盘有空间的目录。",
        ),
    )
