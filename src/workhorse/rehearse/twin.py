"""Which layers a twin of a model has, so that its speed tells the whole model's. Pure.

A twin has the model's shapes and types with fewer layers. Two of them at different depths give
the cost of a layer and the fixed rest; the model's cost follows. That holds as long as a twin is
read from memory and not from the last-level cache, and as long as its layers are a fair sample:
the pattern of layer kinds is kept, and the mix of types.
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

from workhorse.errors import AppError
from workhorse.knowledge.architectures import architecture
from workhorse.knowledge.quants import quant
from workhorse.plan.speed import bytes_read
from workhorse.records import Machine, Model, Tensor
from workhorse.text import Text
from workhorse.units import GIB, MIB, show_bytes

LAYER_TENSOR = re.compile(r"blk\.(\d+)\.(.+)")

# What successive tokens read of a twin (of experts: all, since each token takes others) has to be
# this many times the last-level cache. With 135M and 270M twins that
# sat in it partly, decode came out 16 and 19 % too fast; a 1.1B shape at four times the cache
# was 1.7 % off (2026-11, 32 MiB cache).
CACHE_TIMES = 4
# Below this many times the cache the whole model itself is measured: no depth would be a fair one.
CACHE_TIMES_WHOLE = 8
# A cache that is not told: as large as the largest of one chip of the time (2026-11).
UNKNOWN_CACHE_BYTES = 64 * MIB
GPU_CACHE_BYTES = 96 * MIB  # more than any card's L2 but that of an RTX 5090 (2026-11)
AMD_CORES_A_CACHE = 4  # of Zen 1 and 2; later ones have 8: on the safe side

# How much of the twins' own noise, as a share, the extrapolated figure may have. Deeper twins
# have less and take longer: rounds within 2 % of each other give a forecast within 3 %.
AMPLIFIED_MOST = 1.3
WHOLE_FROM_SHARE = 0.8  # twins with so many of the layers take as long as the whole model
WHOLE_MAX_BYTES = 3 * GIB  # a stand-in with all layers is not made larger than that


@dataclass(frozen=True, slots=True)
class TwinTensor:
    """One tensor of a twin, and its name in the model."""

    name: str
    type: str
    shape: tuple[int, ...]
    n_bytes: int


@dataclass(frozen=True, slots=True)
class Twin:
    """A model with fewer layers: `layers[i]` is the model's layer that the i-th one copies."""

    layers: tuple[int, ...]
    tensors: tuple[TwinTensor, ...]
    layers_read_bytes: float  # of the layers, by one decoded token
    working_bytes: int  # what successive tokens read, experts whole

    @property
    def n_bytes(self) -> int:
        """Bytes of all weights."""
        return sum(tensor.n_bytes for tensor in self.tensors)


@dataclass(frozen=True, slots=True)
class TwinPlan:
    """The twins to measure, shallow first: two, or one with all layers (`whole`)."""

    twins: tuple[Twin, ...]
    layers: int  # of the model, those for multi-token prediction left out
    layers_read_bytes: float  # of these, by one decoded token
    cache_bytes: int

    @property
    def whole(self) -> bool:
        """True when the one twin has all layers, so that nothing is extrapolated."""
        return len(self.twins) == 1

    @property
    def share(self) -> float:
        """The share of the model's layers that the twins have together."""
        return sum(len(twin.layers) for twin in self.twins) / self.layers

    @property
    def n_bytes(self) -> int:
        """What the twins take on the disk, but for their headers, and in memory."""
        return sum(twin.n_bytes for twin in self.twins)


def last_level_cache(machine: Machine, *, gpu: bool) -> int:
    """Bytes of all last-level caches that the weights could stay in; an upper bound."""
    if gpu:
        return GPU_CACHE_BYTES
    cpu = machine.cpu
    if cpu.l3_bytes is None:
        return UNKNOWN_CACHE_BYTES
    sockets = len({core.socket for core in cpu.cores}) or 1
    caches = sockets
    if cpu.vendor == "AuthenticAMD":
        caches = max(sockets, -(-len(cpu.cores) // AMD_CORES_A_CACHE))
    return cpu.l3_bytes * caches


def layer_kinds(model: Model, layers: int) -> tuple[Hashable, ...]:
    """What distinguishes the layers but for the quant types: their tensors' shapes, their KV."""
    shapes: dict[int, list[tuple[str, tuple[int, ...]]]] = defaultdict(list)
    for tensor in model.tensors:
        if found := LAYER_TENSOR.fullmatch(tensor.name):
            shapes[int(found[1])].append((found[2], tensor.shape))
    return tuple((model.attention[i], tuple(sorted(shapes[i]))) for i in range(layers))


def pattern(kinds: Sequence[Hashable]) -> tuple[int, int] | None:
    """Layers before the pattern begins, and its period; None when it is not there twice."""
    count = len(kinds)
    for length in range(1, count + 1):
        for lead in range(length):
            period = length - lead
            if lead + 2 * period <= count and all(
                kinds[i] == kinds[i + period] for i in range(lead, count - period)
            ):
                return lead, period
    return None


def fair_sample(sizes: Sequence[float], count: int) -> tuple[int, ...]:
    """`count` places whose sizes are spread as all sizes are, in order."""
    by_size = sorted(range(len(sizes)), key=lambda place: (sizes[place], place))
    chosen = (by_size[int((i + 0.5) * len(sizes) / count)] for i in range(count))
    return tuple(sorted(chosen))


def make_twin(model: Model, sources: Sequence[int]) -> Twin:
    """The twin whose layers copy those of the model named by `sources`."""
    by_layer: dict[int, list[tuple[str, Tensor]]] = defaultdict(list)
    tensors, read, working = [], 0.0, 0
    for tensor in model.tensors:
        if found := LAYER_TENSOR.fullmatch(tensor.name):
            by_layer[int(found[1])].append((found[2], tensor))
            continue
        shape = table_shape(tensor, model, len(sources))
        tensors.append(TwinTensor(tensor.name, tensor.type, shape, storage(tensor.type, shape)))
        working += tensor.n_bytes if bytes_read(tensor, model) else 0
    for place, source in enumerate(sources):
        for suffix, tensor in by_layer[source]:
            name = f"blk.{place}.{suffix}"
            tensors.append(TwinTensor(name, tensor.type, tensor.shape, tensor.n_bytes))
            read += bytes_read(tensor, model)
            working += tensor.n_bytes
    return Twin(tuple(sources), tuple(tensors), read, working)


def table_shape(tensor: Tensor, model: Model, layers: int) -> tuple[int, ...]:
    """A tensor outside the layers; tables with a part for each layer are cut with them."""
    if tensor.name not in ("per_layer_token_embd.weight", "per_layer_model_proj.weight"):
        return tensor.shape
    axis = 0 if tensor.name == "per_layer_token_embd.weight" else 1
    size = tensor.shape[axis]
    if size % model.layers:  # an n-gram table has no part for each layer
        return tensor.shape
    cut = size // model.layers * layers
    return tuple(cut if i == axis else s for i, s in enumerate(tensor.shape))


def storage(type_name: str, shape: Sequence[int]) -> int:
    """Bytes of a tensor."""
    kind = quant(type_name)
    elements = 1
    for size in shape:
        elements *= size
    return elements // kind.block_elements * kind.block_bytes


def plan_twins(model: Model, cache_bytes: int, room_bytes: int | None) -> TwinPlan:
    """The twins to make for a model.

    `room_bytes` is the memory for all twins together, None: not known. Layers for multi-token
    prediction are left out: plain decoding does not run them. AppError when the method does not
    hold: the layers follow no pattern, or the twins that the cache demands do not fit.
    """
    layers = model.layers - model.draft_layers
    whole = make_twin(model, range(layers))

    def planned(*twins: Twin) -> TwinPlan:
        return TwinPlan(twins, layers, whole.layers_read_bytes, cache_bytes)

    limit = WHOLE_MAX_BYTES if room_bytes is None else min(WHOLE_MAX_BYTES, room_bytes)
    small = whole.working_bytes < CACHE_TIMES_WHOLE * cache_bytes
    if small and whole.n_bytes <= limit:
        return planned(whole)
    found = None if has_fixed_depth(model) else pattern(layer_kinds(model, layers))
    depths = list(two_depths(model, layers, *found, cache_bytes)) if found else []
    for pair in depths:
        twins = planned(*pair)
        if room_bytes is None or twins.n_bytes <= room_bytes:
            copy = twins.share >= WHOLE_FROM_SHARE and whole.n_bytes <= limit
            return planned(whole) if copy else twins
    if depths and room_bytes is not None and whole.n_bytes > limit:
        raise too_large(planned(*depths[-1]).n_bytes, room_bytes)
    if whole.n_bytes <= limit:
        return planned(whole)
    raise no_twin(model, whole, cache_bytes, patterned=found is not None)


def has_fixed_depth(model: Model) -> bool:
    """True for architectures whose engine code looks at the number of layers."""
    facts = architecture(model.architecture)
    return facts.kv_layers is not None or facts.window_if_layers == model.layers


def two_depths(
    model: Model, layers: int, lead: int, period: int, cache_bytes: int
) -> Iterator[tuple[Twin, Twin]]:
    """Pairs of a shallow and a deep twin, the best first and then ever smaller ones.

    None at all when the cache asks for more than half of the model.
    """
    periods = (layers - lead) // period

    def block_layers(block: int) -> range:
        return range(lead + block * period, lead + (block + 1) * period)

    sizes: list[float] = [0.0] * layers
    fixed = 0.0
    for tensor in model.tensors:
        named = LAYER_TENSOR.fullmatch(tensor.name)
        if named is None:
            fixed += bytes_read(tensor, model)
        elif int(named[1]) < layers:
            sizes[int(named[1])] += bytes_read(tensor, model)
    block_sizes = [sum(sizes[i] for i in block_layers(b)) for b in range(periods)]

    def twin_of(count: int) -> Twin:
        chosen = fair_sample(block_sizes, count)
        return make_twin(model, [*range(lead), *(i for b in chosen for i in block_layers(b))])

    shallow = first(
        lambda count: twin_of(count).working_bytes >= CACHE_TIMES * cache_bytes, range(1, periods)
    )
    if shallow is None or 2 * shallow > periods:
        return
    shares = (fixed + sum(sizes[:lead])) / (sum(block_sizes) / periods)
    deep = first(
        lambda count: amplified(shares, shallow, count, periods) <= AMPLIFIED_MOST,
        range(shallow + 1, periods),
    )
    for count in range(deep or periods, shallow, -1):
        yield twin_of(shallow), twin_of(count)


def amplified(fixed: float, shallow: int, deep: int, whole: int) -> float:
    """The noise of a figure extrapolated to `whole` blocks, over that of the two measured ones.

    `fixed` is what costs whatever the depth, in blocks.
    """
    noise = math.hypot(fixed + shallow, fixed + deep) / (deep - shallow) * (whole - deep)
    return noise / (fixed + whole)


def first(holds: Callable[[int], bool], counts: range) -> int | None:
    """The first count for which it holds; every later one does too."""
    low, high = counts.start, counts.stop
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low if low < counts.stop else None


def too_large(needed: int, room: int) -> AppError:
    """The twins do not fit the memory."""
    return AppError(
        Text(
            f"The twins take {show_bytes(needed)}; there is room for {show_bytes(room)}.",
            f"缩小模型需要 {show_bytes(needed)}，只有 {show_bytes(room)} 可用。",
        ),
        Text(
            "Free memory, or rely on `workhorse plan`, which needs no twin.",
            "请释放内存，或使用无需缩小模型的 `workhorse plan`。",
        ),
    )


def no_twin(model: Model, whole: Twin, cache_bytes: int, *, patterned: bool) -> AppError:
    """The method does not hold for this model, and the whole model is too large to be copied."""
    if patterned:
        size, cache = show_bytes(whole.working_bytes), show_bytes(cache_bytes)
        why = Text(
            f"{model.name} has {size}, and nothing smaller outweighs the caches of {cache} enough "
            "to tell its speed",
            f"{model.name} 有 {size}，更小的缩小模型不足以超过 {cache} 的缓存",
        )
    else:
        why = Text(
            f"the layers of {model.name} ({model.architecture}) follow no pattern that a twin "
            "could keep",
            f"{model.name}（{model.architecture}）的各层没有可以保持的规律",
        )
    return AppError(
        Text(
            f"There is no fair twin: {why.en}.",
            f"无法做出可靠的缩小模型：{why.zh}。",
        ),
        Text(
            "`workhorse plan` forecasts it with a wider band.",
            "可用 `workhorse plan` 预测，误差范围较大。",
        ),
    )
