"""One KV pool for all slots: our arithmetic beside llama.cpp's dry run with `kv_unified`.

The engine's figures: `benchmarks/engine_memory.cpp` with `kv_unified = true`, llama.cpp 0c1e57098,
CPU, F16 KV, 2026-11-30.
"""

from pathlib import Path

import pytest
from published_shapes import PUBLISHED

from workhorse.models.gguf import describe
from workhorse.models.header import read_header
from workhorse.plan.memory import (
    Layout,
    compute_bytes,
    compute_error,
    kv_bytes,
    state_bytes,
)
from workhorse.records import Model

# Model, context of a slot, slots, micro-batch, flash attention; KV and state, compute, in bytes.
ROWS = [
    ("Qwen2.5-0.5B", 2048, 4, 512, True, 100663296, 45625376),
    ("Qwen2.5-0.5B", 8192, 4, 128, True, 402653184, 17697824),
    ("Qwen2.5-0.5B", 4096, 2, 512, False, 100663296, 261365792),
    ("Qwen2.5-7B", 2048, 4, 512, True, 469762048, 154152992),
    ("Qwen2.5-7B", 8192, 4, 128, True, 1879048192, 44829728),
    ("Qwen2.5-7B", 4096, 2, 512, False, 469762048, 525344800),
    ("Qwen3-30B-A3B", 2048, 4, 512, True, 805306368, 100675616),
    ("Qwen3-30B-A3B", 8192, 4, 128, True, 3221225472, 31460384),
    ("Qwen3-30B-A3B", 4096, 2, 512, False, 805306368, 585113632),
    ("Gemma-3-1B", 2048, 4, 512, True, 91226112, 62672928),
    ("Gemma-3-1B", 8192, 4, 128, True, 186122240, 21894176),
    ("Gemma-3-1B", 4096, 2, 512, False, 68157440, 100413472),
    ("Gemma-3-12B", 2048, 4, 512, True, 2046820352, 139481120),
    ("Gemma-3-12B", 8192, 4, 128, True, 3573547008, 41096224),
    ("Gemma-3-12B", 4096, 2, 512, False, 1375731712, 347615264),
    ("Qwen3.5-0.8B", 2048, 4, 512, True, 181469184, 53037120),
    ("Qwen3.5-0.8B", 8192, 4, 128, True, 483459072, 26284608),
    ("Qwen3.5-0.8B", 4096, 2, 512, False, 141066240, 171980864),
    ("Gemma-2-9B", 2048, 4, 512, True, 2818572288, 135286816),
    ("Gemma-2-9B", 8192, 4, 128, True, 8499757056, 42275872),
    ("Gemma-2-9B", 4096, 2, 512, False, 2818572288, 357576736),
    ("DeepSeek-V2-Lite", 2048, 4, 512, True, 254803968, 101720096),
    ("DeepSeek-V2-Lite", 8192, 4, 128, True, 1019215872, 31721504),
    ("DeepSeek-V2-Lite", 4096, 2, 512, False, 254803968, 346312736),
]


def shape(name: str) -> Model:
    raw: bytes = PUBLISHED[name].header().header()

    def read_at(at: int, size: int) -> bytes:
        return raw[at : at + size].ljust(size, b"\0")

    return describe([read_header(read_at, 2**50, name=name)], Path("shape.gguf"))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(map(str, row[:5])))
def test_kept_is_exact_and_compute_within_its_band(
    row: tuple[str, int, int, int, bool, int, int],
) -> None:
    name, context, slots, batch, flash, kept, compute = row
    model = shape(name)
    layout = Layout(context, slots, flash_attention=flash, micro_batch_tokens=batch, shared_kv=True)
    assert kv_bytes(model, layout) + state_bytes(model, layout) == kept
    assert compute_bytes(model, layout) == pytest.approx(compute, rel=compute_error(model))


def test_a_pool_of_one_slot_is_its_cache() -> None:
    model = shape("Gemma-3-1B")
    alone, pool = Layout(8192, 1), Layout(8192, 1, shared_kv=True)
    assert kv_bytes(model, alone) == kv_bytes(model, pool)
