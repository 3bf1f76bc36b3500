"""Boxes to reckon with: those of a running fleet as they were measured, those of plans. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from workhorse.fleet.capacity import Box, Boxes
from workhorse.fleet.fleet_plan import Option
from workhorse.fleet.replica_speeds import Speeds, measured_speeds, planned_speeds
from workhorse.fleet.status import FleetStatus, ReplicaStatus


@dataclass(frozen=True, slots=True)
class Found:
    """The boxes of a fleet, and the replicas whose speed is not known."""

    boxes: tuple[Boxes, ...]
    left_out: tuple[str, ...]


def boxes_of_status(status: FleetStatus) -> Found:
    """The nodes of a running fleet by kind, each kind with the mean speeds of its nodes.

    Nodes of a kind that run other replicas (one of two cards is lost) are boxes of their own.
    """
    by_node: dict[str, list[tuple[ReplicaStatus, Speeds]]] = {}
    left_out: list[str] = []
    for one in status.replicas:
        speeds = measured_speeds(
            one.slots, one.prefill_tokens_per_s, one.decode_tokens_per_s, one.total_tokens_per_s
        )
        if one.node is None or speeds is None:
            left_out.append(one.name)
        else:
            by_node.setdefault(one.node, []).append((one, speeds))
    alike: dict[tuple[str, tuple[int, ...]], list[list[tuple[ReplicaStatus, Speeds]]]] = {}
    for replicas in by_node.values():
        replicas.sort(key=lambda pair: (pair[1].slots, pair[0].name))
        slots = tuple(speeds.slots for _, speeds in replicas)
        alike.setdefault((replicas[0][0].kind, slots), []).append(replicas)
    names = [kind for kind, _ in alike]
    boxes = [
        Boxes(
            Box(
                kind if names.count(kind) == 1 else f"{kind} ({len(slots)})",
                tuple(
                    mean_speeds([replicas[place][1] for replicas in nodes])
                    for place in range(len(slots))
                ),
                all(one.measured for replicas in nodes for one, _ in replicas),
            ),
            len(nodes),
        )
        for (kind, slots), nodes in alike.items()
    ]
    return Found(tuple(boxes), tuple(left_out))


def mean_speeds(all_of_them: Sequence[Speeds]) -> Speeds:
    """The mean of replicas with equal slots: of their times, which are what adds up."""
    count = len(all_of_them)
    first = all_of_them[0]
    return Speeds(
        first.slots,
        count / sum(1 / one.prefill_tokens_per_s for one in all_of_them),
        tuple(
            sum(one.step_s[streams] for one in all_of_them) / count
            for streams in range(first.slots)
        ),
        first.prompt_batch_tokens,
    )


def box_of_option(name: str, option: Option) -> Box | None:
    """The box that a plan promises; None where it does not know how fast an engine is."""
    speeds = [planned_speeds(one.plan) for one in option.engines]
    known = tuple(one for one in speeds if one is not None)
    return Box(name, known, measured=False) if len(known) == len(speeds) else None
