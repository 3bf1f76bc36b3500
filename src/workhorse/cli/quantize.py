"""`workhorse quantize`: a smaller GGUF file, weighted by what matters, and what it lost."""

import argparse
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from workhorse.cli.arguments import bits, positive
from workhorse.cli.convert import numpy_missing
from workhorse.cli.plan_tables import show_speed
from workhorse.cli.show import print_table
from workhorse.cli.stages import Stages
from workhorse.codec import to_json
from workhorse.config import places
from workhorse.errors import EXIT_GOOD, EXIT_USAGE, AppError
from workhorse.text import Language, Text
from workhorse.units import UNKNOWN, show_bytes

NAMES_SHOWN = 4

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workhorse.models.quantize.job import Ground, Quantised, Wish
    from workhorse.plan.quality import Quality
    from workhorse.records import Estimate


def add_arguments(parser: argparse.ArgumentParser, language: Language) -> None:
    """The options of `quantize`."""
    model = Text(
        "a GGUF file of F16, BF16 or F32 (of a checkpoint: workhorse convert MODEL --to gguf)",
        "F16、BF16 或 F32 的 GGUF 文件（原始模型请先 workhorse convert MODEL --to gguf）",
    )
    parser.add_argument("model", type=Path, metavar="MODEL", help=model.in_language(language))
    for flag, kind, metavar, words in (
        ("--type", str, "TYPE", Text(
            "Q8_0, Q6_K, Q5_K_M, Q4_K_M, Q4_K_S, Q4_0, IQ4_XS or another one (default: Q4_K_M)",
            "Q8_0、Q6_K、Q5_K_M、Q4_K_M、Q4_K_S、Q4_0、IQ4_XS 等（默认 Q4_K_M）")),
        ("--output", Path, "FILE", Text(
            "the new file; left out: beside the original",
            "新文件；省略则放在原文件旁")),
        ("--calibration", Path, "FILE", Text(
            "a text like those that the model will read; left out: ours, of Chinese, English and "
            "code",
            "与实际用途相近的文本；省略则用自带的中英文与代码文本")),
        ("--imatrix", Path, "FILE", Text(
            "an importance matrix that there is already, from llama-imatrix too",
            "使用已有的重要性矩阵（也可来自 llama-imatrix）")),
        ("--chunks", positive, "N", Text(
            "read so many pieces of 512 tokens only (default: the whole text)",
            "只读取这么多段（每段 512 词元；默认读完全文）")),
        ("--held", Path, "FILE", Text(
            "the text on which the loss is measured; left out: ours",
            "用于测量质量损失的文本；省略则用自带文本")),
        ("--bits", bits, "N", Text(
            "allow as few bits a weight on cards before Ampere (default: 4)",
            "在 Ampere 之前的显卡上允许的最低每权重位数（默认 4）")),
        ("--threads", positive, "N", Text(
            "cores to use (default: all)", "使用的核心数（默认全部）")),
    ):  # fmt: skip
        parser.add_argument(flag, type=kind, metavar=metavar, help=words.in_language(language))
    parser.add_argument(
        "--tensor-type",
        action="append",
        default=[],
        metavar="NAME=TYPE",
        help=Text(
            "give tensors with NAME (a regular expression) this type; may be repeated",
            "名称匹配 NAME（正则表达式）的张量使用该类型；可重复",
        ).in_language(language),
    )
    parser.add_argument(
        "--no-imatrix",
        action="store_true",
        help=Text(
            "quantise without an importance matrix: quicker, and worse",
            "不使用重要性矩阵：更快，但质量更差",
        ).in_language(language),
    )
    parser.add_argument(
        "--no-proof",
        action="store_true",
        help=Text("do not measure what was lost", "不测量质量损失").in_language(language),
    )


def run(args: argparse.Namespace) -> int:
    """Quantise, measure, report; what was measured is kept for `plan --compare`."""
    signal.signal(signal.SIGTERM, interrupt)
    try:
        from workhorse.models.quantize.job import quantize
    except ImportError as error:
        raise numpy_missing(error) from error
    try:
        with Stages(args.lang) as stages:
            done = quantize(wish_of(args), ground_here(), stages)
    except KeyboardInterrupt:
        words = Text(
            "stopped; the same command goes on with the importance matrix where it was",
            "已停止；重新运行同一命令会从重要性矩阵的进度继续",
        )
        print(f"workhorse: {words.in_language(args.lang)}", file=sys.stderr)
        raise
    if args.json:
        print(to_json(done))
        return EXIT_GOOD
    print_file(done, args.lang)
    if done.quality is not None:
        print_quality(family_of(done.quality), Path(done.target).parent, args.lang)
    return EXIT_GOOD


def interrupt(_: int, __: FrameType | None) -> None:
    """A SIGTERM ends as a Ctrl-C does: in order."""
    raise KeyboardInterrupt


def wish_of(args: argparse.Namespace) -> "Wish":
    """What the arguments ask for; AppError for what does not go together."""
    from workhorse.models.quantize.choice import override_of
    from workhorse.models.quantize.job import Wish

    for one, other in (("--imatrix", "--no-imatrix"), ("--imatrix", "--calibration"),
                       ("--calibration", "--no-imatrix"), ("--held", "--no-proof"),
                       ("--chunks", "--imatrix"), ("--chunks", "--no-imatrix")):  # fmt: skip
        if all(getattr(args, flag[2:].replace("-", "_")) for flag in (one, other)):
            raise AppError(
                Text(f"{one} and {other} contradict each other.", f"{one} 与 {other} 互相矛盾。"),
                Text("Leave one of them out.", "请去掉其中一个。"),
                exit_code=EXIT_USAGE,
            )
    return Wish(
        model=args.model,
        type=args.type or "Q4_K_M",
        output=args.output,
        overrides=tuple(map(override_of, args.tensor_type)),
        calibration=args.calibration,
        imatrix=args.imatrix,
        weighted=not args.no_imatrix,
        chunks_max=args.chunks,
        held=args.held,
        proof=not args.no_proof,
        least_bits=args.bits,
        threads=args.threads,
    )


def ground_here() -> "Ground":
    """Our data folder, what the engine's process needs, and which cards are here."""
    from workhorse.engines.openmp import ensure_openmp
    from workhorse.machine.probe import probe
    from workhorse.models.quantize.job import Ground

    # Without it a barrier spins for as long as another process has the core: ten times slower.
    environment = {"GOMP_SPINCOUNT": "1000"}
    if folder := ensure_openmp():
        environment["LD_LIBRARY_PATH"] = str(folder)
    cards = probe(measure_s=0).gpus
    found = [card.compute_capability for card in cards if card.compute_capability is not None]
    return Ground(places().data, environment, tuple(found))


def family_of(quality: "Quality") -> "Sequence[Quality]":
    """What was measured of quants of the same file on the same text, largest first."""
    from workhorse.models.quantize.quality_store import FILE, QualityStore

    rows = QualityStore(places().data / FILE).all()
    mine = (quality.parent_fingerprint, quality.text_sha256)
    family = [row for row in rows if (row.parent_fingerprint, row.text_sha256) == mine]
    return sorted(family, key=lambda row: -row.n_bytes)


def print_file(done: "Quantised", language: Language) -> None:
    """Where the file is, how large, and what it is made of."""
    types = ", ".join(f"{count} × {name}" for name, count in done.types.items())
    weighted = UNKNOWN
    if done.imatrix is not None:
        weighted = f"{done.imatrix} ({done.imatrix_chunks} × 512)"
    if bare := done.without_importance:
        names = ", ".join(bare[:NAMES_SHOWN]) + (" …" if len(bare) > NAMES_SHOWN else "")
        weighted += Text(f"; not in it: {names}", f"；其中没有：{names}").in_language(language)
    rows = [
        (Text("file", "文件"), done.target),
        (Text("size", "大小"), f"{show_bytes(done.n_bytes)}, {done.bits_a_weight:.2f} bit"),
        (Text("tensors", "张量"), types),
        (Text("importance matrix", "重要性矩阵"), weighted),
    ]
    print_table(
        Text(f"Quantised: {done.quantisation}", f"量化完成：{done.quantisation}"),
        (Text("what", "项目"), Text("value", "值")),
        [(label.in_language(language), value) for label, value in rows],
        language,
    )


def print_quality(rows: "Sequence[Quality]", folder: Path, language: Language) -> None:
    """The parent and each of its quants: size, what was lost, how fast it will be here."""
    speeds = predicted([folder / rows[0].parent, *(folder / row.name for row in rows)])
    first = rows[0]
    lines = [
        (
            first.parent, show_bytes(first.parent_n_bytes), f"{first.parent_perplexity:.5g}",
            UNKNOWN, UNKNOWN, UNKNOWN, show_speed(speeds[0]),
        )
    ]  # fmt: skip
    for row, speed in zip(rows, speeds[1:], strict=True):
        lines.append((
            f"{row.name} ({row.quantisation})", show_bytes(row.n_bytes),
            f"{row.perplexity:.5g} ({row.perplexity_gain:+.3g})", f"{row.kl_mean:.5f}",
            f"{row.kl_99:.4f}", f"{row.same_top:.1%}", show_speed(speed),
        ))  # fmt: skip
    print_table(
        Text(
            f"What was lost, over {first.tokens} tokens of {first.text}",
            f"质量损失（{first.text} 的 {first.tokens} 个词元）",
        ),
        (
            Text("file", "文件"), Text("size", "大小"), Text("perplexity", "困惑度"),
            Text("KL", "KL 散度"), Text("KL, 99 % below", "KL 99 % 分位"),
            Text("same first choice", "首选一致"), Text("decode, predicted", "解码速度（预测）"),
        ),
        lines,
        language,
    )  # fmt: skip


def predicted(paths: "Sequence[Path]") -> "list[Estimate | None]":
    """The decode speed that a plan promises of each file here; None for those that are not."""
    from workhorse.models.gguf import read_gguf
    from workhorse.plan.wish import Wish
    from workhorse.up.decide import Ask, look_around

    ground = look_around(Ask(), places())
    found: list[Estimate | None] = []
    for path in paths:
        try:
            plan = ground.decide(read_gguf(path), Wish()).plan
        except AppError:
            found.append(None)
            continue
        found.append(None if plan.verdict.blocked else plan.forecast.decode_tokens_per_s)
    return found
