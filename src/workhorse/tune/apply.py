"""What changes make of a plan: settings moved, its budget and forecast reckoned anew. Pure.

Beside the variables of `settings.py`: `quant`, the path of another file of the model, and `engine`,
the version of another build.
"""

from collections.abc import Sequence
from dataclasses import replace

from workhorse.plan.cpus import CpuChoice, allowed_cores
from workhorse.plan.cuts import Sizes
from workhorse.plan.drafts import DRAFTS, draft_bytes
from workhorse.plan.memory import Layout, device_bytes
from workhorse.plan.pages import PageChoice
from workhorse.plan.placement import Card, cards_of, place_as_told, ram_room
from workhorse.plan.placement_words import device_name
from workhorse.plan.planner import Course, fits_node, make_plan, plan_of
from workhorse.plan.readers import readers_of
from workhorse.plan.sampling import can_sample_on_card
from workhorse.plan.speed import setup_for
from workhorse.plan.wish import Wish
from workhorse.records import BudgetLine, Machine, Model, Plan, Reason, Verdict
from workhorse.text import Text
from workhorse.tune.changes import (
    below_constraints,
    blocked_words,
    in_force,
    no_build,
    no_variable,
)
from workhorse.tune.given import Given, Refusal
from workhorse.tune.pooled import reckon_pooled
from workhorse.tune.settings import SETTERS, Settings
from workhorse.tune.trial import Change

# What the planner says of draft layers that a plan leaves alone.
UNUSED = "model.drafts_unused"
FILES_AND_BUILDS = ("quant", "engine")


def apply(given: Given, changes: Sequence[Change]) -> Plan | Refusal:
    """The start plan with these changes, the last of each variable; or why that cannot be.

    `changes` in the order in which they were accepted. The budget is reckoned anew: a plan beyond
    the memory or below the constraints is refused. Without changes it is the start plan itself.
    """
    return reckon(given, changes) if changes else given.plan


def reckon(given: Given, changes: Sequence[Change]) -> Plan | Refusal:
    """The same, with budget and forecast reckoned anew even without a change."""
    if given.stored is not None:
        return reckon_pooled(given, given.stored, changes)
    last = in_force(changes)
    unknown = next((name for name in last if name not in (*FILES_AND_BUILDS, *SETTERS)), None)
    if unknown is not None:
        return no_variable(unknown)
    start = started(given, last.get("quant"), last.get("engine"))
    if isinstance(start, Refusal):
        return start
    now = start
    for name, move in SETTERS.items():
        if name in last:
            moved = move(now, last[name])
            if isinstance(moved, Refusal):
                return moved
            now = replace(now, plan=moved)
    return reckoned(given, now)


def started(given: Given, file: str | None, version: str | None) -> Settings | Refusal:
    """The plan for the file and the build, before any setting of it is moved."""
    model = next((m for m in (given.model, *given.files) if file in (None, m.path)), None)
    if model is None:
        return Refusal(Text(f"{file} was not named as a file to try.", f"未指定试用文件 {file}。"))
    builds = (given.plan.engine, *given.builds)
    build = next((b for b in builds if version in (None, b.version)), None)
    if build is None:
        return no_build(version)
    if model == given.model and build == given.plan.engine:
        return Settings(given.plan, model, given.machine)
    plan = make_plan(given.machine, model, build, given.wish, given.history)
    if plan.verdict.blocked:
        return Refusal(blocked_words(plan))
    kept = replace(plan, model_name=given.plan.model_name, states_dir=given.plan.states_dir)
    return Settings(kept, model, given.machine)


def reckoned(given: Given, now: Settings) -> Plan | Refusal:
    """The plan with these settings, its budget, placement and forecast anew."""
    plan, model, machine = now.plan, now.model, now.machine
    low = below_constraints(given, plan)
    if low is not None:
        return low
    wish = replace(given.wish, slots=plan.slots)
    layout = layout_of(plan)
    cards = cards_in_use(machine, plan, wish)
    sizes = Sizes(model)
    placed = place_as_told(
        model,
        sizes,
        cards,
        ram_room(machine, wish.headroom),
        layout,
        gpu_layers=plan.gpu_layers,
        expert_layers=plan.expert_layers_in_ram,
        lazy=plan.lazy_tables,
    )
    if placed is None:
        return no_room(wish)
    cpu = CpuChoice(plan.threads, plan.cpus, plan.memory_nodes, tuned("threads", plan.threads), ())
    if not fits_node(machine, cpu, device_bytes(placed.lines, "RAM"), wish.headroom):
        return no_room(wish)
    pages = PageChoice(plan.load_mode, plan.huge_pages, tuned("pages", plan.load_mode))
    readers = readers_of(machine, placed, as_read(machine, cpu), pages)
    setup = setup_for(
        plan.engine, device_name(placed), huge_pages=plan.huge_pages, threads=plan.threads
    )
    on_card = plan.card_sampling and can_sample_on_card(plan.engine, model, placed)
    course = Course(placed, cpu, pages, readers, setup, on_card)
    made = plan_of(machine, model, plan.engine, wish, given.history, course)
    if made.verdict.blocked:
        return Refusal(blocked_words(made))
    drafted = drafts_line(model, layout, plan)
    if drafted and not drafts_fit(machine, cards, made, drafted, wish):
        return no_room(wish)
    return replace(
        plan,
        gpu_layers=made.gpu_layers,
        gpu_index=made.gpu_index,
        gpu_indexes=made.gpu_indexes,
        gpu_uuids=made.gpu_uuids,
        layer_split=made.layer_split,
        device=made.device,
        placement=made.placement,
        prompt_cache_bytes=made.prompt_cache_bytes,
        context_checkpoints=made.context_checkpoints,
        card_sampling=made.card_sampling,
        budget=(*made.budget, *drafted),
        forecast=made.forecast,
        verdict=Verdict(tuple(f for f in made.verdict.findings if not drafted or f.code != UNUSED)),
    )


def as_read(machine: Machine, cpu: CpuChoice) -> CpuChoice:
    """The same as the forecast counts: two threads of one core are no two cores."""
    mine = set(cpu.cpus)
    cores = [core for group in allowed_cores(machine).values() for core in group]
    in_use = sum(bool(mine & set(core.cpus)) for core in cores)
    return replace(cpu, threads=min(cpu.threads, in_use)) if in_use else cpu


def layout_of(plan: Plan) -> Layout:
    """The settings of a plan that decide its memory."""
    return Layout(
        plan.context_tokens,
        plan.slots,
        plan.kv_type_k,
        plan.kv_type_v,
        flash_attention=plan.flash_attention,
        micro_batch_tokens=plan.micro_batch_tokens,
        shared_kv=plan.shared_kv,
    )


def cards_in_use(machine: Machine, plan: Plan, wish: Wish) -> tuple[Card, ...]:
    """The plan's cards in the order of its layers, with the room that is left on each."""
    roomy = {card.gpu.index: card for card in cards_of(machine.gpus, wish.headroom)}
    return tuple(roomy[index] for index in plan.gpu_indexes if index in roomy)


def drafts_line(model: Model, layout: Layout, plan: Plan) -> tuple[BudgetLine, ...]:
    """What the model's own draft layers take, where the plan uses them."""
    if plan.drafts is None or plan.drafts.kind != "draft-mtp":
        return ()
    n_bytes = draft_bytes(model, layout, plan.drafts.tokens or DRAFTS)
    device = f"GPU {plan.gpu_indexes[-1]}" if plan.gpu_indexes else "RAM"
    words = Text("layers that draft, and their KV", "草拟层及其 KV")
    return (BudgetLine(device, "weights", n_bytes, "header", words),)


def drafts_fit(
    machine: Machine,
    cards: Sequence[Card],
    made: Plan,
    lines: Sequence[BudgetLine],
    wish: Wish,
) -> bool:
    """Whether the draft layers find room beside the rest."""
    line = lines[0]
    used = device_bytes(made.budget, line.device) + line.n_bytes
    if line.device == "RAM":
        room = ram_room(machine, wish.headroom)
    else:
        room = next((c.room_bytes for c in cards if f"GPU {c.gpu.index}" == line.device), None)
    return room is None or used <= room


def no_room(wish: Wish) -> Refusal:
    """The refusal of a plan that some device has not the room for."""
    share = f"{wish.headroom:.0%}"
    return Refusal(
        Text(
            f"It does not fit the memory with {share} of it kept free.",
            f"在保留 {share} 空闲内存的前提下放不下。",
        ),
        memory=True,
    )


def tuned(setting: str, value: object) -> Reason:
    """The reason of a setting that was tried out."""
    return Reason(setting, str(value), Text("As measured on this machine.", "按本机实测。"))
