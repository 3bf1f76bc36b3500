"""`workhorse convert --to gguf`, and the proof of either conversion by logits."""

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from workhorse.cli.show import print_table, print_verdict
from workhorse.cli.stages import Stages
from workhorse.codec import to_json
from workhorse.config import places
from workhorse.errors import EXIT_GOOD, EXIT_NO, AppError
from workhorse.records import Verdict
from workhorse.text import Language, Text
from workhorse.units import show_bytes

if TYPE_CHECKING:
    from workhorse.models.convert.report import Conversion
    from workhorse.models.gguf_maker.job import Converter, GgufType, Made
    from workhorse.models.quantize.proof import Proof


def run_to_gguf(args: argparse.Namespace) -> int:
    """Convert to GGUF, prove it when asked, report; exit 3 when the proof fails."""
    from workhorse.models.gguf_maker.job import make_gguf, prepare

    proof = None
    with Stages(args.lang) as stages:
        order = prepare(args.model, args.type, args.output)
        made = make_gguf(order, ready_converter(stages), stages)
        if not args.json:
            print_made(made, args.lang)
        try:
            if args.prove:
                target = Path(made.target)
                proof = prove_file(args, order.folder, target, made.type, target, stages)
        except AppError:
            if args.json:
                print(to_json({"made": made, "proof": None}))
            raise
    if args.json:
        print(to_json({"made": made, "proof": proof}))
    else:
        print_proof(proof, args.lang)
        if args.prove and proof is None:
            kind = made.type.upper()
            words = Text(
                f"A {kind} file holds this checkpoint's own values: there is nothing to compare.",
                f"{kind} 文件保存的就是该检查点的原始数值，无需对比。",
            )
            print(words.in_language(args.lang))
    return EXIT_GOOD if proof is None or proof.holds else EXIT_NO


def ready_converter(stages: Stages) -> "Converter":
    """llama.cpp's converter, made first when it is not there."""
    from workhorse.engines.supply.converter import converter
    from workhorse.knowledge.engine_sources import llamacpp_source

    return converter(places().tools, llamacpp_source(), stages)


def prove_file(
    args: argparse.Namespace, folder: Path, file: Path, kind: str, made: Path, stages: Stages
) -> "Proof | None":
    """A GGUF file of the checkpoint `folder` beside what that was published as.

    None: the file has the very values of it. `made` is what the file stands for.
    """
    from workhorse.cli.quantize import ground_here
    from workhorse.models.gguf_maker.job import workplace
    from workhorse.models.gguf_maker.origin import origin_of
    from workhorse.models.quantize.proof import prove_alike

    origin = origin_of(folder)
    if origin.folder == folder and kind in (origin.type, "f32"):
        return None
    # A name that is always the same: what a killed run leaves of it the next one takes away.
    with workplace(made.with_name(f".{made.name}.proof")) as place:
        original = gguf_of(origin.folder, origin.type, place / "original.gguf", stages)
        threads = args.threads or len(os.sched_getaffinity(0))
        return prove_alike(original, file, origin, made, ground_here(), stages, threads)


def prove_checkpoint(args: argparse.Namespace, done: "Conversion") -> "Proof | None":
    """A converted checkpoint beside its original, both as GGUF for so long."""
    from workhorse.models.gguf_maker.job import workplace

    made = Path(done.target)
    # F16 would make infinity of what was kept as F32.
    kind: GgufType = "f32" if any(found.stored_as == "F32" for found in done.ranges) else "f16"
    with Stages(args.lang) as stages, workplace(made.with_name(f".{made.name}.gguf")) as place:
        file = gguf_of(made, kind, place / "converted.gguf", stages)
        return prove_file(args, made, file, kind, made, stages)


def gguf_of(folder: Path, kind: "GgufType", target: Path, stages: Stages) -> Path:
    """A checkpoint as a GGUF file at `target`."""
    from workhorse.models.gguf_maker.job import make_gguf, prepare

    make_gguf(prepare(str(folder), kind, target), ready_converter(stages), stages)
    return target


def print_made(made: "Made", language: Language) -> None:
    """Where the file is and what made it."""
    rows = [
        (Text("file", "文件"), made.target),
        (Text("size", "大小"), f"{show_bytes(made.n_bytes)}, {made.type.upper()}"),
        (Text("tensors", "张量"), f"{made.tensors}, {made.architecture}"),
        (Text("converter", "转换程序"), f"llama.cpp {made.converter}"),
    ]
    print_table(
        Text("Converted", "转换完成"),
        (Text("what", "项目"), Text("value", "值")),
        [(label.in_language(language), value) for label, value in rows],
        language,
    )


def print_proof(proof: "Proof | None", language: Language) -> None:
    """What the proof means."""
    if proof is None:
        return
    from workhorse.models.quantize.proof import finding_of

    sys.stdout.flush()
    print_verdict(Verdict((finding_of(proof),)), language)
