"""Writes small BF16 checkpoints and reads converted ones; shares no code with the product."""

import json
import math
import random
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

Stored = tuple[str, list[int], bytes]  # type, shape, bytes


def bf16(value: float) -> int:
    """The code of a value that BF16 holds exactly."""
    code = struct.unpack("<I", struct.pack("<f", value))[0]
    assert code & 0xFFFF == 0, value
    return code >> 16


def value_of(code: int) -> float:
    """What a BF16 code means."""
    return float(struct.unpack("<f", struct.pack("<I", code << 16))[0])


def reference(code: int) -> int | None:
    """The FP16 code of a BF16 code, by Python's own rounding (struct's `e`); None: not a number."""
    value = value_of(code)
    if math.isnan(value):
        return None
    try:
        return int.from_bytes(struct.pack("<e", value), "little")
    except OverflowError:
        return 0xFC00 if value < 0 else 0x7C00


def packed(codes: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(codes)}H", *codes)


def unpacked(data: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(data) // 2}H", data))


def weights(count: int, seed: int = 0) -> list[int]:
    """Codes such as a model has: normal, 0.02 wide, some zeros among them."""
    dice = random.Random(seed)
    wide = [dice.gauss(0, 0.02) for _ in range(min(count, 4096))] + [0.0]
    codes = [struct.unpack("<I", struct.pack("<f", value))[0] >> 16 for value in wide]
    return (codes * (count // len(codes) + 1))[:count]


def safetensors_file(
    tensors: Mapping[str, Stored], notes: Mapping[str, str] | None = None
) -> bytes:
    head: dict[str, object] = {"__metadata__": notes or {"format": "pt"}}
    data = b""
    for name, (dtype, shape, raw) in tensors.items():
        place = [len(data), len(data) + len(raw)]
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": place}
        data += raw
    header = json.dumps(head).encode()
    return struct.pack("<Q", len(header)) + header + data


def read_file(path: Path) -> dict[str, Stored]:
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    data = raw[8 + length :]
    head = json.loads(raw[8 : 8 + length])
    return {
        name: (entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])])
        for name, entry in head.items()
        if name != "__metadata__"
    }


def bf16_tensor(codes: Sequence[int]) -> Stored:
    return "BF16", [len(codes)], packed(codes)


CONFIG = {
    "architectures": ["Gemma3ForCausalLM"],
    "torch_dtype": "bfloat16",
    "text_config": {"dtype": "bfloat16", "rms_norm_eps": 1e-06},
    "num_hidden_layers": 2,
}


def write_checkpoint(
    folder: Path, shards: Sequence[Mapping[str, Stored]], config: Mapping[str, object] = CONFIG
) -> Path:
    """A checkpoint of one file, or of several with their index; a tokenizer and more beside it."""
    folder.mkdir(parents=True)
    count = len(shards)
    names = [
        "model.safetensors" if count == 1 else f"model-{i:05d}-of-{count:05d}.safetensors"
        for i in range(1, count + 1)
    ]
    for name, tensors in zip(names, shards, strict=True):
        (folder / name).write_bytes(safetensors_file(tensors))
    if count > 1:
        where = {t: name for name, shard in zip(names, shards, strict=True) for t in shard}
        index = {"metadata": {"total_size": 1}, "weight_map": where}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text('{"version": "1.0", "词": 1}')
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"word_embedding_dimension": 8}')
    return folder


def two_shards(values: int = 40_000) -> list[dict[str, Stored]]:
    return [
        {
            "a.weight": bf16_tensor(weights(values, 1)),
            "a.norm": ("F32", [2], struct.pack("<2f", 1, 2)),
        },
        {"b.weight": bf16_tensor(weights(values, 2)), "b.ids": ("I64", [1], struct.pack("<q", -7))},
    ]
