"""Takes a build that was made elsewhere: from a folder, an archive or an address."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from workhorse.engines.supply.build import Prove, read_programs
from workhorse.engines.supply.builds import Build, Builds
from workhorse.engines.supply.check import damaged_files
from workhorse.engines.supply.manifest import MANIFEST, Manifest, check_name, read_manifest
from workhorse.engines.supply.unpack import unpack
from workhorse.errors import EXIT_USAGE, AppError
from workhorse.models.fetch import Progress, fetch
from workhorse.models.part_file import check_space, local_errors, sha256_of
from workhorse.models.remote import SCHEMES
from workhorse.text import Text


def install_build(
    origin: str,
    builds: Builds,
    prove: Prove,
    *,
    name: str | None = None,
    sha256: str | None = None,
    progress: Progress,
) -> Build:
    """Install from a folder, an archive file or an address; raises AppError.

    Nothing gets its name before its record, its hashes and its answer are right, so a failing
    install leaves what was there. An address needs the archive's `sha256`; a broken download
    goes on at the next call.
    """
    if name is not None:
        check_name(name)
    with builds.alone(), builds.making() as scratch:
        made = scratch / "build"
        if is_address(origin):
            if sha256 is None:
                raise needs_hash()
            archive = download(origin, builds.folder, sha256, progress)
            _unpack_build(archive, made)
        else:
            path = Path(origin).expanduser()
            _refuse_nothing(path)
            if path.is_dir():
                _copy_build(path, made)
            else:
                _check_archive(path, sha256)
                _unpack_build(path, made)
        manifest = read_manifest(made)
        _drop_strangers(made, manifest)
        manifest = checked(made, manifest)
        manifest = manifest if name is None else replace(manifest, name=name)
        builds.refuse_taken(manifest.name)
        prove(made, manifest)
        build = builds.keep(made, manifest)
        shutil.rmtree(downloads(builds.folder), ignore_errors=True)
    return build


def is_address(origin: str) -> bool:
    """True for http, https and file addresses."""
    return urlsplit(origin).scheme in SCHEMES and "://" in origin


def downloads(folder: Path) -> Path:
    """Where archives lie while they are fetched."""
    return folder / ".download"


def download(url: str, folder: Path, sha256: str, progress: Progress) -> Path:
    """The archive at `url`, whose hash is then right; resumable."""
    name = PurePosixPath(unquote(urlsplit(url).path)).name or "build"
    return fetch(url, downloads(folder) / name, sha256=sha256.lower(), progress=progress)


def checked(folder: Path, manifest: Manifest) -> Manifest:
    """The manifest, when the files are those it lists and hold what it says; AppError else."""
    damaged = damaged_files(folder, manifest)
    if damaged:
        names = ", ".join(damaged[:3])
        raise AppError(
            Text(
                f"{len(damaged)} of {len(manifest.files)} files are not those of the record: "
                f"{names}.",
                f"{len(manifest.files)} 个文件中有 {len(damaged)} 个与记录不符：{names}。",
            ),
            Text("Get the build again; do not use this one.", "请重新获取该构建，勿使用此份。"),
        )
    found = read_programs(folder)
    pairs = {
        "sass": (manifest.sass, found.sass),
        "ptx": (manifest.ptx, found.ptx),
        "glibc": (manifest.glibc, found.glibc),
    }
    wrong = {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}
    if wrong:
        listed = ", ".join(f"{key}: {said} / {held}" for key, (said, held) in wrong.items())
        raise AppError(
            Text(
                f"The record says something else than the files hold ({listed}).",
                f"记录与文件内容不符（{listed}）。",
            ),
            Text("Do not use this build.", "请勿使用该构建。"),
        )
    return manifest


def _copy_build(origin: Path, made: Path) -> None:
    """The files of the record and nothing else."""
    manifest = read_manifest(origin)
    check_space(made.parent, manifest.n_bytes)
    for path in (MANIFEST, *(file.path for file in manifest.files)):
        source, target = origin / path, made / path
        if not source.resolve().is_relative_to(origin.resolve()) or not source.is_file():
            raise _missing(origin, path)
        with local_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def _unpack_build(archive: Path, made: Path) -> None:
    """The files of the archive's one folder, or of its top."""
    names: list[str] = []
    unpack(archive, made, _collecting(names))
    tops = [name for name in names if PurePosixPath(name).name == MANIFEST]
    root = min(tops, key=len, default=None)
    if root is None or len(PurePosixPath(root).parts) > 2:
        raise _missing(archive, MANIFEST)
    prefix = root[: -len(MANIFEST)]
    unpack(archive, made, lambda path: _below(path, prefix))


def _drop_strangers(made: Path, manifest: Manifest) -> None:
    """Remove what the record does not list, and let the programs run whatever packed them."""
    listed = {MANIFEST, *(file.path for file in manifest.files)}
    with local_errors(made):
        for path in made.rglob("*"):
            relative = path.relative_to(made).as_posix()
            if path.is_dir() and not path.is_symlink():
                continue
            if relative not in listed:
                path.unlink()
            elif relative.startswith("bin/"):
                path.chmod(0o755)


def _collecting(names: list[str]) -> Callable[[str], str | None]:
    """Wants no file, but notes each name."""

    def note(path: str) -> str | None:
        names.append(path.removeprefix("./"))
        return None

    return note


def _below(path: str, prefix: str) -> str | None:
    plain = path.removeprefix("./")
    return plain[len(prefix) :] if plain.startswith(prefix) else None


def _check_archive(path: Path, sha256: str | None) -> None:
    if sha256 is None:
        return
    with local_errors(path):
        found = sha256_of(path)
    if found != sha256.lower():
        raise AppError(
            Text(
                f"{path.name} has the SHA-256 {found}, not {sha256.lower()}.",
                f"{path.name} 的 SHA-256 是 {found}，而不是 {sha256.lower()}。",
            ),
            Text("Get it again from where it came from.", "请从来源处重新获取。"),
        )


def _refuse_nothing(path: Path) -> None:
    if not path.exists():
        raise AppError(
            Text(f"{path} does not exist.", f"{path} 不存在。"),
            Text(
                "Name a build's folder, its archive, or an http address.",
                "请给出构建目录、归档文件或 http 地址。",
            ),
            exit_code=EXIT_USAGE,
        )


def _missing(origin: Path, path: str) -> AppError:
    return AppError(
        Text(f"{origin} has no {path}.", f"{origin} 中没有 {path}。"),
        Text(
            "Name a folder that `workhorse engine build` made, or an archive of it.",
            "请给出由 `workhorse engine build` 生成的目录或其归档。",
        ),
    )


def needs_hash() -> AppError:
    """An address says nothing of what it gives."""
    return AppError(
        Text("An address needs the archive's SHA-256.", "使用地址时需要归档的 SHA-256。"),
        Text(
            "Add --sha256 with the hash that its maker published.",
            "请加上 --sha256 和发布者公布的哈希。",
        ),
        exit_code=EXIT_USAGE,
    )
