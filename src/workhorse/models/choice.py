"""Chooses which file of a repository or directory is the model that was asked for."""

import re
from collections.abc import Iterable, Mapping

from workhorse.errors import AppError
from workhorse.models.hub import no_such_file
from workhorse.models.parts import PART_NAME
from workhorse.models.refusals import shown
from workhorse.text import Text
from workhorse.units import show_bytes

LISTED_MAX = 12
# Taken when the user names none: four bits and better than the plain types (llama.cpp's own
# `-hf` takes Q4_K_M too, common/arg.cpp, 2026-10).
USUAL = ("Q4_K_M", "UD-Q4_K_XL", "Q4_K_S", "IQ4_XS", "Q4_0", "MXFP4", "Q5_K_M", "Q8_0")
# Files beside a model; `mtp-` first is llama.cpp's draft head, elsewhere in a name a whole model.
_COMPANION = re.compile(
    r"(^|[-._])(mmproj|imatrix)([-._]|$)|^(mtp|draft|lora|ggml-vocab)[-._]", re.IGNORECASE
)


def choose(listing: Mapping[str, int | None], wanted: str | None, label: str) -> str | None:
    """The GGUF file (of a split model its first part) to read; None: there is only a checkpoint.

    `wanted` is a file's name or a quantisation. AppError when it is not there, or when several
    files could be meant and none is usual.
    """
    if wanted is not None and wanted in listing:
        return wanted
    models = gguf_models(listing)
    if wanted is not None and wanted.lower().endswith((".gguf", ".safetensors", ".json")):
        raise no_such_file(label, wanted, list(listing))
    if wanted is not None:
        if not models:
            return None  # of a checkpoint any quantisation can be made
        found = [name for name in models if _names(models[name][0], wanted)]
        if not found:
            raise _which(label, models, wanted)
        return models[min(found, key=lambda name: (len(name), name))][0]
    if len(models) <= 1:
        return next(iter(models.values()))[0] if models else None
    for usual in USUAL:
        found = [name for name in models if _names(models[name][0], usual)]
        if found:
            return models[min(found, key=lambda name: (len(name), name))][0]
    raise _which(label, models, None)


def gguf_models(listing: Mapping[str, int | None]) -> dict[str, tuple[str, int | None]]:
    """Model name -> its first file and its bytes in all parts."""
    models: dict[str, tuple[str, int | None]] = {}
    for name in sorted(listing):
        folder, _, last = name.rpartition("/")
        if not last.lower().endswith(".gguf") or _COMPANION.search(last):
            continue
        match = PART_NAME.fullmatch(last)
        stem = f"{folder}/{match['stem'] if match else last[:-5]}"
        first, size = models.get(stem, (name, 0))
        more = listing[name]
        models[stem] = (first, None if size is None or more is None else size + more)
    return models


def _names(file: str, quantisation: str) -> bool:
    """True when the file's name says that it has this quantisation."""
    word = re.escape(quantisation)
    # No `_` behind it: Q4_0 is not Q4_0_4_4.
    return re.search(rf"(^|[-._/]){word}([-./]|$)", file, re.IGNORECASE) is not None


def _which(
    label: str, models: Mapping[str, tuple[str, int | None]], wanted: str | None
) -> AppError:
    listed = _listed(f"{first} ({show_bytes(size)})" for first, size in models.values())
    if wanted is None:
        what = Text(
            f"{label} has {len(models)} models: {listed}.",
            f"{label} 中有 {len(models)} 个模型：{listed}。",
        )
    else:
        what = Text(
            f"{label} has no {shown(wanted)}; it has {listed}.",
            f"{label} 中没有 {shown(wanted)}；现有 {listed}。",
        )
    return AppError(
        what,
        Text(
            f"Name one behind a colon: {label}:FILE, or its quantisation.",
            f"请用冒号指定其一：{label}:文件名，或其量化类型。",
        ),
    )


def _listed(names: Iterable[str]) -> str:
    words = [shown(name) for name in names]
    return ", ".join(words[:LISTED_MAX]) + (" …" if len(words) > LISTED_MAX else "")
