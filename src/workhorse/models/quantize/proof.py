"""A converted model beside its original, on a fixed set of prompts, through the engine."""

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from workhorse.errors import AppError
from workhorse.models.quantize.job import Ground, Teller, compare
from workhorse.records import Finding
from workhorse.text import Text

PROMPTS = "prompts.txt"
GREEDY_TOKENS = 24
# BF16 has eight bits of precision, FP16 eleven: what differs is the order of sums. Models that
# came through whole had a divergence below 0.001 (2026-11); a tensor gone wrong gives whole nats.
KL_MOST = 0.01
SAME_LEAST = 0.97


@dataclass(frozen=True, slots=True)
class Proof:
    """How alike two files of one model are; divergence in nats a token."""

    original: str
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
        return self.kl_mean <= KL_MOST and self.same_top >= SAME_LEAST


def prompts() -> tuple[str, ...]:
    """The fixed set: Chinese, English and code; the first one is the golden prompt."""
    text = files("workhorse.models.quantize").joinpath("texts", PROMPTS).read_text("utf-8")
    return tuple(part.strip("\n") for part in text.split("---\n"))


def prove_alike(
    original: Path, converted: Path, ground: Ground, tell: Teller, threads: int
) -> Proof:
    """Compare the next-token probabilities of two GGUF files of one model; raises AppError."""
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
        original=original.name,
        converted=converted.name,
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
    seen = Text(
        f"Over {proof.tokens} tokens of {proof.prompts} prompts: KL {kl}, same first choice "
        f"{same}; of the golden prompt's answer {proof.greedy_same} of {proof.greedy_tokens} "
        "tokens are the same.",
        f"{proof.prompts} 个提示共 {proof.tokens} 个词元：KL {kl}，首选一致 {same}；黄金提示的回答"
        f"有 {proof.greedy_same}/{proof.greedy_tokens} 个词元相同。",
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
            source=f"measured here; limits: KL {KL_MOST}, first choice {SAME_LEAST:.0%}",
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
            "BF16 or Q8_0.",
            "请勿用于服务：请用 --on-overflow keep-f32 重新转换，或改用 BF16、Q8_0 的 GGUF 文件。",
        ),
        source=f"measured here; limits: KL {KL_MOST}, first choice {SAME_LEAST:.0%}",
    )
