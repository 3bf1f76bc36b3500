"""What was pulled into a folder: `pulled.json`, so that it is found and known again."""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from workhorse.errors import AppError
from workhorse.models.choice import choose
from workhorse.models.folders import AddressFolder
from workhorse.models.hub import Digest
from workhorse.models.part_file import local_errors, locked_file
from workhorse.models.sources import HubSource, LocalSource, Source, source_of
from workhorse.units import MIB

RECORD = "pulled.json"
RECORD_BYTES_MAX = 8 * MIB
CHECKPOINT = "."  # how a record calls the model that is the folder itself
CHECKPOINT_ENDINGS = (".safetensors", ".json")


class PulledFile(msgspec.Struct, frozen=True):
    """A file as it was when it was checked."""

    source: str
    size_bytes: int
    changed_ns: int
    etag: str | None = None
    digest: Digest | None = None  # None: only its size was checked


class Record(msgspec.Struct, frozen=True):
    """Files by name below the folder; models by their first file, with all that belong to it."""

    files: dict[str, PulledFile] = {}
    models: dict[str, list[str]] = {}


def folder_of(source: Source, models: Path) -> Path:
    """Where what `source` names is put, unless the user says otherwise."""
    if isinstance(source, HubSource):
        owner, _, name = source.repo.partition("/")
        usual = source.revision == ("main" if source.hub == "hf" else "master")
        rev = "" if usual else "@" + source.revision.replace("/", "--")
        return models / f"{source.hub}--{owner}--{name}{rev}"
    if isinstance(source, LocalSource):
        return source.path.parent
    host = urlsplit(source.url).netloc.rpartition("@")[2]
    return models / re.sub(r"[^\w.-]", "_", host, flags=re.ASCII)


def read_record(folder: Path) -> Record:
    """The record of a folder; an empty one where there is none that can be read."""
    path = folder / RECORD
    with suppress(OSError, msgspec.MsgspecError, RecursionError):
        if path.stat().st_size <= RECORD_BYTES_MAX:
            return msgspec.json.decode(path.read_bytes(), type=Record)
    return Record()


def note_files(folder: Path, files: Mapping[str, PulledFile], model: str | None = None) -> None:
    """Add files to the record, and the model that they make; safe in two processes at once."""
    path = folder / RECORD
    with local_errors(path):
        handle = locked_file(folder / f"{RECORD}.part", lambda _: None)
        try:
            old = read_record(folder)
            models = dict(old.models)
            if model is not None:
                models[model] = list(files)
            record = Record({**old.files, **files}, models)
            os.ftruncate(handle, 0)
            raw = msgspec.json.format(msgspec.json.encode(record))
            os.pwrite(handle, raw, 0)
            os.fsync(handle)
            (folder / f"{RECORD}.part").replace(path)
        finally:
            os.close(handle)


def stamped(path: Path, source: str, etag: str | None, digest: Digest | None) -> PulledFile:
    """The record of a file that has just been checked."""
    with local_errors(path):
        status = path.stat()
    return PulledFile(source, status.st_size, status.st_mtime_ns, etag, digest)


def untouched(path: Path, known: PulledFile | None) -> bool:
    """Whether a file is as it was when it was checked, as far as its size and time tell."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return False
    return known is not None and (status.st_size, status.st_mtime_ns) == (
        known.size_bytes,
        known.changed_ns,
    )


def find_pulled(
    reference: str, quant: str | None, models: Path, environment: Mapping[str, str]
) -> Path | None:
    """The model of this machine that `reference` was pulled as: a GGUF file or a folder.

    None for what was not pulled, or is not whole and untouched any more. Raises AppError when
    `reference` is no name of a model, or when several that are here could be meant.
    """
    source = source_of(reference, environment)
    if isinstance(source, LocalSource):
        return None
    return find_in(folder_of(source, models), label_of(source), wanted_of(source) or quant)


def find_in(folder: Path, label: str, wanted: str | None) -> Path | None:
    """The model of a folder that was pulled into it from `label`, by file or quantisation."""
    record = read_record(folder)
    whole = {
        first: files
        for first, files in record.models.items()
        if files
        and first in (CHECKPOINT, files[0])
        and all(inside(f) and _is_of(label, folder / f, record.files.get(f)) for f in files)
    }
    listing = {f: record.files[f].size_bytes for first in whole for f in whole[first]}
    if wanted is not None and wanted.lower().endswith(CHECKPOINT_ENDINGS):
        return folder if CHECKPOINT in whole and wanted in listing else None
    names = [first for first in whole if first != CHECKPOINT]
    if wanted in names:
        return folder / wanted
    if names and (wanted is None or not wanted.lower().endswith(".gguf")):
        if len(names) == 1 and wanted is None:
            return folder / names[0]
        found = _chosen(listing, wanted, label)
        return None if found is None else folder / found
    return folder if CHECKPOINT in whole and wanted is None else None


def label_of(source: Source) -> str:
    """How a record calls where a model came from."""
    if isinstance(source, HubSource):
        return source.label
    return str(source.path) if isinstance(source, LocalSource) else AddressFolder(source.url).label


def wanted_of(source: Source) -> str | None:
    """The file or quantisation that a reference names."""
    if isinstance(source, HubSource):
        return source.wanted
    return None if isinstance(source, LocalSource) else Path(urlsplit(source.url).path).name


def _is_of(label: str, path: Path, known: PulledFile | None) -> bool:
    return known is not None and known.source == label and untouched(path, known)


def _chosen(listing: Mapping[str, int | None], wanted: str | None, label: str) -> str | None:
    try:
        return choose(listing, wanted, label)
    except AppError:
        if wanted is not None:  # another quantisation than those that are here
            return None
        raise


def inside(file: str) -> bool:
    """Whether a name stays within the folder that it is joined to."""
    return not file.startswith("/") and not {"", ".", ".."} & set(file.split("/"))
