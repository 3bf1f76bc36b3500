"""Reads what a projector is: the file beside a model that turns images or sound into embeddings."""

from collections.abc import Sequence
from pathlib import Path

from workhorse.models.header import Header
from workhorse.models.metadata import Metadata
from workhorse.models.refusals import shown, unsupported
from workhorse.records import Projector
from workhorse.text import Text


def describe_projector(headers: Sequence[Header], path: Path) -> Projector:
    """The projector that the header of `mmproj-….gguf` describes; AppError for another file.

    Keys as clip.cpp of llama.cpp reads them (tools/mtmd/clip-impl.h, commit 0c1e57098, 2026-10-01).
    """
    meta = Metadata(headers[0])
    if meta.text("general.type") != "mmproj" and meta.architecture != "clip":
        raise unsupported(
            meta.name,
            "it is not the image or audio part of a model",
            "它不是模型的图像或音频部分",
            Text("Give the mmproj file of the model.", "请指定该模型的 mmproj 文件。"),
        )
    kind = "vision" if meta.count("clip.vision.embedding_length") else "audio"
    return Projector(
        path=str(path),
        name=shown(meta.text("general.name") or "") or shown(path.stem),
        weight_bytes=sum(tensor.n_bytes for header in headers for tensor in header.tensors),
        image_size=meta.count("clip.vision.image_size") or None,
        patch_size=meta.count("clip.vision.patch_size") or None,
        embedding_size=meta.count(f"clip.{kind}.embedding_length") or None,
        feed_forward_size=meta.count(f"clip.{kind}.feed_forward_length") or None,
        heads=meta.count(f"clip.{kind}.attention.head_count") or None,
    )
