"""Finds the parts of a split model and checks that they belong together."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from workhorse.errors import AppError
from workhorse.models.header import Header
from workhorse.models.metadata import Metadata
from workhorse.models.refusals import damaged, shown
from workhorse.text import Text

# `SPLIT_PATH_FORMAT` of llama.cpp's src/llama.cpp, commit 0c1e57098, 2026-10-01.
PART_NAME = re.compile(r"(?P<stem>.*)-(?P<part>\d{5})-of-(?P<parts>\d{5})\.gguf")
PARTS_MAX = 1024  # four times as many as any published model has (2026-11)


def plain_name(path: Path) -> str:
    """The model's name as its file says it, without part number and suffix."""
    match = PART_NAME.fullmatch(path.name)
    return match["stem"] if match else path.stem


def part_paths(path: Path, header: Header) -> list[Path]:
    """The paths of all parts of the model in order; `[path]` when it is in one file.

    `header` is that of `path`, any of the parts. AppError when parts are missing, or when the
    name does not follow the pattern by which the engine finds the others.
    """
    parts = Metadata(header).count("split.count") or 1
    if parts == 1:
        return [path]
    if parts > PARTS_MAX:
        raise damaged(header.name, f"it claims {parts} parts", f"声称有 {parts} 个分卷")
    match = PART_NAME.fullmatch(path.name)
    if match is None or int(match["parts"]) != parts:
        raise _misnamed(path, (Metadata(header).count("split.no") or 0) + 1, parts)
    names = [f"{match['stem']}-{part:05d}-of-{parts:05d}.gguf" for part in range(1, parts + 1)]
    paths = [path.with_name(name) for name in names]
    missing = [part.name for part in paths if not part.exists()]
    if missing:
        raise _missing(missing, parts, path.parent)
    return paths


def check_parts(headers: Sequence[Header]) -> None:
    """Each part is the one that its name says, and together they are complete."""
    for number, header in enumerate(headers):
        if header.values.get("split.no") != number:
            raise damaged(
                header.name,
                f"it is not part {number + 1} of the model, as its name says",
                f"它并不是文件名所说的第 {number + 1} 个分卷",
            )
    names = Counter(tensor.name for header in headers for tensor in header.tensors)
    expected = headers[0].values.get("split.tensors.count", len(names))
    if expected != names.total() or names.total() != len(names):
        raise damaged(
            headers[0].name,
            f"its parts have {len(names)} different tensors, not {expected}",
            f"各分卷共有 {len(names)} 个不同的张量，而应为 {expected} 个",
        )


def _misnamed(path: Path, part: int, parts: int) -> AppError:
    return AppError(
        Text(
            f"{shown(str(path))} is part {part} of {parts}, but its name does not say so: the "
            "other parts cannot be found.",
            f"{shown(str(path))} 是 {parts} 个分卷中的第 {part} 个，但文件名未体现，"
            "无法找到其余分卷。",
        ),
        Text(
            f"Rename the parts: NAME-{part:05d}-of-{parts:05d}.gguf for this one.",
            f"请按规范重命名各分卷，此文件应为 NAME-{part:05d}-of-{parts:05d}.gguf。",
        ),
    )


def _missing(names: Sequence[str], parts: int, folder: Path) -> AppError:
    listed = shown(", ".join(names[:5]) + (" …" if len(names) > 5 else ""))
    return AppError(
        Text(
            f"{len(names)} of the {parts} parts of the model are missing: {listed}.",
            f"模型共 {parts} 个分卷，缺少 {len(names)} 个：{listed}。",
        ),
        Text(f"Put them into {shown(str(folder))}.", f"请将它们放入 {shown(str(folder))}。"),
    )
