"""What a quantised file was measured to have lost beside the file it was made from. Pure."""

from dataclasses import dataclass

from workhorse.text import Text


@dataclass(frozen=True, slots=True)
class Quality:
    """One quantised file beside its parent, over the same tokens of a text that calibrated neither.

    Divergences in nats a token, of the parent's next-token probabilities to the file's.
    """

    fingerprint: str  # of the file; see models/quantize/quality_store.py
    parent_fingerprint: str
    name: str  # of the file
    parent: str
    quantisation: str  # Q4_K_M; the parent's: F16
    n_bytes: int
    parent_n_bytes: int
    tokens: int
    text: str  # what it was measured on
    text_sha256: str
    parent_perplexity: float
    perplexity: float
    kl_mean: float
    kl_99: float
    same_top: float  # share of the tokens where both hold the same one most likely
    calibrated_on: str | None  # None: without an importance matrix
    measured_at: str  # ISO 8601, UTC

    @property
    def perplexity_gain(self) -> float:
        """How much the perplexity rose; below 0 it fell, which is chance."""
        return self.perplexity - self.parent_perplexity


def quality_measured(quality: Quality) -> Text:
    """One line for a comparison: what was measured of this very file."""
    gain = f"{quality.perplexity_gain:+.3g}"
    kl, same = f"{quality.kl_mean:.4f}", f"{quality.same_top:.1%}"
    return Text(
        f"measured: perplexity {gain}, KL {kl}, same first choice {same}",
        f"实测：困惑度 {gain}，KL {kl}，首选一致 {same}",
    )
