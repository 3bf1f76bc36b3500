"""Reads any model that the user can name: the one way in for plans and rehearsals."""

import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from workhorse.errors import AppError
from workhorse.models.checkpoint import read_checkpoint
from workhorse.models.choice import choose, gguf_models
from workhorse.models.folders import Folder, opened_folder
from workhorse.models.gguf import describe, read_gguf
from workhorse.models.header import TENSORS_MAX, Header, read_header
from workhorse.models.metadata import Metadata
from workhorse.models.parts import PART_NAME, PARTS_MAX, check_parts
from workhorse.models.refusals import damaged, shown
from workhorse.models.remote import Unreachable
from workhorse.models.sources import HubSource, LocalSource, Source, source_of
from workhorse.records import Model
from workhorse.text import Text
from workhorse.units import KIB

PART_PIECE_BYTES = 256 * KIB  # parts after the first have only their tensors
PARALLEL = 4  # requests at once; a hub counts them against its rate limit


def read_model(
    reference: str | Path,
    *,
    quant: str | None = None,
    environment: Mapping[str, str] | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> Model:
    """What the model called `reference` is, from headers alone: no weights are fetched.

    A path to a GGUF file, a safetensors file, a config.json or a directory; `hf:owner/name[:file]`,
    `owner/name`, `ms:owner/name`, or an address. `quant` (such as Q4_K_M) chooses among the GGUF
    files of a repository; of a checkpoint it is what the sizes are worked out for (Q4_K_M when
    left out), and `Model.size_error_share` then says how far they may be off. Blocks; some
    requests of a few MB. Raises AppError and nothing else; takes less than 100 MB of memory.
    """
    environment = os.environ if environment is None else environment
    source = source_of(str(reference), environment)
    if isinstance(source, LocalSource) and _is_gguf(source.path):
        model = read_gguf(source.path)
        if quant is not None:
            raise _has_its_own(model)
        return model
    try:
        return _read_from(source, quant, environment, pause)
    except Unreachable as error:
        if isinstance(source, HubSource) and ":" not in str(reference).partition("/")[0]:
            raise _neither_here_nor_there(str(reference), error) from error
        raise


def _read_from(
    source: Source,
    quant: str | None,
    environment: Mapping[str, str],
    pause: Callable[[float], None],
) -> Model:
    with opened_folder(source, environment, pause) as (folder, wanted):
        file = wanted if wanted is not None and _is_file_name(wanted) else None
        if file is not None and file.lower().endswith(".gguf") and quant is not None:
            raise _has_its_own(_read_remote_gguf(folder, file))
        if file is None:
            file = choose(folder.listing(), wanted or quant, folder.label)
            quant = quant or wanted
        if file is not None and file.lower().endswith(".gguf"):
            if isinstance(source, LocalSource):
                return read_gguf(Path(folder.name_of(file)))
            return _read_remote_gguf(folder, file)
        return read_checkpoint(folder, file, quant)


def _neither_here_nor_there(reference: str, error: Unreachable) -> AppError:
    """`owner/name` may be a path with a typing error, which the hub's words would hide."""
    return Unreachable(
        Text(
            f"There is no {reference} on this machine, and as a model on Hugging Face: "
            f"{error.what.en}",
            f"本机没有 {reference}；作为 Hugging Face 上的模型：{error.what.zh}",
        ),
        error.next_step,
    )


def _has_its_own(model: Model) -> AppError:
    """--quant would be ignored, and the user misled."""
    kind = model.quantisation.upper()
    return AppError(
        Text(
            f"{shown(model.path)} is a GGUF file, mostly {kind}: it has its quantisation.",
            f"{shown(model.path)} 是以 {kind} 为主的 GGUF 文件，量化类型已经确定。",
        ),
        Text(
            "Leave out --quant, or name the repository or the original model.",
            "请去掉 --quant，或改为指定仓库或原始模型。",
        ),
    )


def _is_gguf(path: Path) -> bool:
    """Every local file that is none of the other kinds: read_gguf says what else it looks like."""
    try:
        is_folder = path.is_dir()
    except (OSError, ValueError):
        return True
    return not is_folder and not path.name.lower().endswith((".safetensors", ".json"))


def _is_file_name(wanted: str) -> bool:
    return wanted.lower().endswith((".gguf", ".safetensors", ".json"))


def _read_remote_gguf(folder: Folder, file: str) -> Model:
    """A GGUF model of one part or several, each by range requests."""
    first = _header(folder, file, None)
    files = part_files(file, first)
    headers = [first]
    if len(files) > 1:
        with ThreadPoolExecutor(PARALLEL) as pool:
            others = [part for part in files if part != file]
            headers = list(pool.map(lambda part: _header(folder, part, PART_PIECE_BYTES), others))
        headers.insert(files.index(file), first)
        if sum(len(header.tensors) for header in headers) > TENSORS_MAX:
            raise damaged(first.name, "its parts have too many tensors", "各分卷的张量过多")
        check_parts(headers)
    model = describe(headers, Path(file.rpartition("/")[2]))
    return replace(model, path=folder.name_of(files[0]))


def _header(folder: Folder, file: str, piece_bytes: int | None) -> Header:
    opened = folder.opened(file) if piece_bytes is None else folder.opened(file, piece_bytes)
    read_at, size_bytes = opened
    return read_header(read_at, size_bytes, name=folder.name_of(file))


def part_files(file: str, header: Header) -> list[str]:
    """The files of a remote model's parts in order, from the name and the header of any."""
    parts = Metadata(header).count("split.count") or 1
    if parts == 1:
        return [file]
    place, slash, last = file.rpartition("/")
    match = PART_NAME.fullmatch(last)
    if parts > PARTS_MAX or match is None or int(match["parts"]) != parts:
        raise damaged(
            header.name,
            f"it is one of {parts} parts, and its name does not say which",
            f"它是 {parts} 个分卷之一，但文件名未体现",
        )
    return [
        f"{place}{slash}{match['stem']}-{part:05d}-of-{parts:05d}.gguf"
        for part in range(1, parts + 1)
    ]


def local_folder(reference: str | Path) -> Path | None:
    """The directory that a model of this machine lies in; None for one that is elsewhere."""
    source = source_of(str(reference), os.environ)
    return source.path.parent if isinstance(source, LocalSource) else None


def local_checkpoint(reference: str | Path, *, first: bool = False) -> Path | None:
    """The folder of a checkpoint on this machine that `reference` means; None for anything else.

    A folder that has a GGUF file as well means that one, unless the checkpoint is to come `first`.
    """
    source = source_of(str(reference), os.environ)
    if not isinstance(source, LocalSource):
        return None
    try:
        with opened_folder(source, os.environ) as (folder, wanted):
            names = folder.listing()
            if "config.json" not in names or not any(n.endswith(".safetensors") for n in names):
                return None
            if wanted is not None and not wanted.endswith((".safetensors", ".json")):
                return None
            if wanted is None and not first and gguf_models(names):
                return None
    except AppError:
        return None  # whoever reads it says what is wrong with it
    return source.path if wanted is None else source.path.parent


def servable(reference: str | Path, quant: str | None = None) -> Path:
    """The GGUF file of this machine that `reference` means; of a directory the one to take.

    Raises AppError for a model that is elsewhere or has yet to be converted. Whether the file is
    there and good shows when it is read.
    """
    source = source_of(str(reference), os.environ)
    if not isinstance(source, LocalSource):
        raise needs_local_file(reference)
    with opened_folder(source, os.environ) as (folder, wanted):
        file = wanted or choose(folder.listing(), quant, folder.label)
        if file is None or file.lower().endswith((".safetensors", ".json")):
            raise needs_local_file(reference)
        return Path(folder.name_of(file))


def needs_local_file(reference: str | Path) -> AppError:
    """The error for a command that needs the weights themselves, as a GGUF file."""
    name = shown(str(reference))
    if local_folder(reference) is not None:
        return AppError(
            Text(
                f"{name} is a checkpoint as its makers publish it; llama.cpp reads GGUF files.",
                f"{name} 是原始模型文件，而 llama.cpp 读取的是 GGUF 文件。",
            ),
            Text(
                "Give a GGUF file of the same model, or install an engine that reads it: "
                "workhorse engine install vllm",
                "请指定同一模型的 GGUF 文件，或安装可直接读取它的引擎："
                "workhorse engine install vllm",
            ),
        )
    return AppError(
        Text(
            f"{name} is not on this machine, and a service needs its weights.",
            f"{name} 不在本机上，而启动服务需要其权重。",
        ),
        Text(
            f"`workhorse pull {name}` brings it here; `workhorse plan {name}` says before whether "
            "it is worth the download.",
            f"`workhorse pull {name}` 可将其下载到本机；"
            f"`workhorse plan {name}` 可事先判断是否值得。",
        ),
    )
