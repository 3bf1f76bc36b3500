"""A GGUF file from a checkpoint: llama.cpp's converter in a folder beside the target."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from workhorse.errors import EXIT_USAGE, AppError
from workhorse.models.convert.source import is_weights, read_source, refuse_gguf
from workhorse.models.gguf import read_gguf
from workhorse.models.gguf_maker.finite import refuse_infinite
from workhorse.models.gguf_maker.origin import exact_type
from workhorse.models.gguf_maker.run_converter import run_converter
from workhorse.models.part_file import local_errors, sync_folder
from workhorse.models.read import local_checkpoint, read_model
from workhorse.models.refusals import shown
from workhorse.records import Model
from workhorse.tell import Teller
from workhorse.text import Text
from workhorse.units import MIB, show_bytes

GgufType = Literal["bf16", "f16", "q8_0", "f32"]
SPARE_BYTES = 64 * MIB  # a header with a large vocabulary


@dataclass(frozen=True, slots=True)
class Converter:
    """llama.cpp's converter: a Python with its packages, its script, the engine's commit."""

    python: Path
    script: Path
    commit: str


@dataclass(frozen=True, slots=True)
class Order:
    """One file to be made, checked as far as that goes without the converter."""

    folder: Path
    target: Path
    type: GgufType
    expected_bytes: int


@dataclass(frozen=True, slots=True)
class Made:
    """A finished GGUF file."""

    source: str
    target: str
    type: str
    n_bytes: int
    tensors: int
    architecture: str
    converter: str


def prepare(reference: str, asked: GgufType | None, target: Path | None) -> Order:
    """What would be made; AppError for a source or target that does not do.

    `asked` None: F16 of an FP16 checkpoint, which BF16 would round, else BF16. The checkpoint's
    headers are read, its files and disk space counted, nothing is written.
    """
    refuse_gguf(reference)
    folder = (local_checkpoint(reference, first=True) or read_source(reference).folder).resolve()
    kind = asked or ("f16" if exact_type(folder) == "f16" else "bf16")
    place = (target or folder.with_name(f"{folder.name}-{kind.upper()}.gguf")).absolute()
    if os.path.lexists(place):
        raise AppError(
            Text(f"{shown(str(place))} is there already.", f"{shown(str(place))} 已存在。"),
            Text(
                "Remove it, or choose another name with --output.",
                "请先删除它，或用 --output 另取名称。",
            ),
            exit_code=EXIT_USAGE,
        )
    if not place.parent.is_dir():
        raise AppError(
            Text(
                f"There is no folder {shown(str(place.parent))}.",
                f"目录 {shown(str(place.parent))} 不存在。",
            ),
            Text("Make it, or choose another one.", "请先创建该目录，或另选目录。"),
            exit_code=EXIT_USAGE,
        )
    if not (folder / "config.json").is_file():
        raise AppError(
            Text(
                f"{shown(str(folder))} has no config.json.",
                f"{shown(str(folder))} 中没有 config.json。",
            ),
            Text(
                "Give the whole folder as it was published: weights, config.json, tokenizer.",
                "请提供完整的模型目录：权重、config.json、分词器。",
            ),
        )
    expected = read_model(folder / "config.json", quant=kind.upper()).weight_bytes + SPARE_BYTES
    with local_errors(place):
        free = shutil.disk_usage(place.parent).free
    if free < expected:
        raise AppError(
            Text(
                f"The disk of {shown(str(place.parent))} has {show_bytes(free)} left; "
                f"{show_bytes(expected)} are needed.",
                f"{shown(str(place.parent))} 所在磁盘剩余 {show_bytes(free)}，需要 "
                f"{show_bytes(expected)}。",
            ),
            Text(
                "Free some space, or choose another disk with --output.",
                "请清理磁盘空间，或用 --output 指定其他磁盘。",
            ),
        )
    return Order(folder, place, kind, expected)


def make_gguf(order: Order, converter: Converter, tell: Teller) -> Made:
    """The file under its name when it is whole, can be read, and no value became infinite.

    Raises AppError. A run that was killed leaves `TARGET.part`, which the next one makes anew.
    """
    with workplace(order.target) as place:
        view = place / "model"
        _without_code(order.folder, view)
        tell.stage(Text(f"converting to {order.type.upper()}", f"转换为 {order.type.upper()}"))
        file = place / "made.gguf"
        command = [str(converter.python), str(converter.script), str(view)]
        command += ["--outfile", str(file), "--outtype", order.type]
        command += ["--model-name", order.folder.name]
        run_converter(command, place, tell.progress)
        model = checked(file, order, tell)
        with local_errors(order.target):
            _sync(file)
            file.replace(order.target)
            sync_folder(order.target.parent)
    return Made(
        source=str(order.folder),
        target=str(order.target),
        type=order.type,
        n_bytes=model.file_bytes,
        tensors=len(model.tensors),
        architecture=model.architecture,
        converter=converter.commit,
    )


def checked(file: Path, order: Order, tell: Teller) -> Model:
    """What is in the new file; AppError: no model, far from the expected size, infinite values."""
    model = read_gguf(file)
    if model.weight_bytes > 2 * order.expected_bytes:
        raise AppError(
            Text(
                f"The converter made {show_bytes(model.weight_bytes)} of weights, "
                f"{show_bytes(order.expected_bytes)} were expected.",
                f"转换结果有 {show_bytes(model.weight_bytes)} 的权重，预期为 "
                f"{show_bytes(order.expected_bytes)}。",
            ),
            Text("Do not use it; report this model.", "请勿使用，并反馈该模型。"),
        )
    if order.type in ("bf16", "f32"):
        return model
    with local_errors(file):
        tell.stage(Text("looking for values that became infinite", "检查是否有变为无穷的值"))
        refuse_infinite(file, model.tensors, order.type, tell.progress)
    return model


def _without_code(folder: Path, view: Path) -> None:
    """The checkpoint's files but for Python code, which the converter would run for some models."""
    with local_errors(view):
        view.mkdir()
        for path in sorted(folder.iterdir()):
            code = path.suffix.lower() in (".py", ".pyc", ".so", ".pth")
            foreign = is_weights(path.name) and not path.name.endswith(
                (".safetensors", ".bin", ".index.json")
            )
            if path.is_file() and not code and not foreign:
                (view / path.name).symlink_to(path.resolve())


@contextmanager
def workplace(target: Path) -> Iterator[Path]:
    """`TARGET.part`, an empty folder for this process alone; gone at the end."""
    place = target.with_name(target.name + ".part")
    with local_errors(place):
        place.mkdir(exist_ok=True)
        handle = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise AppError(
                Text(
                    f"Another process is making {shown(str(target))}.",
                    f"另一个进程正在生成 {shown(str(target))}。",
                ),
                Text("Wait for it, or choose another --output.", "请等待其完成，或另选 --output。"),
            ) from error
        try:
            with local_errors(place):
                _empty(place)
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)
    finally:
        os.close(handle)


def _empty(place: Path) -> None:
    for path in place.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
