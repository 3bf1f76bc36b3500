"""How many copies the engine may keep of what a slot cannot roll back. Pure."""

from dataclasses import dataclass

from workhorse.plan.kept import CHECKPOINTS_A_SLOT, Layout, checkpoint_bytes
from workhorse.records import BudgetLine, Model
from workhorse.text import Text
from workhorse.units import show_bytes

# Of the main memory left over, the share that checkpoints may take. A turn of a conversation makes
# two or three; with fewer, an older turn that a client edits is read anew from its beginning.
SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """At most `a_slot` copies for each slot; None: the model can roll back all that it keeps."""

    a_slot: int | None
    lines: tuple[BudgetLine, ...] = ()


def choose_checkpoints(model: Model, layout: Layout, left_bytes: int | None) -> Checkpoints:
    """As many as `SHARE` of the memory left over holds, and no more than the engine's default.

    Sliding windows and recurrent state cannot be rolled back. The default, 32 for each slot, is
    for Qwen3.5 27B with four slots 18.7 GiB that no other figure of the engine shows.
    """
    each = checkpoint_bytes(model, layout)
    if not each or model.pooling:
        return Checkpoints(None)
    a_slot = CHECKPOINTS_A_SLOT
    if left_bytes is not None:
        a_slot = min(a_slot, max(0, int(left_bytes * SHARE)) // (each * layout.slots))
    if not a_slot:
        return Checkpoints(0)
    words = Text(
        f"at most {a_slot} a slot of {show_bytes(each)}, filled as conversations go on",
        f"每槽位最多 {a_slot} 份，每份 {show_bytes(each)}，随对话增减",
    )
    n_bytes = a_slot * each * layout.slots
    return Checkpoints(a_slot, (BudgetLine("RAM", "checkpoints", n_bytes, "estimated", words),))
