"""`workhorse convert --to gguf`, and the proof of either conversion by logits."""

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from workhorse.cli.show import print_table, print_verdict
from workhorse.cli.stages import Stages
from workhorse.codec import to_json
from workhorse.config import places
from workhorse.errors import EXIT_GOOD, EXIT_NO
from workhorse.records import Verdict
from workhorse.text import Language, Text
from workhorse.units import show_bytes

if TYPE_CHECKING:
    from workhorse.models.gguf_maker.job import Converter, GgufType, Made
    from workhorse.models.quantize.proof import Proof


def run_to_gguf(args: argparse.Namespace) -> int:
    """Convert to GGUF, prove it when asked, report; exit 3 when the proof fails."""
    from workhorse.models.gguf_maker.job import make_gguf, prepare

    with Stages(args.lang) as stages:
        order = prepare(args.model, args.type or "bf16", args.output)
        made = make_gguf(order, ready_converter(stages), stages)
        proof = None
        if args.prove and made.type != "bf16":
            proof = prove_files(args, Path(made.target), stages)
    if args.json:
        print(to_json({"made": made, "proof": proof}))
    else:
        print_made(made, args.lang)
        print_proof(proof, args.lang)
        if args.prove and proof is None:
            words = Text(
                "A BF16 file holds the checkpoint's own values: there is nothing to compare.",
                "BF16 文件保存的就是原始数值，无需对比。",
            )
            print(words.in_language(args.lang))
    return EXIT_GOOD if proof is None or proof.holds else EXIT_NO


def ready_converter(stages: Stages) -> "Converter":
    """llama.cpp's converter, made first when it is not there."""
    from workhorse.engines.supply.converter import converter
    from workhorse.knowledge.engine_sources import llamacpp_source

    return converter(places().tools, llamacpp_source(), stages)


def prove_files(args: argparse.Namespace, candidate: Path, stages: Stages) -> "Proof":
    """A GGUF file beside the original checkpoint as BF16, which lies beside it for so long."""
    from workhorse.cli.quantize import ground_here
    from workhorse.models.quantize.proof import prove_alike

    place = Path(tempfile.mkdtemp(prefix=f".{candidate.name}.prove-", dir=candidate.parent))
    try:
        original = gguf_of(args.model, "bf16", place / "original.gguf", stages)
        threads = args.threads or len(os.sched_getaffinity(0))
        return prove_alike(original, candidate, ground_here(), stages, threads)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def prove_checkpoint(args: argparse.Namespace, converted: Path) -> "Proof":
    """A converted checkpoint beside the original, both as GGUF for so long."""
    with Stages(args.lang) as stages:
        place = Path(tempfile.mkdtemp(prefix=f".{converted.name}.prove-", dir=converted.parent))
        try:
            candidate = gguf_of(str(converted), "f16", place / "converted.gguf", stages)
            return prove_files(args, candidate, stages)
        finally:
            shutil.rmtree(place, ignore_errors=True)


def gguf_of(model: str, kind: "GgufType", target: Path, stages: Stages) -> Path:
    """A checkpoint as a GGUF file at `target`."""
    from workhorse.models.gguf_maker.job import make_gguf, prepare

    make_gguf(prepare(model, kind, target), ready_converter(stages), stages)
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
