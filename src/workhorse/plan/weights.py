"""The weights of a model by where they can lie: layers, experts, output, embedding, tables."""

import re
from dataclasses import dataclass

from workhorse.plan.memory import is_output_head, loaded, second_head_bytes, weight_part
from workhorse.records import EngineBuild, Machine, Model, WeightPart
from workhorse.units import GIB

_LAYER = re.compile(r"blk\.(\d+)\.")
# What `--n-cpu-moe` moves: LLM_FFN_EXPS_REGEX of llama.cpp's common/common.h, commit 0c1e570,
# 2026-10-01.
_EXPERTS = re.compile(r"\.ffn_(up|down|gate|gate_up)_(ch|)exps")
# The engine keeps the input embedding in main memory whatever the number of layers on a card
# (llama-model.cpp, `dev_input`, same commit).
_INPUT = ("token_embd.weight", "token_types.weight", "position_embd.weight")
TABLE = "per_layer_token_embd.weight"
# The architectures whose table it reads by row from the disk (`TENSOR_READ_LAZY` in src/models,
# same commit). Others hold it whole.
_READ_LAZILY = ("gemma4", "qwen4exp")
# With mode `auto` it does so from this size on (`auto_min_size`, llama-model-loader.cpp).
LAZY_FROM_BYTES = 4 * GIB


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes of a model's tensors by group; one entry a layer where it is a tuple."""

    layers: tuple[int, ...]  # without experts
    experts: tuple[int, ...]
    largest: tuple[int, ...]  # the largest tensor of each layer, experts too
    output: int  # what comes after the layers, the output head included
    embedding: int
    shared_embedding: bool  # the embedding is the output head too: a card holds a second one
    second_head: int  # the second embedding that the CPU makes for itself as an output head
    tables: int
    draft: int  # layers of multi-token prediction, which are not loaded
    parts: tuple[dict[WeightPart, int], ...]  # of each layer, by what they are for

    def on_cards(self, layer: int, expert_layers_in_ram: int) -> int:
        """What a card holds of layer `layer`; the output is the one after the last."""
        if layer == len(self.layers):
            return self.output + (self.embedding if self.shared_embedding else 0)
        return self.layers[layer] + (0 if layer < expert_layers_in_ram else self.experts[layer])


def weigh(model: Model) -> Weights:
    """The weights of `model` by group; together, without the second head, all of its bytes."""
    layers, experts = [0] * model.layers, [0] * model.layers
    largest = [0] * model.layers
    parts: list[dict[WeightPart, int]] = [{} for _ in range(model.layers)]
    output = embedding = tables = draft = 0
    shared = False
    for tensor in model.tensors:
        match = _LAYER.match(tensor.name)
        if not loaded(tensor, model):
            draft += tensor.n_bytes
        elif match is not None and int(match[1]) < model.layers:
            layer = int(match[1])
            expert = _EXPERTS.search(tensor.name)
            into = experts if expert else layers
            into[layer] += tensor.n_bytes
            largest[layer] = max(largest[layer], tensor.n_bytes)
            part = "experts" if expert else weight_part(tensor)
            parts[layer][part] = parts[layer].get(part, 0) + tensor.n_bytes
        elif tensor.name in _INPUT:
            embedding += tensor.n_bytes
            shared = shared or is_output_head(tensor, model)
        elif tensor.name == TABLE:
            tables += tensor.n_bytes
        else:
            output += tensor.n_bytes
    return Weights(
        layers=tuple(layers),
        experts=tuple(experts),
        largest=tuple(largest),
        output=output,
        embedding=embedding,
        shared_embedding=shared,
        second_head=second_head_bytes(model),
        tables=tables,
        draft=draft,
        parts=tuple(parts),
    )


def leaves_tables_on_disk(
    model: Model, weights: Weights, build: EngineBuild, machine: Machine
) -> bool:
    """True when the engine reads rows of this model's tables from the disk on demand.

    Rows in use stay in the page cache, and the memory that a held table would take serves the
    rest; only where a read waits for a disk's arm or a network is the table better held.
    """
    if model.architecture not in _READ_LAZILY or weights.tables <= LAZY_FROM_BYTES:
        return False
    slow = any(disk.kind in ("hdd", "network") for disk in machine.disks[:1])
    held = machine.memory.available_bytes is None or (
        model.weight_bytes <= machine.memory.available_bytes * 0.8
    )
    return "--lazy-mode" in build.knows and not (slow and held)
