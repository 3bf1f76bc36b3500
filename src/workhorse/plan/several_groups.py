"""Which cards go together when one machine runs several engines. Pure."""

from collections.abc import Sequence
from itertools import combinations

from workhorse.knowledge.links import link_rank
from workhorse.plan.several_lost import lost_pairs
from workhorse.records import Gpu, GpuLink, Machine

Group = tuple[int, ...]
# The rank of a link that loses copies: below every other.
LOST = -1000.0


def groups_of(machine: Machine, gpus: Sequence[Gpu], each: int) -> tuple[Group, ...]:
    """The cards in groups of `each`, the best joined together; what is left over is left out.

    Two divisions are compared: of all cards, and of each node's first, what is left of them after.
    """
    if each < 1:
        return ()
    nodes = dict.fromkeys(gpu.numa_node for gpu in gpus)
    of_nodes: list[list[Gpu]] = []
    left: list[Gpu] = []
    for node in nodes:
        groups, over = divided(machine, [gpu for gpu in gpus if gpu.numa_node == node], each)
        of_nodes += groups
        left += over
    of_nodes += divided(machine, left, each)[0]
    of_all = divided(machine, gpus, each)[0]
    best = max((of_all, of_nodes), key=lambda groups: worth(machine, groups))
    return tuple(sorted(tuple(sorted(gpu.index for gpu in group)) for group in best))


def best_joined(machine: Machine, gpus: Sequence[Gpu], chosen: Group) -> Group:
    """As many of these cards as were chosen that are joined best; those where none is better."""
    by_index = {gpu.index: gpu for gpu in gpus}
    lost = lost_pairs(machine.gpu_links)

    def joined(group: Group) -> tuple[float, int, float]:
        cards = [by_index[index] for index in group]
        ranks = sum(rank_between(machine, *two) for two in combinations(cards, 2))
        return (*worth(machine, [cards]), ranks)

    best = chosen
    for start in gpus:
        others = [gpu for gpu in gpus if gpu is not start]
        group = [start]
        while len(group) < len(chosen):
            near = max(others, key=lambda gpu: (nearness(machine, group, gpu), -gpu.index))
            group.append(near)
            others.remove(near)
        found = tuple(sorted(gpu.index for gpu in group))
        if not lost.intersection(combinations(found, 2)) and joined(found) > joined(best):
            best = found
    return best


def divided(machine: Machine, gpus: Sequence[Gpu], each: int) -> tuple[list[list[Gpu]], list[Gpu]]:
    """Groups of so many cards, and what is left over.

    A group starts with the first card that is free and takes those that it reaches best: by
    NVLink, then below one switch, then on its node.
    """
    left = sorted(gpus, key=lambda gpu: gpu.index)
    found: list[list[Gpu]] = []
    while len(left) >= each:
        group = [left.pop(0)]
        while len(group) < each:
            best = max(left, key=lambda gpu: (nearness(machine, group, gpu), -gpu.index))
            group.append(best)
            left.remove(best)
        found.append(group)
    return found, left


def worth(machine: Machine, groups: Sequence[Sequence[Gpu]]) -> tuple[float, int]:
    """How well the cards of these groups are joined: the worst link of each, then their nodes."""
    links = [
        min((rank_between(machine, *two) for two in combinations(group, 2)), default=0.0)
        for group in groups
    ]
    return sum(links), sum(len({gpu.numa_node for gpu in group}) == 1 for group in groups)


def nearness(machine: Machine, group: Sequence[Gpu], gpu: Gpu) -> tuple[float, bool, float]:
    """How well a card is joined to a group: its worst link, its node, all of its links."""
    ranks = [rank_between(machine, other, gpu) for other in group]
    same_node = gpu.numa_node is not None and gpu.numa_node == group[0].numa_node
    return min(ranks), same_node, sum(ranks)


def rank_between(machine: Machine, one: Gpu, other: Gpu) -> float:
    """The rank of the link between two cards; by their nodes where the driver tells none."""
    link = link_between(machine, one.index, other.index)
    if (min(one.index, other.index), max(one.index, other.index)) in lost_pairs(machine.gpu_links):
        return LOST
    if link is not None:
        return link_rank(link.path, link.nvlinks)
    apart = None not in (one.numa_node, other.numa_node) and one.numa_node != other.numa_node
    return link_rank("SYS" if apart else "NODE", None)


def link_between(machine: Machine, one: int, other: int) -> GpuLink | None:
    """The link between two cards by their indexes; None where it is not known."""
    pair = (min(one, other), max(one, other))
    return next((link for link in machine.gpu_links if (link.first, link.second) == pair), None)
