"""`workhorse convert`: a BF16 checkpoint as FP16 with a report of what that does, or as GGUF."""

import argparse
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from workhorse.cli.arguments import positive
from workhorse.cli.convert_gguf import print_proof, prove_checkpoint, run_to_gguf
from workhorse.cli.progress import LateBar
from workhorse.cli.show import print_table, print_verdict
from workhorse.codec import to_json
from workhorse.errors import EXIT_GOOD, EXIT_NO, EXIT_USAGE, AppError
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
    to = Text(
        "what to make: a checkpoint of FP16, or a GGUF file by llama.cpp's own converter, which is "
        "fetched first with PyTorch (default: fp16)",
        "目标格式：FP16 检查点，或用 llama.cpp 自带的转换程序生成 GGUF 文件（首次会下载 PyTorch）；"
        "默认 fp16",
    )
    parser.add_argument(
        "--to", choices=("fp16", "gguf"), default="fp16", help=to.in_language(language)
    )
    kind = Text(
        "the weights of a GGUF file (default: bf16, of an FP16 checkpoint f16)",
        "GGUF 文件的权重类型（默认 bf16；FP16 检查点默认 f16）",
    )
    parser.add_argument("--type", choices=("bf16", "f16", "q8_0"), help=kind.in_language(language))
    output = Text(
        "the folder or GGUF file to make; left out: beside the original, its name with -FP16 or "
        "-BF16.gguf",
        "要生成的目录或 GGUF 文件；省略则放在原模型旁，名称加 -FP16 或 -BF16.gguf",
    )
    parser.add_argument("--output", type=Path, metavar="PATH", help=output.in_language(language))
    overflow = Text(
        "what to do with tensors that hold values above 65504: stop and name them, keep these "
        "tensors exact as F32, or make such values ±65504 (default: fail)",
        "张量含有超过 65504 的值时：停止并列出、以 F32 精确保存该张量，或截断为 ±65504"
        "（默认 fail）",
    )
    parser.add_argument(
        "--on-overflow",
        choices=("fail", "keep-f32", "clamp"),
        help=overflow.in_language(language),
    )
    prove = Text(
        "compare the new model with the original through the engine, on a fixed set of prompts",
        "用固定的一组提示，通过引擎将新模型与原模型对比",
    )
    parser.add_argument("--prove", action="store_true", help=prove.in_language(language))
    threads = Text("cores to use (default: all, 16 at most)", "使用的核心数（默认全部，最多 16）")
    parser.add_argument("--threads", type=positive, metavar="N", help=threads.in_language(language))


def run(args: argparse.Namespace) -> int:
    """Convert, verify, report; the report is also stored beside the model."""
    signal.signal(signal.SIGTERM, interrupt)
    refuse_mixed(args)
    if args.to == "gguf":
        try:
            return run_to_gguf(args)
        except ImportError as error:
            raise numpy_missing(error) from error
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
    if not args.json:
        print_report(done, args.lang)
    try:
        proof = prove_checkpoint(args, done) if args.prove else None
    except AppError as error:
        if args.json:
            print(to_json({"conversion": done, "proof": None}))
        raise unproven(error, done) from error
    except KeyboardInterrupt:
        words = Text(
            "stopped; the converted model stays, and the same command compares it anew",
            "已停止；转换后的模型保留，重新运行同一命令会再次对比",
        )
        print(f"workhorse: {words.in_language(args.lang)}", file=sys.stderr)
        raise
    if args.json:
        print(to_json({"conversion": done, "proof": proof} if args.prove else done))
    else:
        print_proof(proof, args.lang)
    return EXIT_GOOD if proof is None or proof.holds else EXIT_NO


def print_report(done: "Conversion", language: Language) -> None:
    """What was found, what was made, what that means."""
    print_ranges(done, language)
    print_files(done, language)
    sys.stdout.flush()
    print_verdict(done.verdict, language)


def unproven(error: AppError, done: "Conversion") -> AppError:
    """The proof did not come about; the conversion is there."""
    return AppError(
        error.what,
        Text(
            f"{error.next_step.en} {done.target} stays; the same command compares it again.",
            f"{error.next_step.zh} {done.target} 保留；重新运行同一命令会再次对比。",
        ),
        exit_code=error.exit_code,
    )


def refuse_mixed(args: argparse.Namespace) -> None:
    """AppError for options that mean nothing together."""
    for flag, given, right in (
        ("--type", args.type is not None, "gguf"),
        ("--on-overflow", args.on_overflow is not None, "fp16"),
    ):
        if given and args.to != right:
            raise AppError(
                Text(
                    f"{flag} goes with --to {right}, not with --to {args.to}.",
                    f"{flag} 用于 --to {right}，不能用于 --to {args.to}。",
                ),
                Text("Leave one of them out.", "请去掉其中一个。"),
                exit_code=EXIT_USAGE,
            )


def interrupt(_: int, __: FrameType | None) -> None:
    """A SIGTERM ends as a Ctrl-C does: in order."""
    raise KeyboardInterrupt


def converted(args: argparse.Namespace, bar: LateBar) -> "Conversion":
    """The conversion that the arguments ask for; AppError where NumPy does not load."""
    try:
        from workhorse.models.convert.job import Wish, convert, converted_before
    except ImportError as error:
        raise numpy_missing(error) from error
    wish = Wish(args.model, args.output, args.on_overflow or "fail", args.threads)
    # The proof was broken off: the same command goes on with it.
    earlier = converted_before(wish) if args.prove else None
    return earlier or convert(wish, bar.step)


def numpy_missing(error: ImportError) -> AppError:
    """What to say where NumPy does not load; any other failed import is raised again."""
    if error.name is None or error.name.partition(".")[0] != "numpy":
        raise error
    return AppError(
        Text(f"NumPy does not load: {error}.", f"无法加载 NumPy：{error}。"),
        Text(
            f"Install it: {sys.executable} -m pip install 'numpy>=2,<3'",
            f"请安装：{sys.executable} -m pip install 'numpy>=2,<3'",
        ),
    )


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
