"""One model over several machines by llama.cpp's RPC: which layers where, and how fast. Pure.

The main machine runs the server and keeps the output; each helper lends its cards, or its main
memory, as devices that hold layers. A token passes the machines one after the other: they add up
their memory, and not their speed.

How a step uses the link was measured between two network namespaces (`benchmarks/fleet_spread.py`,
llama.cpp 0c1e570, SmolLM2 135M, 2026-12): 4.5 ms more a token over a link without delay (84.5 tok/s
became 61.4), and one round trip: with 10 ms of it a token took 10.4 ms more.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from workhorse.fleet.spread_words import does_not_fit, no_rpc, spread_reason
from workhorse.plan.checks import usable_gpus
from workhorse.plan.cpus import choose_cpus, spread_cpus
from workhorse.plan.cuts import Sizes
from workhorse.plan.memory import CUDA_CONTEXT_BYTES, RUNTIME_BYTES, Layout
from workhorse.plan.pages import choose_pages
from workhorse.plan.placement import Card, Placement, cards_of, place_as_told, ram_room
from workhorse.plan.planner import Course, plan_of
from workhorse.plan.readers import memory_reader
from workhorse.plan.speed import Reader, card_reader, setup_for
from workhorse.plan.speed.decode import Question, step
from workhorse.plan.speed.reads import PROTOCOL_DEPTH_TOKENS
from workhorse.plan.wish import Wish, layouts, shares_kv
from workhorse.records import (
    BudgetLine,
    EngineBuild,
    Estimate,
    Forecast,
    Gpu,
    Machine,
    Model,
    Placed,
    Plan,
    SpeedTerm,
    StreamSpeed,
)
from workhorse.text import Text
from workhorse.units import show_bytes, show_duration

ROUND_TRIPS = 1.0  # a helper and step
STEP_S = 4.5e-3  # of a helper and step, whatever the link: commands, handing over, waking up
STEP_BYTES = 4096  # names of the graph, positions
CELL_BYTES = 7  # of the mask, for each token of context
STATE_BYTES = 4  # activations travel as F32, there and back
BATCH_TOKENS = 512
# Devices of helpers get indexes that no card of the main machine has.
FIRST_INDEX = 1000
# How far the link's part may be off: other loads on it, small packets.
LINK_LOW, LINK_HIGH = 0.7, 2.0


@dataclass(frozen=True, slots=True)
class Link:
    """What was measured between the main machine and a helper."""

    bytes_per_s: float
    round_trip_s: float


@dataclass(frozen=True, slots=True)
class Helper:
    """A machine that lends devices, and the way to it."""

    node_id: str
    name: str
    machine: Machine
    link: Link


@dataclass(frozen=True, slots=True)
class Share:
    """What one helper holds."""

    node_id: str
    name: str
    devices: tuple[str, ...]  # as the plan's budget calls them
    cards: tuple[int, ...]  # its own indexes of them; (): main memory
    threads: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class Spread:
    """A plan over several machines; `plan.rpc` is empty until the helpers listen."""

    plan: Plan
    shares: tuple[Share, ...]
    link_s: float  # of each token: the part that the links take
    load_s: float  # the helpers' weights over the links, the first time
    forecast: Forecast


@dataclass(frozen=True, slots=True)
class _Device:
    helper: Helper
    card: Card
    own_index: int | None  # None: main memory
    reader: Reader
    threads: int

    @property
    def virtual(self) -> str:
        return f"GPU {self.card.gpu.index}"

    @property
    def name(self) -> str:
        what = "RAM" if self.own_index is None else f"GPU {self.own_index}"
        return f"{self.helper.name} {what}"


def spread_over(
    model: Model, machine: Machine, build: EngineBuild, helpers: Sequence[Helper], wish: Wish
) -> Spread:
    """The fastest way to hold the model on these machines together; AppError: it does not fit."""
    if "--rpc" not in build.knows:
        raise no_rpc(build)
    sizes = Sizes(model)
    cpu = choose_cpus(machine)
    cpu = spread_cpus(machine) if len(machine.nodes) > 1 else cpu
    pages = choose_pages(machine)
    devices = [one for n, h in enumerate(helpers) for one in _devices(h, n, build, wish.headroom)]
    local = cards_of(usable_gpus(machine, build), wish.headroom)
    readers: dict[str, Reader] = {
        **{one.virtual: one.reader for one in devices},
        **{f"GPU {card.gpu.index}": card_reader(card.gpu) for card in local},
        "RAM": memory_reader(machine, cpu, pages),
    }
    # llama.cpp puts the devices of other machines first (`--rpc`, common/arg.cpp).
    cards = (*(one.card for one in devices), *local)
    tries = layouts(model, wish, BATCH_TOKENS, shared_kv=shares_kv(model, build))
    for layout in tries:
        found = list(_placements(model, sizes, cards, ram_room(machine, wish.headroom), layout))
        timed = [(_step_s(model, one, devices, readers), one) for one in found]
        known = [(seconds, one) for seconds, one in timed if seconds is not None]
        if not found:
            continue
        placed = min(known, key=lambda pair: pair[0])[1] if known else found[0]
        setup = setup_for(build, "RAM", huge_pages=pages.huge_pages, threads=cpu.threads)
        course = Course(placed, cpu, pages, readers, setup)
        plan = plan_of(machine, model, build, wish, (), course)
        return _named(model, plan, placed, devices, readers)
    raise does_not_fit(model, [machine, *(one.machine for one in helpers)], wish)


def _devices(helper: Helper, number: int, build: EngineBuild, headroom: float) -> Iterator[_Device]:
    """What a helper lends: its cards, and without one its main memory, as rpc-server does."""
    machine, first = helper.machine, FIRST_INDEX + 100 * number
    cards = cards_of(usable_gpus(machine, build), headroom)
    cpu = spread_cpus(machine) if len(machine.nodes) > 1 else choose_cpus(machine)
    for card in sorted(cards, key=lambda one: one.gpu.index):
        gpu = replace(card.gpu, index=first + card.gpu.index, numa_node=None)
        virtual = Card(gpu, card.room_bytes)
        yield _Device(helper, virtual, card.gpu.index, card_reader(card.gpu), cpu.threads)
    room = ram_room(machine, headroom)
    if not cards and room:
        reader = memory_reader(machine, cpu, choose_pages(machine))
        # A card's context is counted for every device, and main memory has none.
        card = Card(_as_card(first, room), room + CUDA_CONTEXT_BYTES - RUNTIME_BYTES)
        yield _Device(helper, card, None, reader, cpu.threads)


def _as_card(index: int, room_bytes: int) -> Gpu:
    """Main memory of another machine, in the shape in which layers are placed on devices."""
    unknown = dict.fromkeys(
        ("uuid", "pci_address", "compute_capability", "memory_bus_bits", "memory_clock_max_mhz",
         "rated_bandwidth_bytes_per_s", "pcie_generation_now", "pcie_generation_max",
         "pcie_width_now", "pcie_width_max", "numa_node", "ecc_enabled", "temperature_c",
         "power_limit_w", "power_limit_default_w", "throttle_reasons")
    )  # fmt: skip
    return Gpu(
        index=index,
        name="main memory",
        memory_total_bytes=room_bytes,
        memory_free_bytes=room_bytes,
        **unknown,  # type: ignore[arg-type]
    )


def _placements(
    model: Model, sizes: Sizes, cards: Sequence[Card], ram_bytes: int | None, layout: Layout
) -> Iterator[Placement]:
    """Every number of layers on the devices that fits, the fewest first."""
    for count in range(2, model.layers + 2):
        placed = place_as_told(
            model, sizes, cards, ram_bytes, layout, gpu_layers=count, expert_layers=0, lazy=False
        )
        if placed is not None:
            yield placed


def _groups(placed: Placement, devices: Sequence[_Device]) -> tuple[Placed, ...]:
    """Where everything lies. The output stays on the main machine: the engine is told so.

    On a helper it would send the logits back: 600 KB for each token of a vocabulary of 150,000.
    """
    lent = {one.virtual for one in devices}
    return tuple(
        replace(group, device="RAM") if group.group == "output" and group.device in lent else group
        for group in placed.groups(None)
    )


def _step_s(
    model: Model, placed: Placement, devices: Sequence[_Device], readers: Mapping[str, Reader]
) -> float | None:
    """Seconds of a token; None where a bandwidth is not known."""
    groups = _groups(placed, devices)
    kv_types = (placed.layout.kv_type_k, placed.layout.kv_type_v)
    found = step(Question(model, kv_types, PROTOCOL_DEPTH_TOKENS, groups), readers)
    if found is None:
        return None
    return found.seconds + sum(term.seconds for term in link_terms(model, groups, devices, 1))


def link_terms(
    model: Model, groups: Sequence[Placed], devices: Sequence[_Device], streams: int
) -> list[SpeedTerm]:
    """What the way to each helper in use costs a step."""
    used = {group.device for group in groups if group.group == "layers"}
    helpers = {one.helper.node_id: one.helper for one in devices if one.virtual in used}
    return [
        SpeedTerm(
            helper.name,
            Text("way there and back", "往返传输"),
            link_seconds(model, helper.link, streams),
            Text(
                f"measured: {show_bytes(helper.link.bytes_per_s)}/s, "
                f"{show_duration(helper.link.round_trip_s)} there and back",
                f"实测：{show_bytes(helper.link.bytes_per_s)}/s，"
                f"往返 {show_duration(helper.link.round_trip_s)}",
            ),
        )
        for helper in helpers.values()
    ]


def link_seconds(
    model: Model, link: Link, streams: int, depth_tokens: int = PROTOCOL_DEPTH_TOKENS
) -> float:
    """Seconds that one step of so many streams spends on the way to one helper and back."""
    there = STEP_BYTES + streams * (STATE_BYTES * model.embedding_size + CELL_BYTES * depth_tokens)
    back = streams * STATE_BYTES * model.embedding_size
    return STEP_S + ROUND_TRIPS * link.round_trip_s + (there + back) / link.bytes_per_s


def _named(
    model: Model,
    plan: Plan,
    placed: Placement,
    devices: Sequence[_Device],
    readers: Mapping[str, Reader],
) -> Spread:
    """The plan with the helpers' devices under names that a reader knows, and its forecast."""
    names = {one.virtual: one.name for one in devices}
    groups = _groups(placed, devices)
    budget = tuple(_budget_line(line, names) for line in plan.budget)
    named = tuple(replace(one, device=names.get(one.device, one.device)) for one in groups)
    shares = _shares(devices, budget)
    local = tuple(i for i in plan.gpu_indexes if i < FIRST_INDEX)
    link_s = sum(term.seconds for term in link_terms(model, groups, devices, 1))
    forecast = _with_links(model, plan, placed, devices, readers)
    load_s = sum(
        share.n_bytes / one.helper.link.bytes_per_s
        for share in shares
        for one in devices
        if one.name == share.devices[0]
    )
    plan = replace(
        plan,
        budget=budget,
        placement=named,
        forecast=forecast,
        gpu_indexes=local,
        gpu_uuids=(),
        gpu_index=local[0] if local else None,
        device=" + ".join(dict.fromkeys(one.device for one in named if one.group == "layers")),
        reasons=(
            spread_reason({one.name: one.n_bytes for one in shares}, link_s, load_s),
            *plan.reasons,
        ),
    )
    return Spread(plan, shares, link_s, load_s, forecast)


def _budget_line(line: BudgetLine, names: Mapping[str, str]) -> BudgetLine:
    if line.part == "output head" and line.device in names:
        return replace(line, device="RAM")
    name = names.get(line.device, line.device)
    if line.item == "runtime" and line.device in names and name.endswith(" RAM"):
        return replace(line, device=name, n_bytes=RUNTIME_BYTES)
    return replace(line, device=name)


def _shares(devices: Sequence[_Device], budget: Sequence[BudgetLine]) -> tuple[Share, ...]:
    """What each helper in use holds."""
    held: dict[str, int] = {}
    for line in budget:
        if line.item in ("weights", "tables"):
            held[line.device] = held.get(line.device, 0) + line.n_bytes
    by_helper: dict[str, list[_Device]] = {}
    for one in devices:
        if held.get(one.name):
            by_helper.setdefault(one.helper.node_id, []).append(one)
    return tuple(
        Share(
            node_id,
            its[0].helper.name,
            tuple(one.name for one in its),
            tuple(one.own_index for one in its if one.own_index is not None),
            its[0].threads,
            sum(held[one.name] for one in its),
        )
        for node_id, its in by_helper.items()
    )


def _with_links(
    model: Model,
    plan: Plan,
    placed: Placement,
    devices: Sequence[_Device],
    readers: Mapping[str, Reader],
) -> Forecast:
    """The forecast with the links' part in it, of one stream and of several."""
    groups = _groups(placed, devices)
    question = Question(model, (plan.kv_type_k, plan.kv_type_v), PROTOCOL_DEPTH_TOKENS, groups)
    source = Text(
        "each machine's part one after the other, and the measured links",
        "各机器依次计算的时间，加上实测的网络时间",
    )

    def speed(streams: int) -> Estimate | None:
        found = step(question, readers, streams)
        if found is None:
            return None
        link_s = sum(term.seconds for term in link_terms(model, groups, devices, streams))
        slow = found.seconds / found.low + link_s * LINK_HIGH
        fast = found.seconds / found.high + link_s * LINK_LOW
        value = 1 / (found.seconds + link_s)
        return Estimate(value, 1 / slow, 1 / fast, "tok/s", "estimated", source)

    one = speed(1)
    counts = (1, 2, 4, 8, 16)
    return replace(
        plan.forecast,
        decode_tokens_per_s=one,
        uncorrected_tokens_per_s=None,  # what other plans learn from has no link in it
        prefill_tokens_per_s=_prompt(model, plan, groups, devices),
        streams=tuple(
            StreamSpeed(n, each, _times(each, n)) for n in counts if (each := speed(n)) is not None
        ),
        prompts=(),
        depths=(),
        drafted_tokens_per_s=None,
        terms=(
            *(step(question, readers) or _nothing()).terms,
            *link_terms(model, groups, devices, 1),
        ),
    )


def _nothing() -> Forecast:
    """Without a bandwidth there are no terms."""
    plain = Estimate(0.0, 0.0, 0.0, "tok/s", "estimated", Text("", ""))
    return Forecast(None, None, None, 0, plain)


def _prompt(
    model: Model, plan: Plan, groups: Sequence[Placed], devices: Sequence[_Device]
) -> Estimate:
    """Prefill with the way to the helpers: activations of each token, a round trip a batch."""
    plain = plan.forecast.prefill_tokens_per_s
    used = {group.device for group in groups if group.group == "layers"}
    helpers = {one.helper.node_id: one.helper for one in devices if one.virtual in used}
    link_s = sum(
        2 * STATE_BYTES * model.embedding_size / helper.link.bytes_per_s
        + helper.link.round_trip_s / plan.batch_tokens
        for helper in helpers.values()
    )

    def with_link(value: float, factor: float) -> float:
        return 1 / (1 / value + link_s * factor) if value else 0.0

    return replace(
        plain,
        value=with_link(plain.value, 1.0),
        low=with_link(plain.low, LINK_HIGH),
        high=with_link(plain.high, LINK_LOW),
    )


def _times(each: Estimate, n: int) -> Estimate:
    return replace(each, value=each.value * n, low=each.low * n, high=each.high * n)
