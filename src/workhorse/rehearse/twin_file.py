"""Writes a twin: the model's metadata and tokenizer, fewer layers, random valid weights."""

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from workhorse.errors import AppError
from workhorse.knowledge.quants import quant
from workhorse.models.header import DEFAULT_ALIGNMENT_BYTES, NUMBERS
from workhorse.models.part_file import local_errors
from workhorse.rehearse.blocks import fill, packed
from workhorse.rehearse.source import Key, Part, metadata, tensor_entry
from workhorse.rehearse.twin import Twin, TwinTensor
from workhorse.text import Text

HEADER_START = b"GGUF\x03\x00\x00\x00"
OnWritten = Callable[[int], None]

# What an all-ones or all-zeros tensor is called (gguf-py, constants.py of llama.cpp 0c1e57098):
# norms and output scales, factors of rotary embeddings, biases, sinks, decays (-exp(A), F32).
ONES = ("norm.weight", "norm", ".scale", "_scale.weight", "rope_freqs.weight", "ssm_d")
ONES_INSIDE = ("rope_factors",)
ZEROS = (".bias", "attn_sinks.weight")
MINUS_ONES = ("ssm_a",)
# What a layer adds to the stream is small, or the last token drowns and one word repeats for ever.
ADDS_TO_STREAM = ("attn_output.weight", "ffn_down", "ssm_out.weight", "time_mix_output.weight")

# Logits as trained models have them. llama.cpp sorts the best ones through buckets from -10 to 10:
# with a deviation of 24 a third of 49,152 tokens lay above, and sorting them cost 2 of 13 ms a
# token (135M model, 2026-11).
LOGITS_DEVIATION = 2.0

# The keys of a split model: a twin is one file.
_OF_PARTS = "split."


def write_twin(
    part: Part, twin: Twin, architecture: str, model_layers: int, path: Path, tell: OnWritten
) -> None:
    """Write the twin of the model whose first part is `part` to `path`.

    `model_layers` is the model's count as its header has it. Holds a few MiB beside the header
    in memory; `tell` gets the bytes written so far. The same twin is written with the same bytes
    every time. AppError when the disk does not take it or the header cannot be changed.
    """
    keys = twin_keys(metadata(part), twin, architecture, model_layers)
    alignment = part.header.values.get("general.alignment", DEFAULT_ALIGNMENT_BYTES)
    alignment_bytes = int(alignment) if isinstance(alignment, int) else DEFAULT_ALIGNMENT_BYTES
    written = 0
    with local_errors(path), path.open("wb") as file:
        for piece in pieces(keys, twin.tensors, alignment_bytes, len(twin.layers)):
            file.write(piece)
            written += len(piece)
            tell(written)


def pieces(
    keys: Sequence[Key], tensors: Sequence[TwinTensor], alignment_bytes: int, layers: int
) -> Iterator[bytes]:
    """The file's bytes in order, in pieces of bounded size."""
    start = bytearray(HEADER_START)
    start += len(tensors).to_bytes(8, "little") + len(keys).to_bytes(8, "little")
    for key in keys:
        start += key.raw
    offset = 0
    for tensor in tensors:
        kind = quant(tensor.type)
        start += tensor_entry(tensor.name, tensor.shape, kind.id, offset)
        offset += padded(tensor.n_bytes, alignment_bytes)
    start += bytes(padded(len(start), alignment_bytes) - len(start))
    yield bytes(start)
    tied = all(tensor.name != "output.weight" for tensor in tensors)
    for tensor in tensors:
        yield from weights(tensor, layers, tied=tied)
        if gap := padded(tensor.n_bytes, alignment_bytes) - tensor.n_bytes:
            yield bytes(gap)


def padded(n_bytes: int, alignment_bytes: int) -> int:
    """The next multiple of the alignment."""
    return -(-n_bytes // alignment_bytes) * alignment_bytes


def weights(tensor: TwinTensor, layers: int, *, tied: bool) -> Iterator[bytes]:
    """The tensor's data: ones, zeros, or random blocks that begin at a place of their own."""
    value = constant(tensor)
    if value is not None:
        form = {"f32": "f", "f16": "e"}[tensor.type]
        yield packed(form, [value]) * (tensor.n_bytes // len(packed(form, [value])))
        return
    size = deviation(tensor, layers, tied=tied)
    # Rows of copies of one pool must not meet their like at the same place in every tensor.
    start = random.Random(tensor.name).randrange(2**31)  # noqa: S311 repeatable noise
    yield from fill(tensor.type, size, tensor.n_bytes, start)


def constant(tensor: TwinTensor) -> float | None:
    """The one value of a tensor that must not be random; None for weights."""
    if tensor.type not in ("f32", "f16"):
        return None
    name = tensor.name
    if name.endswith(MINUS_ONES):
        return -1.0
    if name.endswith(ZEROS):
        return 0.0
    if name.endswith(ONES) or any(part in name for part in ONES_INSIDE):
        return 1.0
    return None


def deviation(tensor: TwinTensor, layers: int, *, tied: bool) -> float:
    """The standard deviation of a tensor's weights: a product keeps the size of its input.

    `tied`: the embedding is the output head too.
    """
    size = float(tensor.shape[0] ** -0.5)
    if tensor.name == "output.weight" or (tied and tensor.name == "token_embd.weight"):
        return LOGITS_DEVIATION * size
    if tensor.name == "token_embd.weight":
        return 1.0
    if any(part in tensor.name for part in ADDS_TO_STREAM):
        return size * float((2 * layers) ** -0.5)
    return size


def twin_keys(
    keys: Sequence[Key], twin: Twin, architecture: str, model_layers: int
) -> tuple[Key, ...]:
    """The model's metadata with the number of layers changed, and lists with one entry a layer
    cut; prediction layers and the numbers of parts are gone."""
    changed = []
    for key in keys:
        if key.name.startswith(_OF_PARTS):
            continue
        if key.name == f"{architecture}.block_count":
            key = with_number(key, len(twin.layers))
        elif key.name == f"{architecture}.nextn_predict_layers":
            key = with_number(key, 0)
        elif key.name == f"{architecture}.attention.shared_kv_layers":
            key = shared_layers(key, twin, model_layers)
        elif key.name.startswith(f"{architecture}.") and key.entries == model_layers:
            key = key.with_entries(twin.layers)
        changed.append(key)
    return tuple(changed)


def with_number(key: Key, value: int) -> Key:
    """The key with another number; AppError when it holds none."""
    if key.kind not in NUMBERS:
        raise AppError(
            Text(f"{key.name} is not a number.", f"{key.name} 不是数字。"),
            Text("Use another file of the model.", "请换用该模型的其他文件。"),
        )
    return key.with_number(value)


def shared_layers(key: Key, twin: Twin, model_layers: int) -> Key:
    """How many of the twin's last layers share the KV of others: those that the model's did."""
    if key.kind not in NUMBERS:
        return key
    own = model_layers - key.number
    return key.with_number(sum(source >= own for source in twin.layers))
