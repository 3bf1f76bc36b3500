"""Pulls a model: which files belong to it, then each of them, checked; nothing of them twice."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from workhorse.errors import AppError
from workhorse.models.checkpoint import shards_of
from workhorse.models.folders import AddressFolder
from workhorse.models.hub import Digest, HubFolder, no_such_file
from workhorse.models.part_file import CHUNK_BYTES, check_space, local_errors
from workhorse.models.parts import PART_NAME, PARTS_MAX
from workhorse.models.pull_file import pull_file, still_served
from workhorse.models.pull_part import Version
from workhorse.models.pull_record import (
    CHECKPOINT,
    CHECKPOINT_ENDINGS,
    RECORD,
    PulledFile,
    inside,
    note_files,
    read_record,
    stamped,
    untouched,
)
from workhorse.models.pull_tries import CONNECTIONS, Manner, Wanted
from workhorse.models.refusals import shown
from workhorse.models.remote_file import Refused
from workhorse.text import Text
from workhorse.units import MIB

RemoteFolder = HubFolder | AddressFolder

# Beside the shards of a checkpoint: its config, tokenizer and template, and what it may be used
# for. Code (*.py) is left out: nothing here runs what a repository brings.
_BESIDE = (".json", ".jinja", ".model", ".tiktoken", ".txt")
_BESIDE_NAMES = ("license", "license.md", "notice", "readme.md")
BESIDE_BYTES_MAX = 128 * MIB


@dataclass(frozen=True, slots=True)
class Order:
    """One model to pull: `model` is its first file, or CHECKPOINT for the folder itself."""

    label: str
    model: str
    files: tuple[Wanted, ...]

    @property
    def size_bytes(self) -> int | None:
        """The bytes of all files; None when a server does not say."""
        sizes = [wanted.size_bytes for wanted in self.files]
        known = [size for size in sizes if size is not None]
        return sum(known) if len(known) == len(sizes) else None


@dataclass(frozen=True, slots=True)
class Pulled:
    """A model that is here now. `unchecked` are files that only their size vouches for."""

    path: Path
    files: tuple[str, ...]
    fetched_bytes: int
    unchecked: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Telling:
    """Whom a pull tells: sentences, and bytes that are here of those in all."""

    say: Callable[[Text], None] = lambda _: None
    progress: Callable[[int, int | None], None] = lambda _done, _total: None


def order_of(folder: RemoteFolder, file: str | None) -> Order:
    """What belongs to the GGUF file that was chosen, or to the checkpoint (`file` None).

    Raises AppError for a file that is not there, and for a split model with parts missing.
    """
    listing = folder.listing()
    if isinstance(folder, HubFolder) and (file is None or file.endswith(CHECKPOINT_ENDINGS)):
        names, model = _checkpoint_files(folder, file), CHECKPOINT
    else:
        file = file or ""
        names, model = _parts(file), ""
        model = names[0]
        missing = [name for name in names if listing and name not in listing]
        if missing:
            raise no_such_file(folder.label, missing[0], list(listing))
    for name in names:
        if not inside(name):
            raise no_such_file(folder.label, name, [])
    digests = folder.digests() if isinstance(folder, HubFolder) else {}
    files = tuple(
        Wanted(name, tuple(folder.addresses(name)), listing.get(name), digests.get(name))
        for name in names
    )
    return Order(folder.label, model, files)


def _parts(file: str) -> list[str]:
    """The files of a split model, by the name of any of them."""
    place, slash, last = file.rpartition("/")
    match = PART_NAME.fullmatch(last)
    if match is None or not 1 < int(match["parts"]) <= PARTS_MAX:
        return [file]
    count = int(match["parts"])
    return [
        f"{place}{slash}{match['stem']}-{part:05d}-of-{count:05d}.gguf"
        for part in range(1, count + 1)
    ]


def _checkpoint_files(folder: HubFolder, file: str | None) -> list[str]:
    listing = folder.listing()
    shards = shards_of(folder, file if file is not None and file.endswith(".index.json") else None)
    if "config.json" not in listing or not shards:
        raise AppError(
            Text(
                f"{folder.label} has neither a GGUF file nor a checkpoint in safetensors files.",
                f"{folder.label} 中既没有 GGUF 文件，也没有 safetensors 格式的模型。",
            ),
            Text(
                "Look for a repository of the same model with one of them.",
                "请查找提供这两种格式之一的同一模型的仓库。",
            ),
        )
    beside = [
        name
        for name, size in listing.items()
        if "/" not in name
        and name != RECORD
        and (name.lower().endswith(_BESIDE) or name.lower() in _BESIDE_NAMES)
        and (size is None or size <= BESIDE_BYTES_MAX)
    ]
    return [*beside, *shards]  # small ones first: what is wrong with them shows at once


def pull(
    folder: RemoteFolder,
    order: Order,
    target: Path,
    telling: Telling,
    *,
    connections: int = CONNECTIONS,
    pause: Callable[[float], None] | None = None,
    stall_s: float | None = None,
) -> Pulled:
    """Bring the files of `order` into `target`; what is there and right is not fetched again.

    Blocks. The disk is looked at before the first byte. Whatever ends it, the next call goes on
    from there. Raises AppError and nothing else.
    """
    record = read_record(target)
    asking = Manner(folder.headers, connections, telling.say, pause=pause)
    asking = asking if stall_s is None else replace(asking, stall_s=stall_s)
    here = [w for w in order.files if _is_still_here(folder, w, target, record.files, asking)]
    missing = [wanted for wanted in order.files if wanted not in here]
    _refuse_others(missing, target, record.files, order.label)
    needed = sum((w.size_bytes or 0) - _part_bytes(target / w.name) for w in missing)
    check_space(_existing(target), max(0, needed))
    total = order.size_bytes
    done = sum(wanted.size_bytes or 0 for wanted in here)
    began, fetched = done, {w.name: record.files[w.name] for w in here if w.name in record.files}
    for wanted in here:
        fetched.setdefault(
            wanted.name, stamped(target / wanted.name, order.label, None, wanted.digest)
        )
    for wanted in missing:
        before = done

        def step(done_bytes: int, file_bytes: int | None, before: int = before) -> None:
            in_all = total if len(order.files) > 1 or total is not None else file_bytes
            telling.progress(before + done_bytes, in_all)

        manner = replace(asking, progress=step)
        fetched[wanted.name] = _bring(folder, wanted, target, manner, order.label)
        done += fetched[wanted.name].size_bytes
    note_files(target, {w.name: fetched[w.name] for w in order.files}, order.model)
    path = target if order.model == CHECKPOINT else target / order.model
    unchecked = tuple(name for name, file in fetched.items() if file.digest is None)
    return Pulled(path, tuple(w.name for w in order.files), done - began, unchecked)


def _bring(
    folder: RemoteFolder, wanted: Wanted, target: Path, manner: Manner, label: str
) -> PulledFile:
    """One file, unless another process brings it meanwhile."""
    path = target / wanted.name
    before = read_record(target).files.get(wanted.name)

    def is_there() -> bool:
        """Another process may have been faster."""
        now = read_record(target).files
        return now.get(wanted.name) != before and _is_here(wanted, target, now)

    def arrived(version: Version) -> None:
        """Noted at once, so that a pull that ends early does not check it again."""
        file = stamped(path, label, version.etag, wanted.digest)
        note_files(target, {wanted.name: file})

    try:
        pull_file(wanted, path, manner, is_there, arrived)
    except Refused as refusal:
        raise folder.explained(refusal, wanted.name) from refusal
    return read_record(target).files.get(wanted.name) or stamped(path, label, None, wanted.digest)


def _is_here(wanted: Wanted, target: Path, known: Mapping[str, PulledFile]) -> bool:
    """Whether the file is there as the hub has it; hashed unless it was, and is untouched."""
    path, before = target / wanted.name, known.get(wanted.name)
    with local_errors(path):
        if not path.is_file():
            return False
        size = path.stat().st_size
    if wanted.size_bytes is not None and size != wanted.size_bytes:
        return False
    if wanted.digest is None:  # that it came from there is all there is to go by
        return untouched(path, before)
    if untouched(path, before) and before is not None and before.digest == wanted.digest:
        return True
    return _digest_of(path, wanted.digest, size) == wanted.digest.value


def _is_still_here(
    folder: RemoteFolder,
    wanted: Wanted,
    target: Path,
    known: Mapping[str, PulledFile],
    manner: Manner,
) -> bool:
    """Whether it is here as the server has it now; without a digest the server is asked."""
    if not _is_here(wanted, target, known):
        return False
    if wanted.digest is not None:
        return True
    before = known[wanted.name]
    try:
        return still_served(wanted, manner, Version(before.size_bytes, before.etag))
    except Refused as refusal:
        raise folder.explained(refusal, wanted.name) from refusal


def _digest_of(path: Path, digest: Digest, size_bytes: int) -> str:
    running = hashlib.sha256()
    if digest.kind == "git-sha1":
        running = hashlib.sha1(usedforsecurity=False)
        running.update(b"blob %d\0" % size_bytes)
    with local_errors(path), path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            running.update(chunk)
    return running.hexdigest()


def _refuse_others(
    missing: list[Wanted], target: Path, known: Mapping[str, PulledFile], label: str
) -> None:
    """A file of that name that did not come from there is not replaced: it is another model's."""
    for wanted in missing:
        path = target / wanted.name
        before = known.get(wanted.name)
        if path.exists() and (before is None or before.source != label):
            raise AppError(
                Text(
                    f"{shown(str(path))} is there already and is not the file that is asked for.",
                    f"{shown(str(path))} 已存在，且不是所要的文件。",
                ),
                Text(
                    "Move it away, or choose another folder with --to.",
                    "请将其移走，或用 --to 指定其他目录。",
                ),
            )


def _part_bytes(path: Path) -> int:
    """What the part of an earlier pull takes of the disk."""
    try:
        return path.with_name(path.name + ".part").stat().st_blocks * 512
    except OSError:
        return 0


def _existing(folder: Path) -> Path:
    """The folder, or the nearest above it that is there."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder
