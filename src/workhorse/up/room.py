"""What a running engine holds, and whether another one has room beside it. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from workhorse.plan.memory import device_bytes
from workhorse.records import Machine, Plan

# What stays free while two engines are loaded at once; the plan's own headroom is for years.
SPARE_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Held:
    """Memory that comes back when an engine ends, in bytes."""

    ram_bytes: int = 0
    card_bytes: Mapping[int, int] = field(default_factory=dict)  # by the card's index
    memory_nodes: tuple[int, ...] | None = None


def held_by(plan: Plan, ram_bytes: int | None) -> Held:
    """What the engine of a plan holds; `ram_bytes` as seen, None: what was planned."""
    cards = {index: device_bytes(plan.budget, f"GPU {index}") for index in cards_of(plan)}
    ram = device_bytes(plan.budget, "RAM") if ram_bytes is None else ram_bytes
    return Held(ram, cards, plan.memory_nodes)


def together(all_of_them: Iterable[Held]) -> Held:
    """What several engines hold in all."""
    ram_bytes, cards = 0, dict[int, int]()
    for held in all_of_them:
        ram_bytes += held.ram_bytes
        for index, n_bytes in held.card_bytes.items():
            cards[index] = cards.get(index, 0) + n_bytes
    return Held(ram_bytes, cards)


def cards_of(plan: Plan) -> tuple[int, ...]:
    """The indexes of the cards that a plan uses."""
    return plan.gpu_indexes or (() if plan.gpu_index is None else (plan.gpu_index,))


def without(machine: Machine, held: Held, before: Machine) -> Machine:
    """The machine as it would be without an engine that runs on it.

    What was measured stays what it was `before` that engine ran: it would measure its own work.
    """
    memory, limits = machine.memory, machine.limits
    available, used = memory.available_bytes, limits.memory_used_bytes
    nodes = held.memory_nodes or tuple(node.index for node in machine.nodes)
    per_node = held.ram_bytes // max(1, len(nodes))
    copies = {gpu.index: gpu.copies for gpu in before.gpus}
    return replace(
        machine,
        memory=replace(
            memory,
            available_bytes=_more(available, held.ram_bytes, memory.total_bytes),
            bandwidths=before.memory.bandwidths,
        ),
        limits=replace(
            limits,
            memory_used_bytes=None if used is None else max(0, used - held.ram_bytes),
        ),
        nodes=tuple(
            replace(
                node,
                memory_free_bytes=_more(node.memory_free_bytes, per_node, node.memory_total_bytes),
            )
            if node.index in nodes
            else node
            for node in machine.nodes
        ),
        gpus=tuple(
            replace(
                gpu,
                memory_free_bytes=_more(
                    gpu.memory_free_bytes,
                    held.card_bytes.get(gpu.index, 0),
                    gpu.memory_total_bytes,
                ),
                copies=copies.get(gpu.index, ()),
            )
            for gpu in machine.gpus
        ),
        disks=before.disks,
        software=before.software,
        busy_cpus=before.busy_cpus,
    )


def fits_beside(plan: Plan, alone: Machine, held: Held) -> bool:
    """Whether the plan's engine can be loaded while the one that holds `held` still runs.

    `alone` is the machine without that engine. What is not known is no room.
    """
    rooms: dict[str, int | None] = {"RAM": _room(alone, held)}
    for gpu in alone.gpus:
        free = gpu.memory_free_bytes
        taken = held.card_bytes.get(gpu.index, 0)
        spare = int(SPARE_SHARE * (gpu.memory_total_bytes or 0))
        rooms[f"GPU {gpu.index}"] = None if free is None else free - taken - spare
    devices = {line.device for line in plan.budget} - {"disk"}
    return all(
        (room := rooms.get(device)) is not None and device_bytes(plan.budget, device) <= room
        for device in devices
    )


def _room(alone: Machine, held: Held) -> int | None:
    limit, used = alone.limits.memory_bytes, alone.limits.memory_used_bytes
    candidates = [alone.memory.available_bytes]
    if limit is not None:
        candidates.append(limit - (used or 0))
    known = [one for one in candidates if one is not None]
    return int((min(known) - held.ram_bytes) * (1 - SPARE_SHARE)) if known else None


def _more(free: int | None, back: int, total: int | None) -> int | None:
    if free is None:
        return None
    return free + back if total is None else min(total, free + back)
