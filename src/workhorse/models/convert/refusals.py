"""The errors of a conversion that is under way: the disk, the source, the answer no."""

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from workhorse.errors import EXIT_NO, AppError
from workhorse.models.convert.report import TensorRange
from workhorse.models.refusals import shown
from workhorse.text import Text
from workhorse.units import show_bytes

NAMES_SHOWN = 8


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turns what the disk refuses into an AppError that names `path`."""
    try:
        yield
    except OSError as error:
        place = shown(str(path))
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise AppError(
                Text(f"The disk is full at {place}.", f"磁盘已满：{place}。"), FREE_SOME
            ) from error
        why = error.strerror or str(error)
        raise AppError(
            Text(f"{place}: {why}.", f"{place}：{why}。"),
            Text(
                "Check the folder and its permissions, or choose another one with --output.",
                "请检查目录及其权限，或用 --output 指定其他目录。",
            ),
        ) from error


FREE_SOME = Text(
    "Free some space and run the command again, or choose another disk with --output; finished "
    "files are kept.",
    "请清理磁盘空间后重新运行，或用 --output 指定其他磁盘；已完成的文件会保留。",
)


def too_little_space(folder: Path, free_bytes: int, needed_bytes: int) -> AppError:
    """The error before anything is written."""
    free, needed, place = show_bytes(free_bytes), show_bytes(needed_bytes), shown(str(folder))
    return AppError(
        Text(
            f"The disk of {place} has {free} left; the converted model takes {needed} more.",
            f"{place} 所在磁盘剩余 {free}；转换后的模型还需要 {needed}。",
        ),
        FREE_SOME,
    )


def overflows(found: Sequence[TensorRange]) -> AppError:
    """The answer no: tensors hold values beyond 65504, and the user did not say what to do."""
    lines = [
        f"{shown(tensor.name)} ({tensor.overflowed}/{tensor.values}, "
        f"max {tensor.largest_magnitude:.6g})"
        for tensor in sorted(found, key=lambda tensor: -tensor.overflowed)[:NAMES_SHOWN]
    ]
    more = " …" if len(found) > NAMES_SHOWN else ""
    listed = ", ".join(lines) + more
    return AppError(
        Text(
            f"{len(found)} tensors hold values that FP16 cannot (above 65504): {listed}.",
            f"{len(found)} 个张量含有 FP16 无法表示的数值（超过 65504）：{listed}。",
        ),
        Text(
            "Run it again with --on-overflow keep-f32 (these tensors stay exact, as F32) or "
            "--on-overflow clamp (such values become ±65504); what is finished is used again.",
            "请加 --on-overflow keep-f32（这些张量以 F32 精确保存）或 --on-overflow clamp"
            "（这些值变为 ±65504）重新运行；已完成的部分会直接使用。",
        ),
        exit_code=EXIT_NO,
    )


def changed(path: Path) -> AppError:
    """The source is shorter than it was when its header was read."""
    return AppError(
        Text(
            f"{shown(str(path))} was changed while it was being read.",
            f"{shown(str(path))} 在读取过程中被修改。",
        ),
        Text("Let its download finish, then run it again.", "请等待其下载完成后重新运行。"),
    )


def not_as_written(path: Path, offset_bytes: int) -> AppError:
    """Reading back gave other bytes than were written."""
    return AppError(
        Text(
            f"{shown(str(path))} does not read back as it was written, at byte {offset_bytes}.",
            f"{shown(str(path))} 在字节 {offset_bytes} 处回读结果与写入不一致。",
        ),
        Text(
            "Do not trust this disk or memory: look for their errors with `workhorse doctor`.",
            "该磁盘或内存不可信：请用 `workhorse doctor` 查看其错误。",
        ),
    )
