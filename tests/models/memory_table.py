"""What our arithmetic says beside what the engine said, row by row."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from workhorse.plan.memory import (
    Layout,
    compute_bytes,
    kv_bytes,
    loaded,
    second_head_bytes,
    state_bytes,
)
from workhorse.records import Model
from workhorse.units import MIB

# The engine starts each tensor of a buffer on a multiple of it (TENSOR_ALIGNMENT of ggml).
ALIGNMENT_BYTES = 32


@dataclass(frozen=True)
class Row:
    """One model under one layout: ours, the engine's."""

    name: str
    layout: Layout
    weights: tuple[int, int]  # bytes of all tensors in the file
    buffer: tuple[int, int]  # what is held of them
    kept: tuple[int, int]  # KV and recurrent state
    compute: tuple[int, int]

    @classmethod
    def of(cls, name: str, model: Model, layout: Layout, said: Sequence[int]) -> "Row":
        """The row of what the engine `said`: all tensors, those held, KV and state, compute."""
        held = sum(
            -(-tensor.n_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
            for tensor in model.tensors
            if loaded(tensor, model)
        )
        return cls(
            name,
            layout,
            (model.weight_bytes, said[0]),
            (held + second_head_bytes(model), said[1]),
            (kv_bytes(model, layout) + state_bytes(model, layout), said[2]),
            (compute_bytes(model, layout), said[3]),
        )

    @property
    def total(self) -> tuple[int, int]:
        """Everything, ours and the engine's."""
        parts = (self.buffer, self.kept, self.compute)
        return sum(ours for ours, _ in parts), sum(theirs for _, theirs in parts)

    @property
    def total_error(self) -> float:
        """How far our total is off, as a share of the engine's."""
        ours, theirs = self.total
        return ours / theirs - 1


def rows_of(name: str, model: Model, stored: dict[str, Any], part: str) -> list[Row]:
    """One row for each setting that the engine took."""
    rows = []
    for number, setting in enumerate(stored["settings"]):
        said = stored[part][name].get(str(number))
        if said:
            context, slots, batch, type_k, type_v, flash = setting
            layout = Layout(context, slots, type_k, type_v, bool(flash), batch)
            rows.append(Row.of(name, model, layout, said))
    return rows


def markdown(rows: Sequence[Row]) -> str:
    """The table for docs/measured."""
    lines = [
        "| model | context × slots | batch | KV | FA | weights MiB | KV + state MiB | compute MiB "
        "(ours / engine) | total off |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        layout = row.layout
        kv = f"{layout.kv_type_k}/{layout.kv_type_v}"
        lines.append(
            f"| {row.name} | {layout.context_tokens} × {layout.slots} "
            f"| {layout.micro_batch_tokens} | {kv} | {'on' if layout.flash_attention else 'off'} "
            f"| {_exact(row.buffer)} | {_exact(row.kept)} "
            f"| {row.compute[0] / MIB:.1f} / {row.compute[1] / MIB:.1f} "
            f"| {row.total_error * 100:+.2f} % |"
        )
    return "\n".join(lines)


def _exact(pair: tuple[int, int]) -> str:
    ours, theirs = pair
    return f"{theirs / MIB:.2f} ✓" if ours == theirs else f"{ours / MIB:.2f} / {theirs / MIB:.2f}"
