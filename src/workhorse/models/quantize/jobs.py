"""What the child process is told and what it answers: one JSON document each way. Pure."""

from dataclasses import dataclass

from workhorse.models.quantize.likeness import Likeness


@dataclass(frozen=True, slots=True)
class Written:
    """One tensor to be written: its type, in the order of the file."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class QuantiseJob:
    """Write `target` from the GGUF `sources` (the parts of one model)."""

    sources: tuple[str, ...]
    target: str
    file_type: int  # llama_ftype
    tensors: tuple[Written, ...]
    imatrix: str | None
    dataset: str | None  # what the matrix was made from, as far as we know
    threads: int


@dataclass(frozen=True, slots=True)
class ImatrixJob:
    """Sum up into `target` what goes into each weight of `model` while it reads `text`.

    A `target` that is there already is gone on from.
    """

    model: str
    text: str  # path
    target: str
    chunk_tokens: int
    chunks_max: int | None
    save_chunks: int  # after so many
    threads: int


@dataclass(frozen=True, slots=True)
class CompareJob:
    """Compare the candidates with the parent on `texts`, chunk by chunk, each chunk from nothing.

    `judged_from`: the place in a chunk from which tokens count; those before it are context.
    `greedy_tokens`: so many are written after the first text by each, to compare them.
    """

    parent: str
    candidates: tuple[str, ...]
    texts: tuple[str, ...]
    chunk_tokens: int
    judged_from: int
    chunks_max: int
    greedy_tokens: int
    threads: int


@dataclass(frozen=True, slots=True)
class Job:
    """Exactly one of them."""

    quantise: QuantiseJob | None = None
    imatrix: ImatrixJob | None = None
    compare: CompareJob | None = None


@dataclass(frozen=True, slots=True)
class QuantiseDone:
    """The finished file."""

    n_bytes: int
    with_importance: int  # tensors that were weighted
    without_importance: tuple[str, ...]  # quantised ones that the matrix does not name


@dataclass(frozen=True, slots=True)
class ImatrixDone:
    """The finished importance matrix."""

    chunks: int
    resumed_chunks: int
    tokens: int


@dataclass(frozen=True, slots=True)
class CompareDone:
    """One likeness a candidate, and how many greedy tokens were the same as the parent's."""

    likenesses: tuple[Likeness, ...]
    greedy_same: tuple[int, ...]
    greedy_tokens: int


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the child: how far it is, or its answer, or why there is none."""

    done: int = 0
    total: int | None = None
    quantised: QuantiseDone | None = None
    imatrix: ImatrixDone | None = None
    compared: CompareDone | None = None
    failed: str | None = None
    disk_full: bool = False
    too_short_tokens: int | None = None  # the text has only so many
    no_numbers: str | None = None  # the path of a model whose logits are infinite or NaN
