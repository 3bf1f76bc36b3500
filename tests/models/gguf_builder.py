"""Writes GGUF headers for tests, right and wrong ones; shares no code with the reader."""

import struct
from dataclasses import dataclass, field
from pathlib import Path

U8, I8, U16, I16, U32, I32, F32, BOOL, STR, ARR, U64, I64, F64 = range(13)
FORMATS = {
    U8: "<B", I8: "<b", U16: "<H", I16: "<h", U32: "<I", I32: "<i", F32: "<f", BOOL: "<?",
    U64: "<Q", I64: "<q", F64: "<d",
}  # fmt: skip
F32_TENSOR, F16_TENSOR, Q4_0_TENSOR, Q8_0_TENSOR = 0, 1, 2, 8
Q4_K_TENSOR, Q6_K_TENSOR, MXFP4_TENSOR = 12, 14, 39
BYTES = {  # elements and bytes of a block, for the types the tests write
    F32_TENSOR: (1, 4),
    F16_TENSOR: (1, 2),
    Q4_0_TENSOR: (32, 18),
    Q8_0_TENSOR: (32, 34),
    Q4_K_TENSOR: (256, 144),
    Q6_K_TENSOR: (256, 210),
    MXFP4_TENSOR: (32, 17),
}


def text(value: str | bytes) -> bytes:
    """A text as the format has it: its length, then its bytes."""
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def scalar(kind: int, value: object) -> bytes:
    """A value with its type before it."""
    raw = text(value) if kind == STR else struct.pack(FORMATS[kind], value)  # type: ignore[arg-type]
    return struct.pack("<I", kind) + raw


def array(kind: int, values: list[object]) -> bytes:
    """A list with its types and length before it."""
    body = b"".join(
        text(value) if kind == STR else struct.pack(FORMATS[kind], value)  # type: ignore[arg-type]
        for value in values
    )
    return struct.pack("<IIQ", ARR, kind, len(values)) + body


def padded(n_bytes: int, alignment: int) -> int:
    """The next multiple of the alignment."""
    return (n_bytes + alignment - 1) // alignment * alignment


@dataclass
class Gguf:
    """A GGUF file in the making; `keys` are raw values, so that tests can write wrong ones."""

    keys: list[tuple[str | bytes, bytes]] = field(default_factory=list)
    tensors: list[tuple[str, tuple[int, ...], int]] = field(default_factory=list)
    alignment: int = 32
    version: int = 3
    magic: bytes = b"GGUF"
    tensor_count: int | None = None  # what the header claims; None: the truth
    key_count: int | None = None
    offsets: dict[str, int] = field(default_factory=dict)  # claimed instead of the right one

    def key(self, name: str | bytes, kind: int, value: object) -> "Gguf":
        """Add a value."""
        self.keys.append((name, scalar(kind, value)))
        return self

    def list(self, name: str, kind: int, values: list[object]) -> "Gguf":
        """Add a list."""
        self.keys.append((name, array(kind, values)))
        return self

    def without(self, name: str) -> "Gguf":
        """Take a key out again."""
        self.keys = [(key, raw) for key, raw in self.keys if key != name]
        return self

    def tensor(self, name: str, shape: tuple[int, ...], kind: int = F32_TENSOR) -> "Gguf":
        """Add a tensor; its data is zeros."""
        self.tensors.append((name, shape, kind))
        return self

    def header(self) -> bytes:
        """The header alone, without the padding before the data."""
        tensors = len(self.tensors) if self.tensor_count is None else self.tensor_count
        keys = len(self.keys) if self.key_count is None else self.key_count
        out = [self.magic, struct.pack("<IQQ", self.version, tensors, keys)]
        out += [text(name) + raw for name, raw in self.keys]
        offset = 0
        for name, shape, kind in self.tensors:
            claimed = self.offsets.get(name, offset)
            out.append(text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape))
            out.append(struct.pack("<IQ", kind, claimed))
            offset += padded(self.tensor_bytes(shape, kind), self.alignment)
        return b"".join(out)

    @staticmethod
    def tensor_bytes(shape: tuple[int, ...], kind: int) -> int:
        """Bytes of a tensor's data; 0 for types that only wrong files have."""
        elements = 1
        for size in shape:
            elements *= size
        block, n_bytes = BYTES.get(kind, (1, 0))
        return elements // block * n_bytes

    def data_bytes(self) -> int:
        """Bytes of all tensors with their padding."""
        return sum(padded(self.tensor_bytes(s, k), self.alignment) for _, s, k in self.tensors)

    def build(self) -> bytes:
        """The whole file."""
        header = self.header()
        start = padded(len(header), self.alignment) if self.tensors else len(header)
        return header + bytes(start - len(header)) + bytes(self.data_bytes())

    def write(self, path: Path) -> Path:
        """Write the whole file, its data as a hole."""
        header = self.header()
        start = padded(len(header), self.alignment) if self.tensors else len(header)
        with path.open("wb") as file:
            file.write(header)
            file.truncate(start + self.data_bytes())
        return path


def llama(
    layers: int = 2, architecture: str = "llama", heads: int = 4, kv_heads: int | None = 2
) -> Gguf:
    """A small model that the reader accepts: 64 wide, 10 tokens."""
    model = Gguf().key("general.architecture", STR, architecture)
    model.key("general.name", STR, "Tiny")
    model.key(f"{architecture}.block_count", U32, layers)
    model.key(f"{architecture}.context_length", U32, 2048)
    model.key(f"{architecture}.embedding_length", U32, 64)
    if heads:
        model.key(f"{architecture}.attention.head_count", U32, heads)
    if kv_heads is not None:
        model.key(f"{architecture}.attention.head_count_kv", U32, kv_heads)
    model.list("tokenizer.ggml.tokens", STR, [f"t{i}" for i in range(10)])
    model.tensor("token_embd.weight", (64, 10), Q8_0_TENSOR)
    for layer in range(layers):
        model.tensor(f"blk.{layer}.attn_q.weight", (64, 64), Q4_0_TENSOR)
        model.tensor(f"blk.{layer}.attn_norm.weight", (64,), F32_TENSOR)
    return model
