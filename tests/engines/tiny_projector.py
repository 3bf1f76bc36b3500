"""A projector that any llama.cpp loads beside the tiny model, and an image to look at."""

import struct
import zlib
from pathlib import Path

from tiny_checkpoint import WIDTH as TEXT_WIDTH

IMAGE, PATCH, WIDTH, HEADS, FEED, LAYERS = 28, 14, 32, 2, 64, 2


def write_projector(path: Path, text_width: int = TEXT_WIDTH) -> Path:
    """A CLIP of two layers with random weights and LLaVA's projection; the file."""
    import gguf
    import numpy

    writer = gguf.GGUFWriter(path, "clip")
    writer.add_string("general.type", "mmproj")
    writer.add_name("tiny eyes")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", "mlp")
    writer.add_bool("clip.use_gelu", True)
    for key, value in (
        ("image_size", IMAGE),
        ("patch_size", PATCH),
        ("embedding_length", WIDTH),
        ("feed_forward_length", FEED),
        ("block_count", LAYERS),
        ("projection_dim", text_width),
        ("attention.head_count", HEADS),
    ):
        writer.add_uint32(f"clip.vision.{key}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-5)
    writer.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
    writer.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])
    chance = numpy.random.default_rng(13)

    def add(name: str, *shape: int) -> None:
        numbers = chance.normal(0, 0.2, shape).astype(numpy.float32)
        writer.add_tensor(name, numbers)

    patches = (IMAGE // PATCH) ** 2
    add("v.patch_embd.weight", WIDTH, 3, PATCH, PATCH)
    add("v.position_embd.weight", patches, WIDTH)
    for layer in range(LAYERS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            add(f"v.blk.{layer}.{name}.weight", WIDTH, WIDTH)
            add(f"v.blk.{layer}.{name}.bias", WIDTH)
        for name in ("ln1", "ln2"):
            add(f"v.blk.{layer}.{name}.weight", WIDTH)
            add(f"v.blk.{layer}.{name}.bias", WIDTH)
        add(f"v.blk.{layer}.ffn_up.weight", FEED, WIDTH)
        add(f"v.blk.{layer}.ffn_up.bias", FEED)
        add(f"v.blk.{layer}.ffn_down.weight", WIDTH, FEED)
        add(f"v.blk.{layer}.ffn_down.bias", WIDTH)
    add("mm.0.weight", text_width, WIDTH)
    add("mm.0.bias", text_width)
    add("mm.2.weight", text_width, text_width)
    add("mm.2.bias", text_width)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def png(red: int, green: int, blue: int, side: int = IMAGE) -> bytes:
    """A square of one colour."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    rows = (b"\0" + bytes((red, green, blue)) * side) * side
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )
