"""A converted model beside its original, on a fixed set of prompts, through the engine."""

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from workhorse.errors import AppError
from workhorse.models.gguf_maker.origin import Origin
from workhorse.models.quantize.job import Ground, compare
from workhorse.models.refusals import shown
from workhorse.records import Finding
from workhorse.tell import Teller
from workhorse.text import Text

PROMPTS = "prompts.txt"
GREEDY_TOKENS = 24
# BF16 has eight bits of precision, FP16 eleven: a value that fits is the same in both, and what
# differs is how sums are rounded. Set far above the little that was measured: 0.000013 nats and,
# of Q8_0, 0.0003, both of one small model with random weights (2026-11). The share of same first
# choices is shown and decides nothing: in such a model many are near ties (98.6 %, of Q8_0 94 %).
KL_MOST = 0.01
KL_MOST_OF_ONE = 1.0  # a single token that was computed otherwise
SOURCE = f"measured here; limits: KL {KL_MOST}, of one token {KL_MOST_OF_ONE:g}"


@dataclass(frozen=True, slots=True)
class Proof:
    """How alike a model and what was made of it are; divergence in nats a token."""

    original: str  # the checkpoint that it was compared with
    original_type: str  # as what the engine read it
    converted: str
    prompts: int
    tokens: int
    kl_mean: float
    kl_max: float
    same_top: float
    greedy_same: int  # of the first `greedy_tokens` tokens after the golden prompt
    greedy_tokens: int

    @property
    def holds(self) -> bool:
        """True when nothing says that the conversion went wrong."""
        return self.kl_mean <= KL_MOST and self.kl_max <= KL_MOST_OF_ONE


def prompts() -> tuple[str, ...]:
    """The fixed set: Chinese, English and code; the first one is the golden prompt."""
    text = files("workhorse.models.quantize").joinpath("texts", PROMPTS).read_text("utf-8")
    return tuple(part.strip("\n") for part in text.split("---\n"))


def prove_alike(
    original: Path,
    converted: Path,
    origin: Origin,
    made: Path,
    ground: Ground,
    tell: Teller,
    threads: int,
) -> Proof:
    """Compare the next-token probabilities of two GGUF files of one model; raises AppError.

    `origin` and `made`: what the two files stand for, as the user knows them.
    """
    tell.stage(Text("comparing with the original", "与原模型对比"))
    asked = prompts()
    found = compare(original, converted, asked, ground, tell, threads, GREEDY_TOKENS)
    if isinstance(found, int):
        raise AppError(
            Text("The model's tokenizer makes no tokens.", "该模型的分词器没有产生词元。"),
            Text("Fetch the model again.", "请重新下载该模型。"),
        )
    likeness = found.likenesses[0]
    return Proof(
        original=str(origin.folder),
        original_type=origin.type,
        converted=str(made),
        prompts=len(asked),
        tokens=likeness.tokens,
        kl_mean=likeness.kl_mean,
        kl_max=likeness.kl_max,
        same_top=likeness.same_top,
        greedy_same=found.greedy_same[0],
        greedy_tokens=found.greedy_tokens,
    )


def finding_of(proof: Proof) -> Finding:
    """What a proof means: good, or a warning with what to do."""
    kl, same = f"{proof.kl_mean:.6f}", f"{proof.same_top:.1%}"
    beside = f"{shown(proof.original)} ({proof.original_type.upper()})"
    many, most = f"{proof.tokens}", f"{proof.kl_max:.4f}"
    greedy = f"{proof.greedy_same}/{proof.greedy_tokens}"
    seen = Text(
        f"Compared with {beside} over {many} tokens of {proof.prompts} prompts: KL {kl} ({most} at "
        f"most), same first choice {same}; the golden prompt's answer is the same for {greedy} "
        "tokens.",
        f"与 {beside} 对比，{proof.prompts} 个提示共 {many} 个词元：KL {kl}（最大 {most}），首选"
        f"一致 {same}；黄金提示的回答前 {greedy} 个词元相同。",
    )
    if proof.holds:
        return Finding(
            code="convert.proven",
            level="good",
            seen=seen,
            why=Text(
                "The converted model computes what the original computes.",
                "转换后的模型与原模型的计算结果一致。",
            ),
            remedy=Text("Nothing to do.", "无需处理。"),
            source=SOURCE,
        )
    return Finding(
        code="convert.differs",
        level="warning",
        seen=seen,
        why=Text(
            "Rounding alone does not change that much: values were lost, or overflow while it "
            "computes.",
            "仅舍入不会造成这么大的差异：可能丢失了数值，或计算时溢出。",
        ),
        remedy=Text(
            "Do not serve it: convert anew with --on-overflow keep-f32, or use a GGUF file of "
            "BF16.",
            "请勿用于服务：请用 --on-overflow keep-f32 重新转换，或改用 BF16 的 GGUF 文件。",
        ),
        source=SOURCE,
    )
