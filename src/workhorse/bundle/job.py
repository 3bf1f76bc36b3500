"""Making, checking and installing a bundle on one screen each."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from workhorse import __version__
from workhorse.bundle.archive import compare_tar, piece_name, unpack_tar, write_tar
from workhorse.bundle.assemble import assemble, manifest_of, refuse_taken
from workhorse.bundle.carried.check import Difference, compare_folder
from workhorse.bundle.carried.files import alone, told_of_disk
from workhorse.bundle.carried.install import Installed, install
from workhorse.bundle.carried.manifest import Manifest, read_manifest
from workhorse.bundle.carried.words import Refusal, Words
from workhorse.bundle.order import Order
from workhorse.bundle.own_wheel import write_own_wheel
from workhorse.bundle.sources import (
    Source,
    engine_sources,
    library_source,
    model_source,
    script_source,
    wheel_source,
)
from workhorse.bundle.wheels import bring_wheels, describe_own, read_lock
from workhorse.config import Places
from workhorse.engines.supply.builds import Build
from workhorse.errors import AppError
from workhorse.models.embedded import embedded_model
from workhorse.models.fetch import Progress
from workhorse.text import Text


class Tell(Protocol):
    """Who tells the user how far we are."""

    def stage(self, words: Text) -> None:
        """The next stage begins."""

    def progress(self, done: int, total: int | None) -> None:
        """Bytes of this stage."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user asked for."""

    order: Order
    build: Build | None  # None: the embedded engine alone
    models: tuple[Path, ...]  # beside the default model
    output: Path  # a folder, or a file whose name ends in .tar
    piece_bytes: int | None = None
    extras: tuple[str, ...] = ()  # of `wheels.EXTRAS`


@dataclass(frozen=True, slots=True)
class Made:
    """The bundle that was written."""

    paths: tuple[Path, ...]  # the folder, the tar or its pieces
    manifest: Manifest


def create(wish: Wish, where: Places, tell: Tell) -> Made:
    """Bring everything together and write it; raises AppError."""
    first = piece_name(wish.output, 1) if wish.piece_bytes else wish.output
    refuse_taken(first)
    store = where.data / "bundles"
    with app_errors(), told_of_disk(store), alone(store / "making"):
        tell.stage(Text("fetching packages", "获取软件包"))
        wheels = bring_wheels(wish.order, read_lock(wish.extras), store / "wheels", tell.progress)
        tell.stage(Text("fetching the model", "获取模型"))
        default = embedded_model(where.data, tell.progress)
        tell.stage(Text(f"writing {wish.output.name}", f"写入 {wish.output.name}"))
        own = describe_own(write_own_wheel(store / "making"), wish.order.pythons)
        sources: list[Source] = [
            script_source(__version__),
            *(wheel_source(wheel, wish.order.architecture) for wheel in (own, *wheels)),
            library_source(wish.order.architecture, store),
            *(engine_sources(wish.build) if wish.build else ()),
            *map(model_source, dict.fromkeys((*wish.models, default.absolute()))),
        ]
        return write(wish, sources, tell.progress)


def write(wish: Wish, sources: Sequence[Source], progress: Progress) -> Made:
    """The folder, the tar or its pieces."""
    paths = by_path(sources)
    if wish.output.suffix != ".tar":
        manifest = assemble(wish.output, sources, wish.order, progress)
        return Made((wish.output,), manifest)
    written, manifest = write_tar(
        paths,
        lambda files: manifest_of(files, sources, wish.order),
        wish.output,
        wish.piece_bytes,
        progress,
    )
    return Made(tuple(written), manifest)


def verify(path: Path, progress: Progress) -> tuple[Manifest, Difference]:
    """A bundle's manifest, and where its folder, tar or pieces differ from it."""
    with app_errors():
        if not path.is_dir():
            return compare_tar(path, progress)
        manifest = read_manifest(path)
        return manifest, compare_folder(path, manifest, progress)


class Teller:
    """Passes on what the part that travels says."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self.progress = tell.progress

    def stage(self, words: Words) -> None:
        """The next stage begins."""
        self._tell.stage(Text(words.en, words.zh))


def install_bundle(path: Path, prefix: Path, tell: Tell) -> Installed:
    """Install a bundle into `prefix`, of a tar after it was unpacked there; raises AppError."""
    with app_errors():
        if path.is_dir():
            return install(path, prefix, Teller(tell))
        scratch = prefix / ".bundle"
        with told_of_disk(prefix), alone(scratch):
            unpacked = scratch / "bundle"
            shutil.rmtree(unpacked, ignore_errors=True)  # of an install that was killed
            try:
                tell.stage(Text(f"unpacking {path.name}", f"解压 {path.name}"))
                unpack_tar(path, unpacked, tell.progress)
                return install(unpacked, prefix, Teller(tell))
            finally:
                shutil.rmtree(scratch, ignore_errors=True)


def by_path(sources: Sequence[Source]) -> dict[str, Path]:
    """Every file by its path in the bundle; AppError when two would lie at one place."""
    found: dict[str, Path] = {}
    for source in sources:
        for path, origin in source.files:
            if path in found:
                raise AppError(
                    Text(
                        f"{found[path]} and {origin} have the same name.",
                        f"{found[path]} 与 {origin} 同名。",
                    ),
                    Text("Rename one of them.", "请重命名其中一个。"),
                )
            found[path] = origin
    return found


@contextmanager
def app_errors() -> Iterator[None]:
    """Turns a Refusal of the part that travels into the AppError of everything else."""
    try:
        yield
    except Refusal as error:
        what, step = Text(*error.what), Text(*error.next_step)
        raise AppError(what, step, exit_code=error.exit_code) from error
