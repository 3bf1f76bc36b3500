"""Reads what a projector is: the file beside a model that turns images or sound into embeddings."""

import re
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

from workhorse.models.gguf import read_header_of
from workhorse.models.header import Header
from workhorse.models.metadata import Metadata
from workhorse.models.refusals import shown, unsupported
from workhorse.records import Model, Projector
from workhorse.text import Text

# Where several lie beside a model and their names differ in their type alone: F16 is what the
# engine computes in, and half the size of F32.
_TYPES = ("f16", "bf16", "q8_0", "f32")
_TYPE = re.compile(rf"[-._]?({'|'.join(_TYPES)})(?=[-._]|$)", re.IGNORECASE)


WIDTHS_MAX = 256  # no real one has as many
FILES_MAX = 20_000  # of a folder that are looked at


def read_projector(path: Path) -> Projector:
    """The projector in a file, from its header alone; AppError for any other file."""
    return describe_projector([read_header_of(path)], path)


def projectors_beside(model: Path) -> list[Path]:
    """The `mmproj….gguf` files in the model's folder, by name; none of one that cannot be read."""
    try:
        listed = islice(model.parent.iterdir(), FILES_MAX)
        files = [path for path in listed if is_projector_name(path.name)]
    except OSError:
        return []
    return sorted(path for path in files if path.is_file())


def is_projector_name(name: str) -> bool:
    """Whether files are called so that are a model's projector."""
    return name.lower().startswith("mmproj") and name.lower().endswith(".gguf")


def chosen_projector(paths: Iterable[Path]) -> Path | None:
    """The only one, or the F16 one of several of the same name; None: it cannot be told."""
    paths = list(paths)
    if len({_TYPE.sub("", path.stem.lower()) for path in paths}) != 1:
        return None
    return min(paths, key=_place_of_type)


def fits(projector: Projector, model: Model) -> bool:
    """False when it was surely made for a model of another width."""
    return not projector.widths or model.embedding_size in projector.widths


def _widths(headers: Sequence[Header], told: int | None) -> tuple[int, ...]:
    """The sizes that its last matrix may have: `projection_dim` is wrong in older files."""
    found = {told} if told else set()
    last = [t for header in headers for t in header.tensors if t.name.startswith("mm.")]
    if not last:  # a projector of another kind: its names say nothing
        return ()
    for tensor in last:
        found.update(tensor.shape)
    return tuple(sorted(found)[:WIDTHS_MAX])


def _place_of_type(path: Path) -> int:
    found = _TYPE.search(path.stem)
    return _TYPES.index(found[1].lower()) if found else len(_TYPES)


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
    sound = meta.count("clip.audio.embedding_length")
    return Projector(
        path=str(path),
        name=shown(meta.text("general.name") or "") or shown(path.stem),
        weight_bytes=sum(tensor.n_bytes for header in headers for tensor in header.tensors),
        image_size=meta.count("clip.vision.image_size") or None,
        patch_size=meta.count("clip.vision.patch_size") or None,
        embedding_size=meta.count(f"clip.{kind}.embedding_length") or None,
        feed_forward_size=meta.count(f"clip.{kind}.feed_forward_length") or None,
        heads=meta.count(f"clip.{kind}.attention.head_count") or None,
        images=kind == "vision",
        sound=bool(sound),
        widths=_widths(headers, meta.count(f"clip.{kind}.projection_dim")),
    )
