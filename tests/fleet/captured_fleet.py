"""A fleet of captured machines, and a model in several sizes, for tests of its plan."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import builders
from workhorse import __version__
from workhorse.config import Places
from workhorse.fleet.fleet_plan import NodePlans
from workhorse.fleet.kinds import NodeFound
from workhorse.fleet.node_facts import VERSION, Node, labels_of, resources_of
from workhorse.fleet.plan_here import PlanRequest, WantedModel, plan_here
from workhorse.machine.probe import probe
from workhorse.plan.wish import Wish
from workhorse.records import Machine, Model

CAPTURES = Path(__file__).parents[1] / "captures"
NOTHING_LEARNED = Places(Path("/nothing/learned/here"))

# Qwen2.5 14B's shape: 29 GB in F16, 15.7 GB in Q8_0, 9 GB in Q4_K_M.
FOURTEEN_B = replace(
    builders.model(
        layers=48,
        embedding=5120,
        feed_forward=13824 * 3,  # gate, up and down as one tensor
        heads=40,
        kv_heads=8,
        head_size=128,
        vocabulary=152064,
    ),
    path="/models/Fourteen-14B-F16.gguf",
    name="Fourteen 14B",
)


def in_size(model: Model, bits: float, name: str, kind: str) -> Model:
    """The same model with other weights."""
    tensors = tuple(
        replace(tensor, type=kind, n_bytes=int(tensor.n_bytes * bits / 16))
        for tensor in model.tensors
    )
    path = model.path.replace("F16", name)
    return replace(model, path=path, quantisation=kind, tensors=tensors)


SIZES = (
    FOURTEEN_B,
    in_size(FOURTEEN_B, 8.5, "Q8_0", "q8_0"),
    in_size(FOURTEEN_B, 4.85, "Q4_K_M", "q4_k"),
    in_size(FOURTEEN_B, 32, "F32", "f32"),
)


@cache
def machine_of(name: str) -> Machine:
    """A captured machine; `cpu_box` is machine_b without its card."""
    if name == "cpu_box":
        return replace(probe(CAPTURES / "machine_b.json"), gpus=(), gpu_links=())
    return probe(CAPTURES / f"{name}.json")


def node_of(name: str, capture: str, number: int = 1) -> Node:
    """A living node that is this machine."""
    machine = machine_of(capture)
    labels = {**labels_of(machine, name), VERSION: __version__}
    address = f"10.0.0.{number}"
    return Node(
        f"{number:056x}", name, address, number == 1, True, False, labels, resources_of(machine)
    )


@cache
def plans_of(
    capture: str, sizes: tuple[int, ...] = (0, 1, 2), wish: Wish | None = None
) -> NodePlans:
    """What that machine would do with these sizes of the model."""
    request = PlanRequest(
        tuple(WantedModel(SIZES[size]) for size in sizes),
        wish or Wish(),
        machine=machine_of(capture),
    )
    return plan_here(request, NOTHING_LEARNED)


def found(name: str, capture: str, number: int = 1, wish: Wish | None = None) -> NodeFound:
    """A node of the fleet with its plans."""
    return NodeFound(node_of(name, capture, number), plans_of(capture, wish=wish))
