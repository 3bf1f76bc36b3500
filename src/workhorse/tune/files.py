"""Other files of the model that is tuned: read, found to be the same model, and what they lose."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from workhorse.errors import EXIT_USAGE, AppError
from workhorse.models.gguf import read_gguf
from workhorse.models.quantize.quality_store import QualityStore, fingerprint
from workhorse.records import Model
from workhorse.text import Text

# What quantising leaves as it is: where one of these differs it is another model.
SAME = ("architecture", "layers", "embedding_size", "heads", "vocabulary", "experts", "pooling")


def other_files(paths: Sequence[Path], start: Model) -> tuple[Model, ...]:
    """The files as what `start` may be exchanged for, its own among them left out.

    AppError for a file that cannot be read, that is another model, or when none is left.
    """
    own = Path(start.path).absolute()
    wanted = [path for path in dict.fromkeys(path.absolute() for path in paths) if path != own]
    if not wanted:
        raise AppError(
            Text(
                f"{own.name} is the file that is tuned already.", f"{own.name} 就是正在调优的文件。"
            ),
            Text("Name other quants of the model with --files.", "请用 --files 指定其他量化文件。"),
            exit_code=EXIT_USAGE,
        )
    return tuple(file_like(path, start) for path in wanted)


def file_like(path: Path, start: Model) -> Model:
    """The file with what is loaded beside the start's; AppError where it is another model."""
    found = read_gguf(path)
    differs = next((name for name in SAME if getattr(found, name) != getattr(start, name)), None)
    if differs is not None:
        here, there = getattr(found, differs), getattr(start, differs)
        name = differs.replace("_", " ")
        raise AppError(
            Text(
                f"{path} is another model: {name} {here}, not {there}.",
                f"{path} 是另一个模型：{name} 为 {here}，而非 {there}。",
            ),
            Text(
                "Name files of the same model that differ in their quantisation alone.",
                "请指定同一模型、仅量化方式不同的文件。",
            ),
            exit_code=EXIT_USAGE,
        )
    return replace(found, projector=start.projector)


def known_divergences(
    files: Sequence[Model], start: Model, store: QualityStore
) -> tuple[tuple[str, float], ...]:
    """Path and KL divergence of those that were compared with the start's very file before.

    A store or a file that cannot be read costs nothing: then the tuning measures it.
    """
    try:
        parent = fingerprint(Path(start.path))
        found = [(model.path, store.of_file(Path(model.path))) for model in files]
    except (OSError, AppError):
        return ()
    return tuple(
        (path, quality.kl_mean)
        for path, quality in found
        if quality is not None and quality.parent_fingerprint == parent
    )
