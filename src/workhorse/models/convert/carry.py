"""The other files of a checkpoint: carried along, config.json and the index rewritten."""

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workhorse.models.config_json import CONFIG_BYTES_MAX
from workhorse.models.convert.refusals import disk_errors
from workhorse.models.convert.source import Shard, is_weights
from workhorse.models.folders import NAMES_MAX
from workhorse.models.refusals import damaged
from workhorse.models.safetensors import INDEX

DEPTH_MAX = 4
_TYPE_KEYS = ("torch_dtype", "dtype")


def other_files(folder: Path) -> tuple[list[str], list[str]]:
    """The files below `folder` to carry along, and the weights that are not converted.

    Both as paths relative to it, sorted. Hidden files stay where they are, and what is behind a
    linked folder; a linked file (as a hub's cache has them) counts as what it points to.
    """
    carried: list[str] = []
    weights: list[str] = []
    with disk_errors(folder):
        for place, folders, files in os.walk(folder):
            inside = Path(place).relative_to(folder)
            deep = len(inside.parts) >= DEPTH_MAX
            folders[:] = [] if deep else sorted(f for f in folders if not f.startswith("."))
            for file in sorted(files):
                name = str(inside / file)
                if file.startswith(".") or not (folder / name).is_file():
                    continue
                (weights if is_weights(file) else carried).append(name)
                if len(carried) + len(weights) > NAMES_MAX:
                    raise damaged(str(folder), "it has too many files", "文件过多")
    return carried, weights


def carry(source: Path, target: Path, names: Sequence[str]) -> None:
    """Copy the files; in each config.json the type of the weights becomes float16."""
    for name in names:
        here, there = source / name, target / name
        with disk_errors(there):
            there.parent.mkdir(parents=True, exist_ok=True)
            if there.name == "config.json":
                there.write_bytes(float16_config(here))
            else:
                shutil.copyfile(here, there)


def float16_config(path: Path) -> bytes:
    """The config with float16 wherever it says that weights are bfloat16; AppError: no JSON."""
    with disk_errors(path):
        size_bytes = path.stat().st_size
        if size_bytes > CONFIG_BYTES_MAX:
            raise damaged(str(path), "it is too large", "过大")
        raw = path.read_bytes()
    try:
        values = json.loads(raw)
        return (json.dumps(_as_float16(values), ensure_ascii=False, indent=2) + "\n").encode()
    except (ValueError, RecursionError) as error:
        raise damaged(str(path), f"it is not JSON ({error})", f"不是 JSON（{error}）") from error


def _as_float16(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: inner.replace("bfloat16", "float16")
            if key in _TYPE_KEYS and isinstance(inner, str)
            else _as_float16(inner)
            for key, inner in value.items()
        }
    return [_as_float16(inner) for inner in value] if isinstance(value, list) else value


def write_index(target: Path, index: str | None, shards: Sequence[Shard]) -> str | None:
    """Write the index of the converted files; its name, None for a checkpoint that needs none."""
    bins = any(not shard.path.name.endswith(".safetensors") for shard in shards)
    if index is None and not (bins and len(shards) > 1):
        return None
    name = INDEX if index is None or bins else index
    weight_map = {tensor.name: shard.target for shard in shards for tensor in shard.tensors}
    size_bytes = sum(data_bytes(target / shard.target) for shard in shards)
    document = {
        "metadata": {"total_size": size_bytes},
        "weight_map": dict(sorted(weight_map.items())),
    }
    with disk_errors(target / name):
        (target / name).write_text(
            json.dumps(document, indent=2, ensure_ascii=False) + "\n", "utf-8"
        )
    return name


def data_bytes(path: Path) -> int:
    """What a safetensors file holds behind its header."""
    with disk_errors(path), path.open("rb") as file:
        return path.stat().st_size - 8 - int.from_bytes(file.read(8), "little")
