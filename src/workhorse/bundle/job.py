"""Making, checking and installing a bundle on one screen each."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

from workhorse import __version__
from workhorse.bundle.archive import compare_tar, piece_name, unpack_tar, write_tar
from workhorse.bundle.assemble import assemble, refuse_taken, remove
from workhorse.bundle.carried.check import Difference, compare_folder
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
from workhorse.models.part_file import local_errors
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


@dataclass(frozen=True, slots=True)
class Made:
    """The bundle that was written."""

    paths: tuple[Path, ...]  # the folder, the tar or its pieces
    manifest: Manifest


def create(wish: Wish, where: Places, tell: Tell, lock: str | None = None) -> Made:
    """Bring everything together and write it; raises AppError. `lock`: another than our own."""
    first = piece_name(wish.output, 1) if wish.piece_bytes else wish.output
    refuse_taken(first)
    store = where.data / "bundles"
    with local_errors(store):
        store.mkdir(parents=True, exist_ok=True)
    tell.stage(Text("fetching packages", "获取软件包"))
    wheels = bring_wheels(wish.order, lock or read_lock(), store / "wheels", tell.progress)
    tell.stage(Text("fetching the model", "获取模型"))
    default = embedded_model(where.data, tell.progress)
    tell.stage(Text("collecting the files", "汇集文件"))
    with local_errors(store), TemporaryDirectory(dir=store, prefix=".own-") as scratch:
        own = describe_own(write_own_wheel(Path(scratch)), wish.order.pythons)
        sources: list[Source] = [
            script_source(__version__),
            *(wheel_source(wheel, wish.order.architecture) for wheel in (own, *wheels)),
            library_source(wish.order.architecture, store),
            *(engine_sources(wish.build) if wish.build else ()),
            *map(model_source, dict.fromkeys((*wish.models, default))),
        ]
        refuse_same_names(sources)
        return write(wish, sources, store, tell)


def write(wish: Wish, sources: Sequence[Source], store: Path, tell: Tell) -> Made:
    """The folder; or the tar by way of a folder of links beside the models."""
    with app_errors():
        if wish.output.suffix != ".tar":
            manifest = assemble(wish.output, sources, wish.order, tell.progress)
            return Made((wish.output,), manifest)
        staged = store / wish.output.stem
        remove(staged)
        manifest = assemble(staged, sources, wish.order, tell.progress)
        tell.stage(Text(f"writing {wish.output.name}", f"写入 {wish.output.name}"))
        try:
            paths = write_tar(staged, manifest, wish.output, wish.piece_bytes, tell.progress)
        finally:
            remove(staged)
        return Made(tuple(paths), manifest)


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
        with local_errors(prefix):
            prefix.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(dir=prefix, prefix=".bundle-") as scratch:
                tell.stage(Text(f"unpacking {path.name}", f"解压 {path.name}"))
                unpacked = Path(scratch, "bundle")
                unpack_tar(path, unpacked, tell.progress)
                return install(unpacked, prefix, Teller(tell))


def refuse_same_names(sources: Sequence[Source]) -> None:
    """AppError when two models would lie at one place."""
    seen: dict[str, Path] = {}
    for source in sources:
        for path, origin in source.files:
            if path in seen:
                raise AppError(
                    Text(
                        f"{seen[path]} and {origin} have the same name.",
                        f"{seen[path]} 与 {origin} 同名。",
                    ),
                    Text("Rename one of them.", "请重命名其中一个。"),
                )
            seen[path] = origin


@contextmanager
def app_errors() -> Iterator[None]:
    """Turns a Refusal of the part that travels into the AppError of everything else."""
    try:
        yield
    except Refusal as error:
        what, step = Text(*error.what), Text(*error.next_step)
        raise AppError(what, step, exit_code=error.exit_code) from error
