"""A model and boxes that only hold it together."""

from dataclasses import replace

import builders
from workhorse.plan.wish import Wish
from workhorse.records import Machine, Model
from workhorse.units import GIB

RPC = replace(
    builders.EMBEDDED,
    kind="binary",
    knows=(*builders.EMBEDDED.knows, "--rpc", "--tensor-split", "--n-gpu-layers",
           "--override-tensor"),
)  # fmt: skip
WISH = Wish(context_tokens=1024, slots=1, headroom=0.0)


def large(layers: int = 40) -> Model:
    """13 GB in F16."""
    return builders.model(
        layers=layers, embedding=4096, feed_forward=36864, heads=32, vocabulary=32000
    )


def box(gib: int) -> Machine:
    """A machine without a card."""
    return builders.machine(ram_bytes=gib * GIB)
