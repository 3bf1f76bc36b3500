"""Which files a plan's engine reads, with their hashes; the plan for a node that has them."""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import msgspec

from workhorse.errors import AppError
from workhorse.fleet.spec import WeightsSource
from workhorse.fleet.weights_share import SharedFile
from workhorse.models.hub import Digest
from workhorse.models.part_file import CHUNK_BYTES, local_errors
from workhorse.models.parts import PART_NAME, PARTS_MAX
from workhorse.models.pull_record import RECORD, note_files, read_record, stamped, untouched
from workhorse.records import Plan
from workhorse.text import Text

# What an engine reads of a checkpoint's folder. Code (*.py) is left out: nothing here runs it.
CHECKPOINT_FILES = (".safetensors", ".json", ".jinja", ".model", ".tiktoken", ".txt")
HASHED_HERE = "hashed here"

# (bytes hashed, bytes in all)
Progress = Callable[[int, int | None], None]


def files_of(plan: Plan) -> tuple[Path, ...]:
    """The files that the plan's engine reads, what names the model first.

    All parts of a split model, all of a checkpoint, and the projector. Raises AppError when one
    is not there.
    """
    projector = None if plan.projector is None else Path(plan.projector.path)
    return model_files(Path(plan.model_path), projector)


def model_files(model: Path, projector: Path | None = None) -> tuple[Path, ...]:
    """The same for a model of which there is no plan yet."""
    found = _checkpoint_files(model) if model.is_dir() else _parts(model)
    if projector is not None:
        found.append(projector)
    missing = next((path for path in found if not path.is_file()), None)
    if missing is not None or not found:
        raise AppError(
            Text(
                f"{missing or model} is not there, so no node can be given it.",
                f"{missing or model} 不存在，无法分发给节点。",
            ),
            Text("Pull the model on the head first.", "请先在主节点上下载该模型。"),
        )
    return tuple(found)


def shared_files(
    paths: Iterable[Path], known: Path, progress: Progress = lambda _done, _total: None
) -> tuple[SharedFile, ...]:
    """The files with their SHA-256, read only when no earlier run or pull has hashed them.

    `known` is a folder in which the hashes are noted. Blocks: about a second a GB.
    """
    paths = [path.absolute() for path in paths]  # a link keeps its name, which the parts share
    known.mkdir(parents=True, exist_ok=True)
    found = {path: _hashed_before(path, known) for path in paths}
    missing = [path for path, file in found.items() if file is None]
    total = sum(path.stat().st_size for path in missing)
    done = 0
    for path in missing:
        sha256 = hashlib.sha256()
        with local_errors(path), path.open("rb") as file:
            # The time stamp of before: a file that changes meanwhile is hashed again.
            stamp = stamped(path, HASHED_HERE, None, None)
            while chunk := file.read(CHUNK_BYTES):
                sha256.update(chunk)
                done += len(chunk)
                progress(done, total)
        digest = Digest("sha256", sha256.hexdigest())
        note_files(known, {str(path): msgspec.structs.replace(stamp, digest=digest)})
        found[path] = SharedFile(path, digest.value, stamp.size_bytes, stamp.changed_ns)
    return tuple(file for file in found.values() if file is not None)


def sources_of(files: Iterable[SharedFile], url: str) -> tuple[WeightsSource, ...]:
    """What a replica is told of them; `url` is the address of the head's share."""
    return tuple(
        WeightsSource(file.path.name, file.sha256, file.n_bytes, (f"{url}/weights/{file.sha256}",))
        for file in files
    )


def plan_with(plan: Plan, model: Path) -> Plan:
    """The plan for a node where `fetch` has put the files: `model` is what it returned."""
    projector = plan.projector
    folder = model if model.is_dir() else model.parent
    if projector is not None:
        projector = replace(projector, path=str(folder / Path(projector.path).name))
    return replace(plan, model_path=str(model), projector=projector)


def _hashed_before(path: Path, known: Path) -> SharedFile | None:
    """The file as a pull or an earlier run has hashed it, if it is still that file."""
    for folder, name in ((known, str(path)), (path.parent, path.name)):
        noted = read_record(folder).files.get(name)
        if noted is None or noted.digest is None or noted.digest.kind != "sha256":
            continue
        if untouched(path, noted):
            return SharedFile(path, noted.digest.value, noted.size_bytes, noted.changed_ns)
    return None


def _parts(model: Path) -> list[Path]:
    """All parts of a split model, by the name of any of them; the file itself if it is one."""
    match = PART_NAME.fullmatch(model.name)
    if match is None or not 1 < int(match["parts"]) <= PARTS_MAX:
        return [model]
    count = int(match["parts"])
    return [
        model.with_name(f"{match['stem']}-{part:05d}-of-{count:05d}.gguf")
        for part in range(1, count + 1)
    ]


def _checkpoint_files(folder: Path) -> list[Path]:
    names = sorted(
        path
        for path in folder.iterdir()
        if path.name.lower().endswith(CHECKPOINT_FILES) and path.name != RECORD and path.is_file()
    )
    # What `fetch` returns for a checkpoint is the folder of its first file.
    return sorted(names, key=lambda path: path.name != "config.json")
