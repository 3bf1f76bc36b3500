"""How a published checkpoint (config.json and safetensors) becomes a GGUF model."""

from dataclasses import dataclass
from functools import cache
from typing import Literal

from workhorse.knowledge.rows import rows


@dataclass(frozen=True, slots=True)
class CheckpointKind:
    """One architecture as its makers publish it; the columns are explained in the table."""

    config: tuple[str, ...]
    gguf: str
    window: bool = False
    heads: int | None = None
    kv_heads: int | None = None
    head_size: int | None = None
    attention: Literal["plain", "mla", "delta_net"] = "plain"
    mtp: Literal["none", "layers", "apart"] = "none"
    ffn_norm: str = "ffn_norm"
    drops_head: bool = False
    fused_experts: bool = False


@dataclass(frozen=True, slots=True)
class TensorName:
    """A tensor's name in a checkpoint and in a GGUF file, both without `.weight`."""

    config: str
    gguf: str


@cache
def checkpoint_kinds() -> dict[str, CheckpointKind]:
    """Every known architecture by the name that config.json has for it."""
    kinds = rows("checkpoints", "architecture", CheckpointKind)
    return {name: kind for kind in kinds for name in kind.config}


@cache
def model_tensor_names() -> dict[str, str]:
    """GGUF names of the tensors of the whole model."""
    return {row.config: row.gguf for row in rows("checkpoints", "tensor", TensorName)}


@cache
def layer_tensor_names() -> dict[str, str]:
    """GGUF names of the tensors of a layer."""
    return {row.config: row.gguf for row in rows("checkpoints", "layer_tensor", TensorName)}
