"""Open the machine that a path stands for: this one, a capture, or texts pasted together."""

import os
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from workhorse.errors import AppError
from workhorse.machine.files import (
    CAPTURE_NOTE,
    COMMANDS,
    FILE_BYTES_MAX,
    PACKED_BYTES_MAX,
    DirectoryFiles,
    HostFiles,
    PackedFiles,
)
from workhorse.machine.loose_texts import LooseTexts, recognise
from workhorse.machine.measured import MEASURED_CAPTURE
from workhorse.machine.nvml import NVML_CAPTURE
from workhorse.machine.software import SOFTWARE_CAPTURE
from workhorse.text import Text

_LOOSE_FILES_MAX = 500
_LOOSE_DEPTH_MAX = 3
# What the top of a machine's tree has; a folder without any of it holds loose texts.
_TOPS = frozenset({"proc", "sys", "etc", COMMANDS, CAPTURE_NOTE, NVML_CAPTURE})


class LayeredFiles:
    """A captured tree, and behind it what texts beside it tell."""

    live = False

    def __init__(self, tree: HostFiles, texts: HostFiles) -> None:
        self._tree = tree
        self._texts = texts

    def text(self, path: str) -> str | None:
        """The tree's file, else what the texts tell."""
        found = self._tree.text(path)
        return self._texts.text(path) if found is None else found

    def names(self, path: str) -> tuple[str, ...]:
        """The names of both, sorted."""
        return tuple(sorted({*self._tree.names(path), *self._texts.names(path)}))

    def said(self, *command: str) -> str | None:
        """What the program printed, from the tree, else from the texts."""
        found = self._tree.said(*command)
        return self._texts.said(*command) if found is None else found


def open_files(root: Path) -> HostFiles:
    """The files of the machine at `root`.

    A directory with the top of a machine's tree, a packed capture (one JSON document), or texts
    that somebody pasted together: a folder of them or one file. Raises AppError for anything else.
    """
    if root.is_dir():
        tree = DirectoryFiles(root)
        if tree.live:
            return tree
        if not _TOPS & set(tree.names("")):
            return _loose_files(root, _texts_below(root, _LOOSE_DEPTH_MAX))
        beside = recognise(_texts_below(root, 0))
        return LayeredFiles(tree, _packed(beside)) if beside.files else tree
    try:
        with root.open("rb") as file:
            document = file.read(PACKED_BYTES_MAX + 1)
    except OSError as error:
        raise _refused(root, error.strerror or str(error)) from error
    if len(document) > PACKED_BYTES_MAX:
        raise _refused(root, f"more than {PACKED_BYTES_MAX // 1024**2} MiB")
    try:
        files = msgspec.json.decode(document, type=dict[str, Any])
    except (ValueError, RecursionError):
        files = {}
    if any(path.partition("/")[0] in _TOPS for path in files):
        return PackedFiles(files)
    texts = {name: text for name, text in files.items() if isinstance(text, str)}
    return _loose_files(root, texts or {root.name: _decoded(document)})


def _loose_files(root: Path, texts: dict[str, str]) -> HostFiles:
    loose = recognise(texts)
    if not loose.files:
        raise _refused(root, "no text in it is known")
    return _packed(loose)


def _packed(loose: LooseTexts) -> PackedFiles:
    note = {
        "architecture": loose.architecture,
        "glibc": loose.glibc,
        "unknown_texts": loose.unknown,
        "cores_inferred": loose.cores_inferred,
        "learned_from": loose.learned_from,
    }
    return PackedFiles({**loose.files, CAPTURE_NOTE: note})


def _texts_below(root: Path, depth: int) -> dict[str, str]:
    """The texts in a folder and `depth` folders down, by name; a capture's own files left out."""
    own = {CAPTURE_NOTE, NVML_CAPTURE, MEASURED_CAPTURE, SOFTWARE_CAPTURE}
    texts: dict[str, str] = {}
    places = [(root, 0)]
    while places and len(texts) < _LOOSE_FILES_MAX:
        folder, level = places.pop(0)
        try:
            with os.scandir(folder) as entries:
                found = sorted(islice(entries, 4 * _LOOSE_FILES_MAX), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in found:
            place = folder / entry.name
            # Links could lead to this machine's own files.
            if entry.is_dir(follow_symlinks=False) and level < depth:
                places.append((place, level + 1))
            elif entry.is_file(follow_symlinks=False) and entry.name not in own:
                texts[str(place.relative_to(root))] = _start_of(place)
    return texts


def _start_of(place: Path) -> str:
    try:
        with place.open("rb") as file:
            return _decoded(file.read(FILE_BYTES_MAX))
    except OSError:
        return ""


def _decoded(document: bytes) -> str:
    # A Windows terminal's redirection writes UTF-16.
    encoding = "utf-16" if document[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8"
    return document[:FILE_BYTES_MAX].decode(encoding, errors="replace")


def _refused(root: Path, why: str) -> AppError:
    return AppError(
        Text(
            f"{root} is no machine's directory, no capture and no text of known commands: {why}.",
            f"{root} 既不是机器的目录或采集文件，也不是已知命令的输出：{why}。",
        ),
        Text(
            "Name a capture (`workhorse probe --save DIR`), the top of a machine's tree"
            " (proc/ and sys/ in it), or texts of `nvidia-smi -q`, `lscpu`, `numactl -H`,"
            " `lspci -vv`, `free`, `dmesg`; or leave it out to probe this machine.",
            "请指定采集目录（`workhorse probe --save DIR`）、含 proc/ 和 sys/ 的目录，或"
            " `nvidia-smi -q`、`lscpu`、`numactl -H`、`lspci -vv`、`free`、`dmesg` 的输出文本；"
            "或省略它以检测本机。",
        ),
    )
