"""`workhorse convert`: a BF16 checkpoint as FP16, with a report of what that does to it."""

import argparse
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from workhorse.cli.arguments import positive
from workhorse.cli.progress import LateBar
from workhorse.cli.show import print_table, print_verdict
from workhorse.codec import to_json
from workhorse.errors import EXIT_GOOD, AppError
from workhorse.text import Language, Text
from workhorse.units import show_bandwidth, show_bytes, show_duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workhorse.models.convert.report import Conversion, TensorRange

CONVERTING = Text("converting and reading back", "转换并回读校验")
ROWS_SHOWN = 8


def add_arguments(parser: argparse.ArgumentParser, language: Language) -> None:
    """The options of `convert`."""
    model = Text(
        "the folder of a checkpoint (safetensors or pytorch_model.bin), or its index or single "
        "file",
        "检查点目录（safetensors 或 pytorch_model.bin），或其中的索引或单个文件",
    )
    parser.add_argument("model", metavar="MODEL", help=model.in_language(language))
    output = Text(
        "the folder of the converted model; left out: beside the original, its name with -FP16",
        "转换后模型的目录；省略则放在原模型旁，名称加 -FP16",
    )
    parser.add_argument("--output", type=Path, metavar="FOLDER", help=output.in_language(language))
    overflow = Text(
        "what to do with tensors that hold values above 65504: stop and name them, keep these "
        "tensors exact as F32, or make such values ±65504 (default: fail)",
        "张量含有超过 65504 的值时：停止并列出、以 F32 精确保存该张量，或截断为 ±65504"
        "（默认 fail）",
    )
    parser.add_argument(
        "--on-overflow",
        choices=("fail", "keep-f32", "clamp"),
        default="fail",
        help=overflow.in_language(language),
    )
    threads = Text("cores to use (default: all, 16 at most)", "使用的核心数（默认全部，最多 16）")
    parser.add_argument("--threads", type=positive, metavar="N", help=threads.in_language(language))


def run(args: argparse.Namespace) -> int:
    """Convert, verify, report; the report is also stored beside the model."""
    signal.signal(signal.SIGTERM, interrupt)
    try:
        with LateBar(CONVERTING, args.lang) as bar:
            done = converted(args, bar)
    except KeyboardInterrupt:
        words = Text(
            "stopped; run the same command again to go on from the finished files",
            "已停止；重新运行同一命令可从已完成的文件继续",
        )
        print(f"workhorse: {words.in_language(args.lang)}", file=sys.stderr)
        raise
    if args.json:
        print(to_json(done))
        return EXIT_GOOD
    print_ranges(done, args.lang)
    print_files(done, args.lang)
    sys.stdout.flush()
    print_verdict(done.verdict, args.lang)
    return EXIT_GOOD


def interrupt(_: int, __: FrameType | None) -> None:
    """A SIGTERM ends as a Ctrl-C does: in order."""
    raise KeyboardInterrupt


def converted(args: argparse.Namespace, bar: LateBar) -> "Conversion":
    """The conversion that the arguments ask for; AppError where NumPy does not load."""
    try:
        from workhorse.models.convert.job import Wish, convert
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] != "numpy":
            raise
        raise AppError(
            Text(f"NumPy does not load: {error}.", f"无法加载 NumPy：{error}。"),
            Text(
                f"Install it: {sys.executable} -m pip install 'numpy>=2,<3'",
                f"请安装：{sys.executable} -m pip install 'numpy>=2,<3'",
            ),
        ) from error
    wish = Wish(args.model, args.output, args.on_overflow, args.threads)
    return convert(wish, bar.step)


def print_ranges(done: "Conversion", language: Language) -> None:
    """The tensors that a reader must not miss first, then those that lose most; and the sum."""
    ranges = done.ranges
    head = (
        Text("tensor", "张量"),
        Text("as", "类型"),
        Text("max", "最大值"),
        Text("overflow", "溢出"),
        Text("to zero", "变为零"),
        Text("subnormal", "次正规"),
        Text("error", "误差"),
        Text("NaN", "NaN"),
        Text("inf", "无穷"),
    )
    worst = sorted(ranges, key=_loss, reverse=True)
    rows = [_row(found) for found in worst[:ROWS_SHOWN]]
    rows.append(_sum(ranges, language))
    title = Text(f"Range of {len(ranges)} BF16 tensors", f"{len(ranges)} 个 BF16 张量的数值范围")
    print_table(title, head, rows, language)
    if len(ranges) > ROWS_SHOWN:
        more = Text(
            f"The {ROWS_SHOWN} that lose most; all are in conversion.json beside the model.",
            f"仅列出损失最大的 {ROWS_SHOWN} 个；全部见模型目录中的 conversion.json。",
        )
        print(more.in_language(language))


def _loss(found: "TensorRange") -> tuple[bool, int, float, float]:
    lost = found.became_zero / max(found.values, 1)
    return found.wants_attention, found.overflowed, lost, found.largest_relative_error


def _row(found: "TensorRange") -> tuple[str, ...]:
    return (found.name, found.stored_as, *_figures([found]))


def _sum(ranges: "Sequence[TensorRange]", language: Language) -> tuple[str, ...]:
    return (Text("all", "合计").in_language(language), "", *_figures(ranges))


def _figures(ranges: "Sequence[TensorRange]") -> tuple[str, ...]:
    values = sum(found.values for found in ranges)
    return (
        f"{max((found.largest_magnitude for found in ranges), default=0):.4g}",
        _count(sum(found.overflowed for found in ranges), values),
        _count(sum(found.became_zero for found in ranges), values),
        _count(sum(found.subnormal for found in ranges), values),
        f"{max((found.largest_relative_error for found in ranges), default=0):.1%}",
        str(sum(found.nan for found in ranges)),
        str(sum(found.infinite for found in ranges)),
    )


def _count(count: int, of: int) -> str:
    return f"{count / of:.2%}" if count * 1000 > of else str(count)


def print_files(done: "Conversion", language: Language) -> None:
    """Where it is, how large, how fast, and what was checked."""
    blocks = sum(shard.verified_blocks for shard in done.shards)
    copied = sum(shard.copied_tensors for shard in done.shards)
    speed = done.n_bytes / done.duration_s if done.duration_s else None
    resumed = Text(
        f"; {done.resumed_files} from an earlier run", f"；其中 {done.resumed_files} 个来自上次运行"
    )
    files = f"{len(done.shards)}" + (resumed.in_language(language) if done.resumed_files else "")
    took = show_duration(done.duration_s)
    if not done.resumed_files:
        took += f" ({show_bandwidth(speed)})"
    rows = [
        (Text("folder", "目录"), done.target),
        (Text("files of weights", "权重文件"), f"{files}, {show_bytes(done.n_bytes)}"),
        (Text("read back and found good", "回读校验通过"), f"{blocks} × ≤ 2 MiB"),
        (Text("tensors of other types, unchanged", "其他类型的张量（原样保留）"), str(copied)),
        (Text("other files carried along", "一并复制的其他文件"), str(len(done.carried))),
        (Text("took", "用时"), took),
    ]
    print_table(
        Text("Converted", "转换完成"),
        (Text("what", "项目"), Text("value", "值")),
        [(label.in_language(language), value) for label, value in rows],
        language,
    )
