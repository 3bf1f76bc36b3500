"""How much one model's next-token probabilities differ from another's. Pure arithmetic."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]
ROWS_AT_ONCE = 32  # a row has up to 262,144 entries: the temporaries stay below 70 MB


@dataclass(frozen=True, slots=True)
class Likeness:
    """A candidate beside its parent over the same tokens; natural logarithms throughout."""

    tokens: int
    parent_perplexity: float
    perplexity: float
    kl_mean: float  # of the parent's distribution to the candidate's, nats a token
    kl_99: float  # 99 of 100 tokens are below it
    kl_max: float
    same_top: float  # share of the tokens where both hold the same one most likely


@dataclass(slots=True)
class Sums:
    """Adds up token after token."""

    parent_loss: float = 0.0
    loss: float = 0.0
    same: int = 0
    divergences: list[NDArray[np.float32]] = field(default_factory=list)

    def add(self, parent: Logits, candidate: Logits, next_tokens: NDArray[np.int32]) -> None:
        """The logits of both for the same places (a row each), and which token came next."""
        for at in range(0, len(next_tokens), ROWS_AT_ONCE):
            part = slice(at, at + ROWS_AT_ONCE)
            ours, theirs = log_probabilities(parent[part]), log_probabilities(candidate[part])
            rows, came = np.arange(len(ours)), next_tokens[part]
            self.parent_loss -= float(ours[rows, came].sum(dtype=np.float64))
            self.loss -= float(theirs[rows, came].sum(dtype=np.float64))
            self.same += int((ours.argmax(1) == theirs.argmax(1)).sum())
            divergence = np.einsum("ij,ij->i", np.exp(ours), ours - theirs)
            # It cannot be negative: what is, is rounding.
            self.divergences.append(np.maximum(divergence, 0.0).astype(np.float32))

    def result(self) -> Likeness:
        """Everything added up; ValueError when there was nothing."""
        all_of_them = np.concatenate(self.divergences) if self.divergences else np.empty(0)
        count = len(all_of_them)
        if not count:
            raise ValueError("no token was compared")
        return Likeness(
            tokens=count,
            parent_perplexity=float(np.exp(self.parent_loss / count)),
            perplexity=float(np.exp(self.loss / count)),
            kl_mean=float(all_of_them.mean(dtype=np.float64)),
            kl_99=float(np.quantile(all_of_them, 0.99)),
            kl_max=float(all_of_them.max()),
            same_top=self.same / count,
        )


def log_probabilities(logits: Logits) -> Logits:
    """The logarithm of the softmax of each row."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    total = np.log(np.exp(shifted).sum(axis=1, keepdims=True, dtype=np.float64))
    found: Logits = shifted - total.astype(np.float32)
    return found
