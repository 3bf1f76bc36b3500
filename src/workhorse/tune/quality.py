"""How far a candidate's next tokens are from the plan's own: the KL divergence. Pure."""

import math
from collections.abc import Mapping, Sequence

# A next token's probabilities by its id, the likeliest ones; the rest counts as one token.
Likely = Mapping[int, float]

# Where the candidate gives a token less than this, it is taken at this.
LEAST_PROBABILITY = 1e-6


def divergence(own: Sequence[Likely], candidate: Sequence[Likely]) -> float | None:
    """The mean KL divergence over positions, in nats; None when there is nothing to compare.

    Of truncated lists, so a little low: what neither names is one token.
    """
    both = [(p, q) for p, q in zip(own, candidate, strict=False) if p and q]
    if not both:
        return None
    return sum(one_divergence(p, q) for p, q in both) / len(both)


def one_divergence(p: Likely, q: Likely) -> float:
    """The KL divergence at one position; never below zero.

    A token that `q` does not name has at most what the least of its named ones has, and at most
    what is left over.
    """
    left = max(0.0, 1 - sum(q.values()))
    unnamed = min(left, *q.values())
    pairs = [(x, q.get(token, unnamed)) for token, x in p.items()]
    pairs.append((1 - sum(p.values()), 1 - sum(q[token] for token in p if token in q)))
    total = sum(x * math.log(x / max(y, LEAST_PROBABILITY)) for x, y in pairs if x > 0)
    return max(0.0, total)


def likely_tokens(answer: Mapping[str, object]) -> dict[int, float]:
    """The next token's probabilities in llama-server's answer with `n_probs`; empty for none.

    As of llama-server 0.5.0: `completion_probabilities[0].top_logprobs[].{id, logprob}` (2026-11).
    """
    told = answer.get("completion_probabilities")
    first = told[0] if isinstance(told, list) and told else None
    rows = first.get("top_logprobs") if isinstance(first, dict) else None
    found: dict[int, float] = {}
    for row in rows if isinstance(rows, list) else ():
        if not isinstance(row, dict):
            continue
        token, logprob = row.get("id"), row.get("logprob")
        if isinstance(token, int) and isinstance(logprob, int | float) and logprob <= 0:
            found[token] = math.exp(logprob)
    return found
