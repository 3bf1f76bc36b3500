"""Which device holds which tensors: one card, several, main memory, the disk. Pure.

The order in which things are given up when a model does not fit the cards: a smaller KV type,
fewer slots, a shorter context (`wish.layouts`), a smaller quant (advice: another file), experts to
main memory, layers to main memory. What shortening the context did not achieve is not kept: once
weights have to leave the cards anyway, the context is as wished again.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from workhorse.plan.cuts import Cut, Sizes, split_layers
from workhorse.plan.memory import Layout, device_bytes
from workhorse.plan.placement_words import (
    cannot_split,
    experts_beside,
    layers_beside,
    smaller_quant,
    too_large,
)
from workhorse.records import BudgetLine, EngineBuild, Gpu, Machine, Model, Placed, Rejected


@dataclass(frozen=True, slots=True)
class Card:
    """A card and the bytes of it that a plan may use: its headroom stays free."""

    gpu: Gpu
    room_bytes: int


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a build can be told about placement."""

    split: bool  # layers over several cards
    experts: bool  # experts of the first layers in main memory

    @classmethod
    def of(cls, build: EngineBuild) -> "Abilities":
        """What `build` knows by its flags."""
        return cls("--tensor-split" in build.knows, "--n-cpu-moe" in build.knows)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where everything lies, under which settings, and what was not taken.

    `fits` is False when even the smallest settings exceed main memory.
    """

    cards: tuple[Card, ...]
    layout: Layout
    cut: Cut
    lines: tuple[BudgetLine, ...]
    rejected: tuple[Rejected, ...]
    sizes: Sizes
    fits: bool = True

    @property
    def devices(self) -> tuple[str, ...]:
        """The cards as budgets call them."""
        return tuple(f"GPU {card.gpu.index}" for card in self.cards)

    def groups(self, memory_nodes: tuple[int, ...] | None) -> tuple[Placed, ...]:
        """Which device holds which tensors; what is in main memory lies on these nodes."""
        return tuple(
            replace(group, memory_nodes=memory_nodes) if group.device == "RAM" else group
            for group in self.sizes.groups(self.cut, self.devices)
        )


def cards_of(gpus: Sequence[Gpu], headroom: float) -> tuple[Card, ...]:
    """The cards with a known memory, the roomiest first; what others hold of it counts."""
    found = []
    for gpu in gpus:
        if gpu.memory_total_bytes is None:
            continue
        free = gpu.memory_free_bytes
        free = gpu.memory_total_bytes if free is None else min(free, gpu.memory_total_bytes)
        room = int(free - headroom * gpu.memory_total_bytes)
        if room > 0:
            found.append(Card(gpu, room))
    return tuple(sorted(found, key=lambda card: (-card.room_bytes, card.gpu.index)))


def ram_room(machine: Machine, headroom: float) -> int | None:
    """Main memory that the engine may take: what is available here and in the control group."""
    candidates = [machine.memory.available_bytes]
    limit, used = machine.limits.memory_bytes, machine.limits.memory_used_bytes
    if limit is not None:
        candidates.append(limit - (used or 0))
    known = [c for c in candidates if c is not None]
    return int(max(0, min(known)) * (1 - headroom)) if known else None


def place(
    model: Model,
    sizes: Sizes,
    cards: Sequence[Card],
    ram_bytes: int | None,
    tries: Sequence[Layout],
    can: Abilities,
    *,
    lazy: bool,
    least_bits: float = 4.0,
) -> Placement:
    """The first placement that fits, as the module says; in main memory without a card."""
    search = _Search(model, sizes, tuple(cards), ram_bytes, tuple(tries), can, lazy)
    rejected: list[Rejected] = []
    if cards:
        whole = search.whole(rejected)
        if whole is not None:
            return whole
        advice = smaller_quant(model, sizes.weights, search.rooms_for_layers, least_bits)
        rejected.extend(advice)
        beside = search.beside(rejected)
        if beside is not None:
            return beside
    return search.in_ram(rejected)


def place_as_told(
    model: Model,
    sizes: Sizes,
    cards: Sequence[Card],
    ram_bytes: int | None,
    layout: Layout,
    *,
    gpu_layers: int,
    expert_layers: int,
    lazy: bool,
) -> Placement | None:
    """So many layers on these cards under this layout; None when a device has not the room."""
    search = _Search(
        model, sizes, tuple(cards), ram_bytes, (layout,), Abilities(split=True, experts=True), lazy
    )
    if cards and gpu_layers:
        return search.cut(tuple(cards), layout, gpu_layers, expert_layers)
    placed = search.in_ram([])
    return placed if placed.fits else None


@dataclass(frozen=True, slots=True)
class _Search:
    """One model on one machine; every method appends what it could not take to `rejected`."""

    model: Model
    sizes: Sizes
    cards: tuple[Card, ...]
    ram_bytes: int | None
    tries: tuple[Layout, ...]
    can: Abilities
    lazy: bool

    @property
    def together(self) -> tuple[Card, ...]:
        """The cards that can be used together."""
        return self.cards if self.can.split else self.cards[:1]

    @property
    def rooms(self) -> list[int]:
        """What each of those may hold."""
        return [card.room_bytes for card in self.together]

    @property
    def rooms_for_layers(self) -> list[int]:
        """The same less the projector, which lies on the first."""
        return rooms_for_layers(self.sizes, self.together)

    @property
    def gpus(self) -> list[Gpu]:
        """Those as words need them."""
        return [card.gpu for card in self.together]

    def sets(self) -> Iterator[tuple[Card, ...]]:
        """Cards to try together, the fewest first; for each number those of one node first."""
        for number in range(1, len(self.cards) + 1):
            if number > 1 and not self.can.split:
                return
            if number == 1:
                yield from ((card,) for card in self.cards)
                continue
            tried = set()
            nodes = dict.fromkeys(
                c.gpu.numa_node for c in self.cards if c.gpu.numa_node is not None
            )
            for node in (*nodes, None):
                same = [c for c in self.cards if node is None or c.gpu.numa_node == node][:number]
                chosen = tuple(sorted(same, key=lambda card: card.gpu.index))
                if len(chosen) == number and chosen not in tried:
                    tried.add(chosen)
                    yield chosen

    def whole(self, rejected: list[Rejected]) -> Placement | None:
        """Every layer on cards, with the best settings and the fewest cards that hold them."""
        every = self.model.layers + 1
        for layout in self.tries:
            for cards in self.sets():
                placed = self.cut(cards, layout, every, 0)
                if placed is not None:
                    return replace(placed, rejected=tuple(rejected))
            needed = self.sizes.on_cards_bytes(layout, len(self.together))
            rejected.append(too_large(layout, needed, sum(self.rooms), self.gpus))
        if len(self.cards) > 1 and not self.can.split:
            rejected.append(cannot_split())
        return None

    def beside(self, rejected: list[Rejected]) -> Placement | None:
        """Experts, then layers in main memory: as few as must."""
        every, layers = self.model.layers + 1, self.model.layers
        has_experts = any(self.sizes.weights.experts)
        for base in self.bases():
            if has_experts and self.can.experts:
                for cards in self.largest_sets():
                    found = least(
                        1,
                        layers,
                        lambda n, c=cards, b=base: self.cut(c, b, every, n),  # type: ignore[misc]
                    )
                    if found is not None:
                        return self.relaxed(found, rejected)
        for base in self.bases():
            experts = layers if has_experts and self.can.experts else 0
            for cards in self.largest_sets():
                found = least(
                    1,
                    layers,
                    lambda n, c=cards, b=base, e=experts: self.cut(c, b, every - n, e),  # type: ignore[misc]
                )
                if found is not None:
                    if has_experts:
                        rejected.append(experts_beside(layers, can=self.can.experts))
                    return self.relaxed(found, rejected)
        rejected.append(layers_beside(self.gpus))
        return None

    def bases(self) -> Iterator[Layout]:
        """For each context, the settings with the least KV: what was given up before weights."""
        contexts = dict.fromkeys(layout.context_tokens for layout in self.tries)
        for context in contexts:
            yield [layout for layout in self.tries if layout.context_tokens == context][-1]

    def largest_sets(self) -> list[tuple[Card, ...]]:
        """Sets of cards for a model that needs more than all of them: the most first."""
        return list(self.sets())[::-1]

    def relaxed(self, placed: Placement, rejected: list[Rejected]) -> Placement:
        """The best settings that need no more weights in main memory than `placed` does."""
        cut = placed.cut
        for layout in self.tries:
            if layout.context_tokens < placed.layout.context_tokens:
                break
            better = self.cut(placed.cards, layout, cut.gpu_layers, cut.expert_layers)
            if better is not None:
                return replace(better, rejected=tuple(rejected))
        return replace(placed, rejected=tuple(rejected))

    def cut(
        self, cards: tuple[Card, ...], layout: Layout, gpu_layers: int, expert_layers: int
    ) -> Placement | None:
        """The last `gpu_layers` layers over these cards, balanced; None when it does not fit."""
        whole = Cut((0,) * len(cards), self.model.layers, expert_layers, self.lazy)
        counts = split_layers(
            self.sizes, layout, whole, gpu_layers, rooms_for_layers(self.sizes, cards)
        )
        if counts is None:
            return None
        cut = replace(whole, counts=counts)
        lines = self.sizes.lines(layout, cut, [f"GPU {card.gpu.index}" for card in cards])
        if self.ram_bytes is not None and device_bytes(lines, "RAM") > self.ram_bytes:
            return None
        fits = all(
            device_bytes(lines, f"GPU {card.gpu.index}") <= card.room_bytes for card in cards
        )
        return Placement(cards, layout, cut, lines, (), self.sizes) if fits else None

    def in_ram(self, rejected: list[Rejected]) -> Placement:
        """Everything in main memory, with the best settings that fit it."""
        cut = Cut((), self.model.layers, 0, self.lazy)
        lines: tuple[BudgetLine, ...] = ()
        for layout in self.tries:
            lines = self.sizes.lines(layout, cut, [])
            needed = device_bytes(lines, "RAM")
            if self.ram_bytes is None or needed <= self.ram_bytes:
                return Placement((), layout, cut, lines, tuple(rejected), self.sizes)
            rejected.append(too_large(layout, needed, self.ram_bytes, ()))
        return Placement((), layout, cut, lines, tuple(rejected), self.sizes, fits=False)


def rooms_for_layers(sizes: Sizes, cards: Sequence[Card]) -> list[int]:
    """What each card may hold of the model itself: the projector lies on the first."""
    rooms = [card.room_bytes for card in cards]
    return [room - sizes.projector * (place == 0) for place, room in enumerate(rooms)]


def least(low: int, high: int, attempt: Callable[[int], Placement | None]) -> Placement | None:
    """What `attempt` gives for the least number that succeeds; None when `high` does not.

    Larger numbers take more from the cards, but a full main memory can refuse them again: the
    search then looks on from below.
    """
    found = None
    if attempt(high) is None:
        return next((p for n in range(low, high) if (p := attempt(n)) is not None), None)
    while low <= high:
        middle = (low + high) // 2
        placed = attempt(middle)
        if placed is None:
            low = middle + 1
        else:
            found, high = placed, middle - 1
    return found
