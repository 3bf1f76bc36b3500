"""What a request will probably take, before the engine has said so. Pure.

A prompt's tokens are reckoned from its bytes, an answer's from the answers before it; both ratios
follow what the engine says afterwards.
"""

import re
from dataclasses import dataclass

from workhorse.serve.figures import TokenCount

TOKENS_PER_BYTE = 0.25  # English with any of the common tokenizers; corrected by the first answers
OUTPUT_TOKENS = 256.0  # of an answer, until there was one
# How much of an estimate the latest answer makes.
LEARNED_SHARE = 0.1
# What an image in a request counts for, in bytes of text: about 1000 tokens (vision models of
# 2025 take 256 to 1600, 2026-11).
IMAGE_BYTES = 4000

_EMBEDDED_FILE = re.compile(rb";base64,[A-Za-z0-9+/=_-]*")


@dataclass(frozen=True, slots=True)
class Expected:
    """What one request will probably take."""

    prompt_tokens: float
    output_tokens: float


class Estimates:
    """The ratios of one model."""

    def __init__(self) -> None:
        self.tokens_per_byte = TOKENS_PER_BYTE
        self._output_tokens = OUTPUT_TOKENS

    def expect(
        self, prompt_bytes: int, limit_tokens: int | None, context_tokens: int | None
    ) -> Expected:
        """What a prompt of this size and an answer of at most this length will take."""
        prompt_tokens = prompt_bytes * self.tokens_per_byte
        if context_tokens is not None:
            prompt_tokens = min(prompt_tokens, context_tokens)
        output_tokens = self._output_tokens
        if limit_tokens is not None:
            output_tokens = min(output_tokens, limit_tokens)
        return Expected(prompt_tokens, output_tokens)

    def learn(self, prompt_bytes: int, counts: list[TokenCount], answers: int = 1) -> None:
        """Take in what one request really took, for so many answers."""
        prompt = sum(count.prompt_once for count in counts)
        if prompt and prompt_bytes >= 64:
            self.tokens_per_byte += LEARNED_SHARE * (prompt / prompt_bytes - self.tokens_per_byte)
        generated = [count.generated for count in counts if count.generated is not None]
        if generated:
            self._output_tokens += LEARNED_SHARE * (sum(generated) / answers - self._output_tokens)


def text_bytes(prompt: bytes) -> int:
    """The size of a prompt as text: an image in it counts as so much text."""
    # Less text than a small image has is not worth the search.
    if len(prompt) < IMAGE_BYTES or b";base64," not in prompt:
        return len(prompt)
    text, images = _EMBEDDED_FILE.subn(b"", prompt)
    return len(text) + images * IMAGE_BYTES
