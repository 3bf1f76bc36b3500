"""A Qwen3-shaped GGUF file of nine layers, the same on every machine, and an importance matrix.

No training, no vocabulary: enough for a quantiser. What llama.cpp's own llama-quantize (0c1e57098)
made of it is in `quantised_reference.json`.
"""

import hashlib
import struct
from pathlib import Path

import gguf
import numpy as np

LAYERS, WIDTH, HEADS, KV_HEADS, FEED = 9, 256, 4, 1, 256
SHAPES = {
    "attn_q": (WIDTH, WIDTH),
    "attn_k": (WIDTH // HEADS, WIDTH),
    "attn_v": (WIDTH // HEADS, WIDTH),
    "attn_output": (WIDTH, WIDTH),
    "ffn_gate": (FEED, WIDTH),
    "ffn_up": (FEED, WIDTH),
    "ffn_down": (WIDTH, FEED),
}


class Dice:
    """Numbers that are the same in every version of NumPy."""

    def __init__(self, seed: int) -> None:
        self._bits = np.random.PCG64(seed)

    def values(self, shape: tuple[int, ...]) -> "np.ndarray[tuple[int, ...], np.dtype[np.float32]]":
        """Three uniform numbers added up, 0.03 wide."""
        raw = self._bits.random_raw(int(np.prod(shape)))
        parts = [((raw >> np.uint64(16 * i)) & np.uint64(0xFFFF)) for i in range(3)]
        total = sum(part.astype(np.float64) for part in parts)
        return ((total / 65536 - 1.5) * 0.06).astype(np.float32).reshape(shape)


def write_model(path: Path) -> Path:
    dice = Dice(3)
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_block_count(LAYERS)
    writer.add_context_length(512)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FEED)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(300)
    writer.add_file_type(1)
    writer.add_tensor("token_embd.weight", dice.values((300, WIDTH)).astype(np.float16))
    writer.add_tensor("output.weight", dice.values((300, WIDTH)).astype(np.float16))
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    for layer in range(LAYERS):
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{norm}.weight", np.ones(WIDTH, np.float32))
        for name, shape in SHAPES.items():
            values = dice.values(shape)
            place = f"blk.{layer}.{name}.weight"
            if name == "attn_q":  # one of BF16 in each layer
                raw = (values.view(np.uint32) >> 16).astype(np.uint16)
                writer.add_tensor(
                    place, raw.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16
                )
            else:
                writer.add_tensor(place, values.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_importance(path: Path) -> Path:
    dice = Dice(5)
    writer = gguf.GGUFWriter(path, "")
    writer.kv_data[0].clear()  # an importance matrix names no architecture
    writer.add_type("imatrix")
    writer.add_array("imatrix.datasets", ["dice"])
    writer.add_uint32("imatrix.chunk_count", 4)
    writer.add_uint32("imatrix.chunk_size", 512)
    for layer in range(LAYERS):
        for name, shape in SHAPES.items():
            sums = np.abs(dice.values((1, shape[1]))) * np.float32(1000)
            place = f"blk.{layer}.{name}.weight"
            writer.add_tensor(place + ".in_sum2", sums)
            writer.add_tensor(place + ".counts", np.full((1, 1), 2048, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tensor_digest(path: Path) -> str:
    """One hash of every tensor's name, type, shape and bytes, in the file's order."""
    digest = hashlib.sha256()
    for tensor in gguf.GGUFReader(path).tensors:
        digest.update(struct.pack("<I", int(tensor.tensor_type)))
        digest.update(tensor.name.encode() + str(list(tensor.shape)).encode())
        digest.update(tensor.data.tobytes())
    return digest.hexdigest()
