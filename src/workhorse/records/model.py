"""Model: what is wanted, from headers alone."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a model file; `shape` is in the file's order, fastest dimension first."""

    name: str
    type: str
    shape: tuple[int, ...]
    n_bytes: int
    offset_bytes: int


@dataclass(frozen=True, slots=True)
class SideCache:
    """A second cache of a layer: the keys by which sparse attention chooses, or compressed KV."""

    key_size: int
    value_size: int = 0
    tokens_a_cell: int = 1


@dataclass(frozen=True, slots=True)
class Attention:
    """What one layer keeps per token: K and V heads and their sizes in elements."""

    kv_heads: int
    key_size: int
    value_size: int  # 0: K holds the latent that V is made from (MLA)
    window_tokens: int | None = None  # sliding window; None: the whole context
    side: tuple[SideCache, ...] = ()


@dataclass(frozen=True, slots=True)
class RecurrentState:
    """What one layer keeps per slot, however long the context: F32 whatever the KV type."""

    rolling_bytes: int  # the last inputs of a convolution or token shift
    state_bytes: int


@dataclass(frozen=True, slots=True)
class Projector:
    """What turns images or sound into embeddings: a file of its own beside the model."""

    path: str
    name: str
    weight_bytes: int
    image_size: int | None  # pixels on a side
    patch_size: int | None
    embedding_size: int | None
    feed_forward_size: int | None
    heads: int | None
    images: bool = True  # it takes images
    sound: bool = False  # it takes sound
    widths: tuple[int, ...] = ()  # one of which its output has; (): not told


@dataclass(frozen=True, slots=True)
class Model:
    """What is wanted, from the file's header alone: no weights are read."""

    path: str
    name: str
    format: Literal["gguf", "safetensors"]
    architecture: str
    file_bytes: int
    tensors: tuple[Tensor, ...]
    attention: tuple[Attention | None, ...]  # one a layer; None: the layer keeps no KV
    layers: int
    embedding_size: int
    heads: int
    vocabulary: int
    context_trained_tokens: int | None
    experts: int
    experts_used: int
    quantisation: str  # the type most weight bytes have
    chat_template: str | None
    pooling: bool  # an embedding model, or one that ranks
    licence: str | None
    recurrent: tuple[RecurrentState | None, ...] = ()  # one a layer; (): none has any
    known: bool = True  # False: the architecture is in no table, planned from its tensors
    draft_layers: int = 0  # the last so many layers predict further tokens (MTP)
    draft_attention: tuple[Attention, ...] = ()  # what those keep when they draft
    ranks: bool = False  # scores documents by a question; `pooling` is then true as well
    size_error_share: float | None = None  # not converted yet: so far off; None: sizes are exact
    projector: Projector | None = None  # the one that is loaded beside it

    @property
    def weight_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.n_bytes for t in self.tensors)

    @property
    def parameters(self) -> int:
        """Elements of all tensors."""
        total = 0
        for tensor in self.tensors:
            elements = 1
            for size in tensor.shape:
                elements *= size
            total += elements
        return total


Dtype = Literal["float16", "bfloat16", "float32"]


@dataclass(frozen=True, slots=True)
class Stored:
    """A checkpoint as its own safetensors files hold it, from headers alone."""

    folder: str
    n_bytes: tuple[tuple[str, int], ...]  # by safetensors' name of the type
    dtype: Dtype | None  # of most plain weights
    method: str | None  # how they are packed: awq, gptq, fp8 …; None: not packed
    bits: int | None  # of a packed weight; None: not packed or not told
    classes: tuple[str, ...]  # `architectures` of config.json

    def weight_bytes(self, dtype: str) -> int:
        """What they take once loaded: plain weights in `dtype`, packed ones as they are."""
        element = {"float32": 4}.get(dtype, 2)
        wide = {"F32": 4, "F16": 2, "BF16": 2, "F64": 8}
        return sum(
            n // wide[kind] * element if kind in wide and self.method is None else n
            for kind, n in self.n_bytes
        )
