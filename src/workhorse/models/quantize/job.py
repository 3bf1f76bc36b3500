"""A quantised file from beginning to end: importance matrix, file, proof of its quality."""

import hashlib
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from workhorse.errors import EXIT_USAGE, AppError
from workhorse.models.gguf import read_gguf, read_header_of
from workhorse.models.part_file import local_errors, locked_file, sync_folder
from workhorse.models.parts import part_paths, plain_name
from workhorse.models.quantize.calibration import (
    CALIBRATION,
    HELD,
    Corpus,
    shipped,
    too_short,
    users_text,
)
from workhorse.models.quantize.choice import (
    Override,
    computes_no_numbers,
    is_a_folder,
    mix_named,
    refuse_few_bits,
    size_of,
    tensors_of,
    too_little_space,
)
from workhorse.models.quantize.imatrix_file import Imatrix, read_imatrix
from workhorse.models.quantize.jobs import (
    CompareDone,
    CompareJob,
    ImatrixJob,
    Job,
    QuantiseDone,
    QuantiseJob,
    Written,
)
from workhorse.models.quantize.quality_store import FILE, QualityStore, fingerprint
from workhorse.models.quantize.work import do, needed
from workhorse.models.refusals import shown
from workhorse.plan.quality import Quality
from workhorse.records import Model, Tensor
from workhorse.tell import Teller
from workhorse.text import Text
from workhorse.units import MIB

CHUNK_TOKENS = 512  # as llama-imatrix and llama-perplexity do
SAVE_CHUNKS = 8  # a killed run loses so many at most
HELD_CHUNKS = 32
HEADER_SPARE_BYTES = 4 * MIB
_WHOLE_NAME = re.compile(r"[-._](?:f16|bf16|f32|fp16)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user asked for; `None`: we decide."""

    model: Path
    type: str = "Q4_K_M"
    output: Path | None = None
    overrides: tuple[Override, ...] = ()
    calibration: Path | None = None
    imatrix: Path | None = None
    weighted: bool = True
    chunks_max: int | None = None
    held: Path | None = None
    proof: bool = True
    least_bits: float | None = None
    threads: int | None = None


@dataclass(frozen=True, slots=True)
class Ground:
    """What is here: our data folder, what the engine's process needs, the cards."""

    data: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    capabilities: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Quantised:
    """A finished file."""

    source: str
    target: str
    quantisation: str
    n_bytes: int
    bits_a_weight: float
    types: dict[str, int]  # how many tensors have which type
    imatrix: str | None
    imatrix_chunks: int | None
    resumed_chunks: int
    without_importance: tuple[str, ...]
    quality: Quality | None


def quantize(wish: Wish, ground: Ground, tell: Teller) -> Quantised:
    """Make the file, and measure what it lost; raises AppError.

    The target appears at once, when it is whole. A killed run leaves `TARGET.part`, which the next
    one writes anew, and what it had of the importance matrix, from which the next one goes on.
    """
    mix = mix_named(wish.type)
    refuse_few_bits(mix, wish.least_bits, ground.capabilities)
    if wish.model.is_dir():
        raise is_a_folder(shown(str(wish.model)))
    model = read_gguf(wish.model)
    sources = part_paths(wish.model, read_header_of(wish.model))
    target = (wish.output or beside(Path(model.path), mix.name)).absolute()
    refuse_taken(target, sources)
    tensors = tensors_of(model, mix, wish.overrides, weighted=wish.weighted)
    check_space(target, size_of(tensors) + model.file_bytes - model.weight_bytes)
    corpus, held = corpora(wish)
    threads = wish.threads or len(os.sched_getaffinity(0))
    matrix, resumed = None, 0
    calibrated = None
    if corpus is not None:
        matrix, resumed = importance(model, corpus, wish, ground, tell, threads)
        calibrated = corpus.name
    elif wish.imatrix is not None:
        matrix, calibrated = wish.imatrix, wish.imatrix.name
    known = read_imatrix(matrix) if matrix else None
    if known is not None:
        check_fits(known, model, matrix or target)
    job = QuantiseJob(
        sources=tuple(map(str, sources)),
        target=str(part_of(target)),
        file_type=mix.file_type,
        tensors=tuple(Written(tensor.name, tensor.type) for tensor in tensors),
        imatrix=str(matrix) if matrix else None,
        dataset=corpus.name if corpus else None,
        threads=threads,
    )
    done = make_file(job, target, ground, tell)
    made = read_gguf(target)
    quality = None
    if held is not None:
        quality = prove(model, made, mix.name, held, calibrated, ground, tell, threads)
    return Quantised(
        source=model.path,
        target=str(target),
        quantisation=mix.name,
        n_bytes=done.n_bytes,
        bits_a_weight=made.weight_bytes * 8 / max(made.parameters, 1),
        types=counted(tensors),
        imatrix=str(matrix) if matrix else None,
        imatrix_chunks=known.chunks if known else None,
        resumed_chunks=resumed,
        without_importance=done.without_importance,
        quality=quality,
    )


def corpora(wish: Wish) -> tuple[Corpus | None, Corpus | None]:
    """The text to calibrate on and the one to prove on, as far as they are wanted; AppError."""
    corpus = held = None
    if wish.weighted and wish.imatrix is None:
        corpus = users_text(wish.calibration) if wish.calibration else shipped(CALIBRATION)
    if wish.proof:
        held = users_text(wish.held) if wish.held else shipped(HELD)
    return corpus, held


def beside(source: Path, quantisation: str) -> Path:
    """Beside the source, `-Q4_K_M` in place of `-F16` in its name."""
    stem = _WHOLE_NAME.sub("", plain_name(source))
    return source.with_name(f"{stem}-{quantisation}.gguf")


def part_of(target: Path) -> Path:
    """Where a file is being made."""
    return target.with_name(target.name + ".part")


def counted(tensors: tuple[Tensor, ...]) -> dict[str, int]:
    """How many tensors have which type, most first."""
    found: dict[str, int] = {}
    for tensor in tensors:
        found[tensor.type] = found.get(tensor.type, 0) + 1
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def refuse_taken(target: Path, sources: list[Path]) -> None:
    """AppError when something has the target's name, or no folder is there for it."""
    if any(source.resolve() == target.resolve() for source in sources) or os.path.lexists(target):
        raise AppError(
            Text(f"{shown(str(target))} is there already.", f"{shown(str(target))} 已存在。"),
            Text(
                "Remove it, or choose another name with --output.",
                "请先删除它，或用 --output 另取名称。",
            ),
            exit_code=EXIT_USAGE,
        )
    if not target.parent.is_dir():
        raise AppError(
            Text(
                f"There is no folder {shown(str(target.parent))}.",
                f"目录 {shown(str(target.parent))} 不存在。",
            ),
            Text("Make it, or choose another one.", "请先创建该目录，或另选目录。"),
            exit_code=EXIT_USAGE,
        )


def check_space(target: Path, n_bytes: int) -> None:
    """AppError when the disk cannot take the file."""
    needed = n_bytes + HEADER_SPARE_BYTES
    with local_errors(target):
        free = shutil.disk_usage(target.parent).free
    if free < needed:
        raise too_little_space(shown(str(target.parent)), free, needed)


def importance(
    model: Model, corpus: Corpus, wish: Wish, ground: Ground, tell: Teller, threads: int
) -> tuple[Path, int]:
    """The importance matrix of this model and text, from the cache as far as it is there."""
    folder = ground.data / "imatrix"
    mark = fingerprint(Path(model.path)) + corpus.sha256 + str(CHUNK_TOKENS)
    name = f"{Path(model.path).stem[:80]}-{hashlib.sha256(mark.encode()).hexdigest()[:16]}.gguf"
    target = folder / name
    with local_errors(target):
        folder.mkdir(parents=True, exist_ok=True)
    if target.exists():
        try:
            read_imatrix(target)
        except AppError:
            target.unlink()  # a disk's fault: it is made anew
    tell.stage(Text(f"reading {corpus.name}: what matters", f"读取 {corpus.name}：统计重要性"))
    job = ImatrixJob(
        model=model.path,
        text=str(corpus.path),
        target=str(target),
        chunk_tokens=CHUNK_TOKENS,
        chunks_max=wish.chunks_max,
        save_chunks=SAVE_CHUNKS,
        threads=threads,
    )
    answer = do(Job(imatrix=job), tell.progress, ground.environment, target)
    if answer.too_short_tokens is not None:
        raise too_short(corpus, answer.too_short_tokens, CHUNK_TOKENS)
    return target, needed(answer.imatrix).resumed_chunks


def check_fits(imatrix: Imatrix, model: Model, path: Path) -> None:
    """AppError when an importance matrix is of another model."""
    shapes = {tensor.name: tensor.shape for tensor in model.tensors}
    wrong = next(
        (
            name
            for name, found in imatrix.of.items()
            if name in shapes and found.sums.shape != (_experts(shapes[name]), shapes[name][0])
        ),
        None,
    )
    if wrong is None and any(name in shapes for name in imatrix.of):
        return
    named = f": {wrong}" if wrong else ""
    raise AppError(
        Text(
            f"{shown(str(path))} is the importance matrix of another model{named}.",
            f"{shown(str(path))} 是其他模型的重要性矩阵{named}。",
        ),
        Text("Leave --imatrix out to have one made.", "请去掉 --imatrix 以自动生成。"),
        exit_code=EXIT_USAGE,
    )


def _experts(shape: tuple[int, ...]) -> int:
    return shape[2] if len(shape) > 2 else 1


def make_file(job: QuantiseJob, target: Path, ground: Ground, tell: Teller) -> QuantiseDone:
    """Have the file written beside its final name, which it gets when it is whole."""
    part = part_of(target)

    def refuse(_: int) -> None:
        raise AppError(
            Text(
                f"Another process is making {shown(str(target))}.",
                f"另一个进程正在生成 {shown(str(target))}。",
            ),
            Text("Wait for it, or choose another --output.", "请等待其完成，或另选 --output。"),
        )

    with local_errors(part):
        handle = locked_file(part, refuse)
    try:
        tell.stage(Text("quantising", "量化"))
        answer = do(Job(quantise=job), tell.progress, ground.environment, target)
        read_gguf(part)
        with local_errors(target):
            part.replace(target)
            sync_folder(target.parent)
    finally:
        part.unlink(missing_ok=True)
        os.close(handle)
    return needed(answer.quantised)


def compare(
    parent: Path,
    candidate: Path,
    texts: tuple[str, ...],
    ground: Ground,
    tell: Teller,
    threads: int,
    greedy_tokens: int = 0,
) -> CompareDone | int:
    """A candidate beside its parent; the tokens of the texts when they are too few.

    AppError when one of the two computes infinity or NaN.
    """
    job = CompareJob(
        parent=str(parent),
        candidates=(str(candidate),),
        texts=texts,
        chunk_tokens=CHUNK_TOKENS,
        judged_from=CHUNK_TOKENS // 2,
        chunks_max=HELD_CHUNKS,
        greedy_tokens=greedy_tokens,
        threads=threads,
    )
    answer = do(Job(compare=job), tell.progress, ground.environment, candidate)
    if answer.too_short_tokens is not None:
        return answer.too_short_tokens
    if answer.no_numbers is not None:
        raise computes_no_numbers(converted=answer.no_numbers == str(candidate))
    return needed(answer.compared)


def prove(
    parent: Model,
    made: Model,
    quantisation: str,
    held: Corpus,
    calibrated_on: str | None,
    ground: Ground,
    tell: Teller,
    threads: int,
) -> Quality:
    """Measure the file beside its parent on a text that neither has seen, and keep the result."""
    tell.stage(Text("measuring what was lost", "测量质量损失"))
    text = held.path.read_text("utf-8", errors="replace")
    found = compare(Path(parent.path), Path(made.path), (text,), ground, tell, threads)
    if isinstance(found, int):
        raise too_short(held, found, CHUNK_TOKENS)
    likeness = found.likenesses[0]
    quality = Quality(
        fingerprint=fingerprint(Path(made.path)),
        parent_fingerprint=fingerprint(Path(parent.path)),
        name=Path(made.path).name,
        parent=Path(parent.path).name,
        quantisation=quantisation,
        n_bytes=made.file_bytes,
        parent_n_bytes=parent.file_bytes,
        tokens=likeness.tokens,
        text=held.name,
        text_sha256=held.sha256,
        parent_perplexity=likeness.parent_perplexity,
        perplexity=likeness.perplexity,
        kl_mean=likeness.kl_mean,
        kl_99=likeness.kl_99,
        same_top=likeness.same_top,
        calibrated_on=calibrated_on,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    QualityStore(ground.data / FILE).add(quality)
    return quality
