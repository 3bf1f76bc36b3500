"""How a model's layers are cut over devices, and what each then holds. Pure.

The engine counts layers from the last one, the output first: the first layers are those left in
main memory (llama-model.cpp, `i_gpu_start`, commit 0c1e570, 2026-10-01).
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from workhorse.plan.memory import (
    CUDA_CONTEXT_BYTES,
    RUNTIME_BYTES,
    Layout,
    compute_bytes,
    fitted,
    kv_bytes,
    output_bytes,
    projector_bytes,
    seen_cells,
    state_bytes,
)
from workhorse.plan.weights import Weights, weigh
from workhorse.records import BudgetLine, Model, Placed, WeightPart
from workhorse.text import Text

# With every layer on several cards the engine keeps this many batches in flight, each with its
# inputs (GGML_SCHED_MAX_COPIES, ggml/CMakeLists.txt, commit 0c1e570, 2026-10-01).
PIPELINE_COPIES = 4


@dataclass(frozen=True, slots=True)
class Cut:
    """Layers on each card (the output counts as one), the rest in main memory."""

    counts: tuple[int, ...]
    layers: int
    expert_layers: int  # the first so many layers keep their experts in main memory
    lazy: bool  # tables are read by row from the disk

    @property
    def gpu_layers(self) -> int:
        """Layers on cards, the output counted as one."""
        return sum(self.counts)

    @property
    def first_on_cards(self) -> int:
        """The first layer that lies on a card; `layers` is the output, one more: none."""
        return self.layers + 1 - self.gpu_layers

    @property
    def weights_in_ram(self) -> bool:
        """True when a decoded token reads weights of main memory."""
        return self.first_on_cards > 0 or self.expert_layers > 0

    def spans(self) -> list[range]:
        """The layers of each card; `layers` stands for the output."""
        spans, start = [], self.first_on_cards
        for count in self.counts:
            spans.append(range(start, start + count))
            start += count
        return spans


@dataclass(frozen=True, slots=True)
class Kept:
    """What a model keeps and computes with under one layout: KV of each layer, buffers."""

    kv: tuple[int, ...]
    state: tuple[int, ...]  # recurrent
    compute: int
    inputs: int  # what is copied to each card for each batch
    output: int


class Sizes:
    """Every size that a placement needs, reckoned once for a model and once for a layout."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.weights: Weights = weigh(model)
        # The engine puts it on the first card in use (`GPU` in clip.cpp, tools/mtmd of llama.cpp,
        # commit 0c1e570, 2026-10-01).
        self.projector: int = (
            0 if model.projector is None else sum(projector_bytes(model.projector))
        )
        self._kept: dict[Layout, Kept] = {}

    def kept(self, layout: Layout) -> Kept:
        """What the model keeps under `layout`."""
        if layout not in self._kept:
            model = self.model
            cells = max((seen_cells(a, layout) for a in model.attention if a), default=0)
            self._kept[layout] = Kept(
                tuple(kv_bytes(only(model, layer), layout) for layer in range(model.layers)),
                tuple(state_bytes(only(model, layer), layout) for layer in range(model.layers)),
                compute_bytes(model, layout),
                layout.micro_batch_tokens * (4 * model.embedding_size + 2 * cells),
                output_bytes(model, layout.slots),
            )
        return self._kept[layout]

    def entry_bytes(self, layout: Layout, layer: int, expert_layers: int) -> int:
        """What one layer (the output is the one after the last) takes of a card."""
        kept = self.kept(layout)
        keeps = kept.kv[layer] + kept.state[layer] if layer < self.model.layers else 0
        return self.weights.on_cards(layer, expert_layers) + keeps

    def buffer_bytes(self, layout: Layout, cut: Cut, cards: int) -> int:
        """Scratch memory of one card, beside its CUDA context.

        For a batch of a prompt the engine copies each weight that lies in main memory to the
        card: room for the largest such tensor.
        """
        kept = self.kept(layout)
        first = cut.first_on_cards if cut.counts else 0
        copied = (
            self.weights.largest[layer]
            for layer in range(self.model.layers)
            if layer < max(first, cut.expert_layers)
        )
        copies = 0
        if cards > 1 and first == 0 and not cut.expert_layers:
            copies = (PIPELINE_COPIES - 1) * kept.inputs
        return kept.compute + max(copied, default=0) + copies

    def on_cards_bytes(self, layout: Layout, cards: int) -> int:
        """What `cards` cards hold together when every layer is on them."""
        every = range(self.model.layers + 1)
        whole = Cut((len(every),) * cards, self.model.layers, 0, False)
        each = self.kept(layout).compute + CUDA_CONTEXT_BYTES
        return sum(self.entry_bytes(layout, layer, 0) for layer in every) + (
            each * len(whole.counts) + self.projector
        )

    def lines(self, layout: Layout, cut: Cut, devices: Sequence[str]) -> tuple[BudgetLine, ...]:
        """The budget of every device, item by item; `devices` names the cards of the cut."""
        found: list[BudgetLine] = []
        kept = self.kept(layout)
        for device, span in zip(devices, cut.spans(), strict=True):
            found += [
                *weight_lines(device, self.span_parts(span, cut.expert_layers)),
                *kept_lines(device, kept, [n for n in span if n < cut.layers]),
                computed_line(device, self.buffer_bytes(layout, cut, len(devices)), self.model),
                bound_line(device, CUDA_CONTEXT_BYTES),
            ]
        first = devices[0] if devices else "RAM"
        return (*found, *self.ram_lines(layout, cut), *projector_lines(self.model, first))

    def span_parts(self, span: range, expert_layers: int) -> Counter[WeightPart]:
        """Weights that a device holds of these layers, by what they are for."""
        held: Counter[WeightPart] = Counter()
        for layer in span:
            if layer == self.model.layers:
                held["output head"] += self.weights.on_cards(layer, expert_layers)
            else:
                held.update(self.weights.parts[layer])
                if layer < expert_layers:
                    held["experts"] -= self.weights.experts[layer]
        return held

    def ram_lines(self, layout: Layout, cut: Cut) -> Iterator[BudgetLine]:
        """What main memory holds, and what stays on the disk."""
        kept, weights = self.kept(layout), self.weights
        first = min(cut.first_on_cards, cut.layers) if cut.counts else cut.layers
        held = self.span_parts(range(first), 0)
        held["embedding"] = weights.embedding
        held["experts"] += sum(weights.experts[first : cut.expert_layers])
        if not cut.counts:
            held["output head"] = weights.output + weights.second_head
        if not cut.lazy:
            held["tables"] = weights.tables
        yield from weight_lines("RAM", held)
        if first:
            yield from kept_lines("RAM", kept, range(first))
            yield computed_line("RAM", kept.compute, self.model)
            yield bound_line("RAM", RUNTIME_BYTES)
        yield header_line("RAM", "output", kept.output)
        if cut.lazy:
            yield header_line("disk", "tables", weights.tables)

    def groups(self, cut: Cut, devices: Sequence[str]) -> Iterator[Placed]:
        """Which device holds which group of tensors; together they are all of the weights."""
        weights = self.weights
        first = min(cut.first_on_cards, cut.layers) if cut.counts else cut.layers
        yield Placed("embedding", "RAM", weights.embedding)
        if weights.tables:
            yield Placed("tables", "disk" if cut.lazy else "RAM", weights.tables)
        if first:
            held = sum(weights.layers[:first]) + sum(weights.experts[:first])
            yield Placed("layers", "RAM", held, 0, first - 1)
        if cut.expert_layers > first:
            held = sum(weights.experts[first : cut.expert_layers])
            yield Placed("experts", "RAM", held, first, cut.expert_layers - 1)
        for device, span in zip(devices, cut.spans(), strict=True):
            layers = [layer for layer in span if layer < cut.layers]
            if layers:
                held = sum(weights.on_cards(layer, cut.expert_layers) for layer in layers)
                yield Placed("layers", device, held, layers[0], layers[-1])
        last, head = "RAM", weights.output + weights.second_head
        if devices:
            last, head = devices[-1], weights.on_cards(cut.layers, 0)
        yield Placed("output", last, head)


def only(model: Model, layer: int) -> Model:
    """The model cut down to what one of its layers keeps."""
    recurrent = model.recurrent[layer : layer + 1]
    return replace(
        model, tensors=(), layers=1, attention=(model.attention[layer],), recurrent=recurrent
    )


def split_layers(
    sizes: Sizes,
    layout: Layout,
    cut: Cut,
    gpu_layers: int,
    rooms: Sequence[int],
) -> tuple[int, ...] | None:
    """How many of the last `gpu_layers` layers each card takes; None when they do not fit.

    The cards are filled to the same share of their rooms, as far as whole layers go: the tightest
    card decides, and none is full while another is empty.
    """
    every = range(cut.layers + 1 - gpu_layers, cut.layers + 1)
    entries = [sizes.entry_bytes(layout, layer, cut.expert_layers) for layer in every]
    final = replace(cut, counts=(*(0,) * (len(rooms) - 1), gpu_layers))
    fixed = sizes.buffer_bytes(layout, final, len(rooms)) + CUDA_CONTEXT_BYTES
    if len(rooms) == 1:
        return (gpu_layers,) if fixed + sum(entries) <= rooms[0] else None
    best = _fill(entries, [room - fixed for room in rooms])
    if best is None:
        return None
    low, high = 0.0, 1.0
    for _ in range(16):  # a share finer than a layer
        share = (low + high) / 2
        filled = _fill(entries, [int(room * share) - fixed for room in rooms])
        if filled is None:
            low = share
        else:
            best, high = filled, share
    return best


def _fill(entries: Sequence[int], rooms: Sequence[int]) -> tuple[int, ...] | None:
    """Entries in order over the rooms, at least one each; None when some are left over."""
    counts, at = [], 0
    for place, room in enumerate(rooms):
        left_for_others = len(rooms) - place - 1
        count = used = 0
        while at < len(entries) - left_for_others and used + entries[at] <= room:
            used += entries[at]
            at, count = at + 1, count + 1
        if not count:
            return None
        counts.append(count)
    return tuple(counts) if at == len(entries) else None


_HEADER = Text("from the model's header", "取自模型文件头")
_PROJECTOR = Text("weights, from the projector's header", "权重，取自投影器文件头")
_ONE_IMAGE = Text("scratch for one image, a bound", "处理一幅图像的临时内存，上限")
_BOUND = Text("an upper bound, measured 2026-11", "上限，2026-11 实测")


def header_line(
    device: str, item: Literal["weights", "tables", "kv", "state", "output"], n_bytes: int
) -> BudgetLine:
    """A line that follows from the model's header."""
    return BudgetLine(device, item, n_bytes, "header", _HEADER)


def weight_lines(device: str, held: Counter[WeightPart]) -> Iterator[BudgetLine]:
    """One line for each part of the weights that a device holds, the largest first."""
    for part, n_bytes in held.most_common():
        if n_bytes:
            yield replace(header_line(device, "weights", n_bytes), part=part)


def kept_lines(device: str, kept: Kept, layers: Sequence[int]) -> Iterator[BudgetLine]:
    """The lines of what these layers keep; recurrent state only where there is any."""
    yield header_line(device, "kv", sum(kept.kv[layer] for layer in layers))
    if state := sum(kept.state[layer] for layer in layers):
        yield header_line(device, "state", state)


def computed_line(device: str, n_bytes: int, model: Model) -> BudgetLine:
    """The line of the compute buffers."""
    return BudgetLine(device, "compute", n_bytes, "estimated", fitted(model))


def projector_lines(model: Model, device: str) -> Iterator[BudgetLine]:
    """The lines of what turns images into embeddings; none for a model without it."""
    if model.projector is None:
        return
    weights, scratch = projector_bytes(model.projector)
    yield BudgetLine(device, "projector", weights, "header", _PROJECTOR)
    yield BudgetLine(device, "projector", scratch, "estimated", _ONE_IMAGE)


def bound_line(device: str, n_bytes: int) -> BudgetLine:
    """The line of what the process takes beside the model."""
    return BudgetLine(device, "runtime", n_bytes, "estimated", _BOUND)
