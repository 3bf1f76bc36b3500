"""Reads what a model is from the header of its GGUF file or files."""

import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from workhorse.errors import AppError
from workhorse.knowledge.architectures import architecture, known_architecture
from workhorse.models.attention import Shape, layer_attention
from workhorse.models.cursor import ReadAt
from workhorse.models.header import TENSORS_MAX, Header, read_header
from workhorse.models.metadata import Metadata
from workhorse.models.parts import check_parts, part_paths, plain_name
from workhorse.models.recurrence import layer_states
from workhorse.models.refusals import damaged, shown, unsupported
from workhorse.records import Model, Tensor
from workhorse.text import Text

# LLAMA_MAX_LAYERS, src/llama-hparams.h of llama.cpp, commit 0c1e57098, 2026-10-01.
LAYERS_MAX = 512

# LLAMA_POOLING_TYPE_NONE and _UNSPECIFIED (-1, which the engine's own saver writes).
NO_POOLING = (None, 0, 2**32 - 1)
# LLAMA_POOLING_TYPE_RANK: a head that scores (include/llama.h of llama.cpp, 2026-11).
POOLING_THAT_RANKS = 4

# What `general.type` says of files that belong beside a model (gguf-py, constants.py, 2026-10).
COMPANIONS = {
    "adapter": Text("an adapter (LoRA)", "适配器（LoRA）"),
    "imatrix": Text("an importance matrix for quantising", "量化用的重要性矩阵"),
    "mmproj": Text("the image or audio part of a model", "模型的图像或音频部分"),
}


def read_gguf(path: Path) -> Model:
    """What the model at `path` is, from its header alone: no weights are read.

    `path` may be any part of a split model (`NAME-00001-of-00003.gguf`): all parts are read,
    `Model.path` is the first and `file_bytes` their sum. Tensor offsets count from the beginning
    of the part that holds them. Raises AppError for a file that is missing, unreadable, foreign,
    cut off, damaged or hostile; takes less than 100 MB of memory and about a second at worst.
    """
    header = _read_file(path)
    paths = part_paths(path, header)
    headers: list[Header] = []
    for part in paths:
        headers.append(header if part == path else _read_file(part))
        if sum(len(read.tensors) for read in headers) > TENSORS_MAX:
            raise damaged(header.name, "its parts have too many tensors", "各分卷的张量过多")
    if len(headers) > 1:
        check_parts(headers)
    return describe(headers, paths[0])


def describe(headers: Sequence[Header], path: Path) -> Model:
    """The Model that the headers of its parts describe; the first one has the metadata."""
    meta = Metadata(headers[0])
    tensors = tuple(tensor for header in headers for tensor in header.tensors)
    _check_is_language_model(meta, tensors)
    layers = meta.needed_count("{arch}.block_count")
    if layers > LAYERS_MAX:
        raise damaged(meta.name, f"it claims {layers} layers", f"声称有 {layers} 层")
    embedding_size = meta.needed_count("{arch}.embedding_length")
    heads = meta.counts("{arch}.attention.head_count", layers) or (0,) * layers
    pooling = meta.count("{arch}.pooling_type")
    shape = Shape(layers, embedding_size, heads)
    attention, draft_attention = layer_attention(meta, shape, tensors)
    return Model(
        path=_printable(path),
        name=shown(meta.text("general.name") or "") or shown(plain_name(path)),
        format="gguf",
        architecture=shown(meta.architecture),
        file_bytes=sum(header.size_bytes for header in headers),
        tensors=tensors,
        attention=attention,
        layers=layers,
        embedding_size=embedding_size,
        heads=max(heads),
        vocabulary=_vocabulary(meta, tensors),
        context_trained_tokens=meta.count("{arch}.context_length") or None,
        experts=meta.count("{arch}.expert_count") or 0,
        experts_used=max(meta.counts("{arch}.expert_used_count", layers) or (0,)),
        quantisation=_quantisation(tensors),
        chat_template=meta.text("tokenizer.chat_template"),
        pooling=pooling not in NO_POOLING or architecture(meta.architecture).embeds,
        licence=_licence(meta),
        recurrent=layer_states(meta, layers, embedding_size, heads),
        known=known_architecture(meta.architecture),
        draft_layers=shape.draft_layers(meta),
        draft_attention=draft_attention,
        ranks=pooling == POOLING_THAT_RANKS,
    )


@contextmanager
def _opened(path: Path) -> Iterator[tuple[ReadAt, int]]:
    """Positioned reads of a regular file, and its size."""
    try:
        # Without O_NONBLOCK a named pipe would hold us until somebody writes into it.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise _not_a_file(path, status.st_mode)
        yield lambda offset, size: os.pread(handle, size, offset), status.st_size
    except OSError as error:
        raise _unreadable(path, error) from error
    finally:
        os.close(handle)


def _read_file(path: Path) -> Header:
    with _opened(path) as (read_at, size_bytes):
        return read_header(read_at, size_bytes, name=str(path))


def read_header_of(path: Path) -> Header:
    """The header of one GGUF file, of whatever kind; AppError as `read_gguf` raises."""
    return _read_file(path)


def _unreadable(path: Path, error: OSError | ValueError) -> AppError:
    why = (error.strerror if isinstance(error, OSError) else None) or str(error)
    if isinstance(error, FileNotFoundError):
        step = Text("Check the path.", "请检查路径。")
    elif isinstance(error, PermissionError):
        step = Text(
            f"Make it readable for this user: chmod a+r {shown(str(path))}",
            f"请为当前用户授予读取权限：chmod a+r {shown(str(path))}",
        )
    else:
        step = Text("Check the path and the disk.", "请检查路径和磁盘。")
    return AppError(
        Text(
            f"The model {shown(str(path))} cannot be read: {why}.",
            f"无法读取模型 {shown(str(path))}：{why}。",
        ),
        step,
    )


def _not_a_file(path: Path, mode: int) -> AppError:
    folder = stat.S_ISDIR(mode)
    return AppError(
        Text(
            f"{shown(str(path))} is {'a directory' if folder else 'not a regular file'}.",
            f"{shown(str(path))} {'是一个目录' if folder else '不是普通文件'}。",
        ),
        Text("Give the path of one .gguf file.", "请指定一个 .gguf 文件的路径。"),
    )


def _printable(path: Path) -> str:
    """The path as text; records are JSON, which has no room for bytes that are not UTF-8."""
    text = str(path)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise AppError(
            Text(
                f"The name of the model file is not UTF-8: {shown(text)}.",
                f"模型文件名不是 UTF-8 编码：{shown(text)}。",
            ),
            Text("Rename the file.", "请重命名该文件。"),
        ) from error
    return text


def _check_is_language_model(meta: Metadata, tensors: tuple[Tensor, ...]) -> None:
    step = Text("Give the path of the language model.", "请指定语言模型文件的路径。")
    kind = meta.text("general.type") or ("mmproj" if meta.architecture == "clip" else "")
    if kind in COMPANIONS:
        what = COMPANIONS[kind]
        raise unsupported(meta.name, f"it is {what.en}, not a model", f"它是{what.zh}", step)
    if not tensors:
        raise unsupported(meta.name, "it holds no weights", "其中没有权重", step)


def _vocabulary(meta: Metadata, tensors: tuple[Tensor, ...]) -> int:
    tokens = meta.entries("tokenizer.ggml.tokens") or meta.count("{arch}.vocab_size")
    embedding = next((t for t in tensors if t.name == "token_embd.weight"), None)
    if not tokens and embedding is not None and len(embedding.shape) > 1:
        tokens = embedding.shape[1]
    if not tokens:
        raise damaged(meta.name, "it has no vocabulary", "没有词表")
    return tokens


def _quantisation(tensors: tuple[Tensor, ...]) -> str:
    """The type that most weight bytes have; `general.file_type` is what a converter was told."""
    weights: Counter[str] = Counter()
    for tensor in tensors:
        weights[tensor.type] += tensor.n_bytes
    return weights.most_common(1)[0][0]


def _licence(meta: Metadata) -> str | None:
    licence = meta.text("general.license")
    return shown(licence) if licence else None
