"""How the tests of hubs read models, and what they read."""

import struct
import tracemalloc

import pytest
from gguf_builder import I32, STR, llama, text

from workhorse.errors import AppError
from workhorse.models.read import read_model
from workhorse.records import Model
from workhorse.units import MIB

REPO = "maker/Tiny-GGUF"
MEMORY_BYTES_MAX = 100 * MIB
TINY = llama().build()


def read(reference: str, environment: dict[str, str] | None = None, **options: object) -> Model:
    """The model, with pauses that are not waited for."""
    return read_model(
        reference,
        environment=environment or {},
        pause=lambda _: None,
        **options,  # type: ignore[arg-type]
    )


def refusal(reference: str, environment: dict[str, str] | None = None, **options: object) -> str:
    """Both sentences of the one error, with little memory taken."""
    tracemalloc.start()
    try:
        with pytest.raises(AppError) as caught:
            read(reference, environment, **options)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < MEMORY_BYTES_MAX
    for words in (caught.value.what, caught.value.next_step):
        assert words.en and words.zh
        assert words.en.isprintable() and words.zh.isprintable()
    return f"{caught.value.what.en} {caught.value.next_step.en}"


def large_vocabulary(tokens: int = 150_000) -> bytes:
    """A header as Qwen's: 150,000 tokens with types and merges, and 100 MB of weights behind it."""
    file = llama(layers=4)
    file.without("tokenizer.ggml.tokens")
    words = b"".join(text(f"tok{i:06d}") for i in range(tokens))
    merges = b"".join(text(f"t{i % 97} ok{i:06d}") for i in range(tokens))
    head = struct.pack("<IIQ", 9, STR, tokens)
    file.keys.append(("tokenizer.ggml.tokens", head + words))
    file.keys.append(("tokenizer.ggml.merges", head + merges))
    file.keys.append(
        ("tokenizer.ggml.token_type", struct.pack("<IIQ", 9, I32, tokens) + bytes(4 * tokens))
    )
    return file.tensor("output.weight", (4096, 6000)).build()
