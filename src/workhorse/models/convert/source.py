"""What a checkpoint on this machine holds: which files, which tensors, where in them."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from workhorse.errors import EXIT_USAGE, AppError
from workhorse.models.checkpoint import PIECE_BYTES, shards_of
from workhorse.models.convert.torch_bin import Entry, read_torch_bins
from workhorse.models.folders import Folder, opened_folder
from workhorse.models.refusals import damaged, shown
from workhorse.models.safetensors import (
    INDEX,
    INDEX_BYTES_MAX,
    SHARDS_MAX,
    header_text,
    missing_shards,
    parse_header,
)
from workhorse.models.sources import LocalSource, source_of
from workhorse.text import Text

BIN_INDEX = "pytorch_model.bin.index.json"
_BIN = re.compile(r"pytorch_model(-\d{5}-of-\d{5})?\.bin")


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor and where its bytes lie in the file; `shape` slowest dimension first."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset_bytes: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of weights, and what the converted one is called."""

    path: Path
    target: str
    n_bytes: int
    mtime_ns: int
    metadata: dict[str, str]
    tensors: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The weights in `folder`; `index` is the one that they were found by."""

    folder: Path
    shards: tuple[Shard, ...]
    index: str | None


def read_source(reference: str, environment: Mapping[str, str] | None = None) -> Checkpoint:
    """The safetensors or PyTorch files that `reference` means, by their headers.

    A folder, or an index or a single file in one. Raises AppError: for one that is not on this
    machine, has no weights, or whose files are missing, damaged or do not fit together.
    """
    environment = os.environ if environment is None else environment
    refuse_gguf(reference)
    source = source_of(reference, environment)
    if not isinstance(source, LocalSource):
        raise _not_here(reference)
    with opened_folder(source, environment) as (folder, wanted):
        place = source.path if wanted is None else source.path.parent
        index = _index_of(folder, wanted)
        if index is not None:
            files = _indexed(folder, index)
        elif wanted is not None and not wanted.endswith(".json"):
            files = {wanted: None}
        else:
            files = dict.fromkeys(_loose(folder))
        return Checkpoint(place, _shards(folder, place, files), index)


def refuse_gguf(reference: str) -> None:
    """AppError when a GGUF file is named where a checkpoint is wanted."""
    if reference.lower().endswith(".gguf"):
        raise AppError(
            Text(
                f"{shown(reference)} is a GGUF file already.",
                f"{shown(reference)} 已是 GGUF 文件。",
            ),
            Text(
                "Make it smaller with `workhorse quantize`.",
                "可用 `workhorse quantize` 进一步量化。",
            ),
            exit_code=EXIT_USAGE,
        )


def is_weights(file: str) -> bool:
    """True for files that hold weights, of whatever format, and for their indexes."""
    name = file.rpartition("/")[2].lower()
    return name.endswith(
        (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".onnx", ".onnx_data", ".h5",
         ".msgpack", ".ot", ".index.json", ".npz", ".tflite", ".pkl", ".pickle")
    )  # fmt: skip


def _index_of(folder: Folder, wanted: str | None) -> str | None:
    names = folder.listing()
    if wanted is not None and wanted.endswith(".index.json"):
        return wanted
    if wanted is not None and "-of-" not in wanted and not wanted.endswith(".json"):
        return None
    bins_asked = wanted is not None and wanted.endswith(".bin")
    has_safetensors = any(name.endswith(".safetensors") for name in names)
    for index in (BIN_INDEX,) if bins_asked else (INDEX, BIN_INDEX):
        if index in names and (index == INDEX or bins_asked or not has_safetensors):
            return index
    return None


def _loose(folder: Folder) -> list[str]:
    """The files of a checkpoint that has no index."""
    names = folder.listing()
    found = shards_of(folder, None) if names else []
    found = found or sorted(filter(_BIN.fullmatch, names))
    if "pytorch_model.bin" in found:
        found = ["pytorch_model.bin"]
    if found:
        return found
    held = ", ".join(shown(name) for name in list(names)[:5]) or "—"
    raise AppError(
        Text(
            f"{shown(folder.label)} has neither safetensors nor pytorch_model.bin (it has {held}).",
            f"{shown(folder.label)} 中没有 safetensors 或 pytorch_model.bin（现有 {held}）。",
        ),
        Text("Give the folder of a checkpoint.", "请指定模型检查点所在的目录。"),
    )


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def _indexed(folder: Folder, index: str) -> dict[str, set[str] | None]:
    """The files that an index names, each with the tensors that must be in it."""
    name = folder.name_of(index)
    raw = folder.document(index, INDEX_BYTES_MAX)
    try:
        weight_map = msgspec.json.decode(raw or b"", type=_Index).weight_map
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise damaged(name, f"it is no index ({error})", f"不是索引文件（{error}）") from error
    files: dict[str, set[str] | None] = {}
    for tensor, file in weight_map.items():
        if not _stays_inside(file):
            raise damaged(
                name,
                f"it names “{shown(file[:120])}”, which is no file of this folder",
                f"它指向“{shown(file[:120])}”，不是本目录中的权重文件",
            )
        inside = files.setdefault(file, set())
        if inside is not None:
            inside.add(tensor)
    if not files or len(files) > SHARDS_MAX:
        raise damaged(name, f"it names {len(files)} files", f"它指向 {len(files)} 个文件")
    present = list(folder.listing())
    if any(file not in present for file in files):
        raise missing_shards(folder.label, sorted(files), present)
    return dict(sorted(files.items()))


def _stays_inside(file: str) -> bool:
    plain = "/" not in file and "\\" not in file and "\0" not in file
    return plain and len(file) <= 255 and file.endswith((".safetensors", ".bin"))


def _shards(folder: Folder, place: Path, files: Mapping[str, set[str] | None]) -> tuple[Shard, ...]:
    shards: list[Shard] = []
    seen: dict[str, str] = {}
    bins = [file for file in files if not file.endswith(".safetensors")]
    for file in bins:
        folder.opened(file, PIECE_BYTES)  # says it when it is not there or no regular file
    read = read_torch_bins([place / file for file in bins]) if bins else []
    in_bins = dict(zip(bins, read, strict=True))
    for number, (file, expected) in enumerate(files.items(), start=1):
        target = _target(file, number, len(files))
        shard = _shard(folder, place / file, target, in_bins.get(file))
        held = {tensor.name for tensor in shard.tensors}
        if expected is not None and (lost := sorted(expected - held)):
            raise damaged(
                str(place / file),
                f"the index wants {len(lost)} tensors of it that it lacks, such as "
                f"“{shown(lost[0][:80])}”",
                f"索引要求的 {len(lost)} 个张量不在其中，例如“{shown(lost[0][:80])}”",
            )
        if twice := held & seen.keys():
            first = min(twice)
            raise damaged(
                str(place / file),
                f"“{shown(first)}” is in {shown(seen[first])} as well",
                f"“{shown(first)}”同时存在于 {shown(seen[first])}",
            )
        seen |= dict.fromkeys(held, file)
        shards.append(shard)
    _refuse_without_bf16(folder.label, shards)
    return tuple(shards)


def _target(file: str, number: int, files: int) -> str:
    if file.endswith(".safetensors"):
        return file
    return "model.safetensors" if files == 1 else f"model-{number:05d}-of-{files:05d}.safetensors"


class _Head(msgspec.Struct):
    metadata: dict[str, str] = msgspec.field(name="__metadata__", default_factory=dict)


def _shard(folder: Folder, path: Path, target: str, in_bin: list[Entry] | None) -> Shard:
    read_at, size_bytes = folder.opened(path.name, PIECE_BYTES)
    mtime_ns = path.stat().st_mtime_ns
    if in_bin is not None:
        found = tuple(Tensor(*entry) for entry in in_bin)
        return Shard(path, target, size_bytes, mtime_ns, {"format": "pt"}, found)
    if read_at(8, 1) != b"{":
        raise damaged(str(path), "it is no safetensors file", "不是 safetensors 文件")
    raw = header_text(read_at, size_bytes, name=str(path))
    tensors, at = [], 8 + len(raw)
    for tensor in parse_header(raw, size_bytes, name=str(path)):
        tensors.append(Tensor(tensor.name, tensor.dtype, tensor.shape, at, tensor.n_bytes))
        at += tensor.n_bytes
    try:
        metadata = msgspec.json.decode(raw, type=_Head).metadata
    except msgspec.MsgspecError as error:
        raise damaged(
            str(path), f"its notes are wrong ({error})", f"附注有误（{error}）"
        ) from error
    return Shard(path, target, size_bytes, mtime_ns, metadata, tuple(tensors))


def _refuse_without_bf16(label: str, shards: Sequence[Shard]) -> None:
    types = sorted({tensor.dtype for shard in shards for tensor in shard.tensors})
    if "BF16" in types:
        return
    kinds = ", ".join(types) or "—"
    raise AppError(
        Text(
            f"{shown(label)} has no BF16 weights (it has {kinds}): there is nothing to convert.",
            f"{shown(label)} 没有 BF16 权重（现有 {kinds}），无需转换。",
        ),
        Text("Use it as it is.", "直接使用即可。"),
    )


def _not_here(reference: str) -> AppError:
    name = shown(reference)
    return AppError(
        Text(f"{name} is not on this machine.", f"{name} 不在本机上。"),
        Text("Download it first, then give its folder.", "请先下载，再指定其所在目录。"),
    )
