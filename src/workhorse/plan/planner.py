"""From a machine, a model, an engine build and a wish to a Plan. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from workhorse.plan.checkpoints import choose_checkpoints
from workhorse.plan.checks import (
    check_attention,
    check_cpu,
    check_gpu_access,
    check_gpu_code,
    check_model,
    check_ranking,
    doubts_as_findings,
    usable_gpus,
)
from workhorse.plan.cpus import CpuChoice, choose_cpus, spread_cpus
from workhorse.plan.cuts import Sizes
from workhorse.plan.drafts import check_drafts
from workhorse.plan.images import projector_reason, takes_projector
from workhorse.plan.memory import device_bytes
from workhorse.plan.pages import PageChoice, choose_pages, choose_spin
from workhorse.plan.placement import Abilities, Placement, cards_of, place, ram_room
from workhorse.plan.placement_checks import check_fit, check_fullness, check_gpu_room
from workhorse.plan.placement_words import device_name, placement_reasons
from workhorse.plan.quant_mix import as_estimates, not_made_yet
from workhorse.plan.readers import readers_of
from workhorse.plan.sampling import samples_on_card, sampling_lines, sampling_reason
from workhorse.plan.speed import Experience, Reader, Setup, forecast, prefill, setup_for
from workhorse.plan.weights import leaves_tables_on_disk
from workhorse.plan.wish import Wish, context_for, layout_reasons, layouts, shares_kv
from workhorse.records import (
    BudgetLine,
    EngineBuild,
    Estimate,
    Finding,
    Forecast,
    Gpu,
    Machine,
    Model,
    Plan,
    Reason,
    Verdict,
)
from workhorse.text import Text
from workhorse.units import MIB

# The engine looks for a client that has left between two batches of a prompt, and stops at the
# end of the next but one (watched on llama-server 0.5.0, 2026-11-30). Two batches in a second
# free the slot within it, and other streams never wait longer than half a second for a prompt.
BATCH_SIZES_TOKENS = (512, 256, 128, 64, 32)
TWO_BATCHES_S = 1.0

# Of the memory left over, the share that may hold prompts of past conversations.
PROMPT_CACHE_SHARE = 0.1
PROMPT_CACHE_MAX_BYTES = 8192 * MIB


@dataclass(frozen=True, slots=True)
class Course:
    """What was decided on the way to a plan: placement, threads, pages, and who reads."""

    placed: Placement
    cpu: CpuChoice
    pages: PageChoice
    readers: Reader | Mapping[str, Reader]
    setup: Setup
    card_sampling: bool = False  # tokens are chosen on the card

    @property
    def carries_weights(self) -> bool:
        """True when weights of main memory are copied to a card for each batch of a prompt."""
        return bool(self.placed.cards) and self.placed.cut.weights_in_ram


def make_plan(
    machine: Machine,
    model: Model,
    build: EngineBuild,
    wish: Wish,
    history: Sequence[Experience] = (),
) -> Plan:
    """The best plan for this model here. `plan.verdict.blocked` says that it cannot work."""
    course = decide_course(machine, model, build, wish, history)
    return plan_of(machine, model, build, wish, history, course)


def plan_of(
    machine: Machine,
    model: Model,
    build: EngineBuild,
    wish: Wish,
    history: Sequence[Experience],
    course: Course,
) -> Plan:
    """The plan that a course is: its budget, forecast, reasons and what speaks against it."""
    placed, cpu, pages = course.placed, course.cpu, course.pages
    layout, cut = placed.layout, placed.cut
    cache_bytes = prompt_cache(machine, wish, placed.lines)
    checkpoints = choose_checkpoints(model, layout, left_over(machine, wish, placed.lines))
    on_cards_alone = bool(placed.cards) and not cut.weights_in_ram
    spin, spin_reason = choose_spin(build, machine, all_on_gpu=on_cards_alone)
    indexes = tuple(card.gpu.index for card in placed.cards)
    return Plan(
        model_path=model.path,
        model_name=served_name(model.path),
        engine=build,
        context_tokens=layout.context_tokens,
        slots=layout.slots,
        kv_type_k=layout.kv_type_k,
        kv_type_v=layout.kv_type_v,
        flash_attention=layout.flash_attention,
        batch_tokens=layout.micro_batch_tokens,
        micro_batch_tokens=layout.micro_batch_tokens,
        threads=cpu.threads,
        cpus=cpu.cpus,
        memory_nodes=cpu.memory_nodes,
        gpu_layers=cut.gpu_layers,
        layers=model.layers + 1,
        gpu_index=indexes[0] if indexes else None,
        device=device_name(placed),
        prompt_cache_bytes=cache_bytes,
        embeddings=model.pooling,
        reranks=model.ranks,
        load_mode=pages.load_mode,
        huge_pages=pages.huge_pages,
        spin=spin,
        budget=(
            *as_estimates(model, placed.lines),
            *sampling_lines(model, placed, course.card_sampling),
            *cache_line(cache_bytes),
            *checkpoints.lines,
        ),
        forecast=promise(machine, model, course, history),
        reasons=reasons(machine, model, wish, course, spin_reason),
        rejected=(*placed.rejected, *cpu.rejected, *pages.rejected),
        verdict=Verdict(findings(machine, model, build, wish, placed)),
        placement=placed.groups(cpu.memory_nodes),
        gpu_indexes=indexes,
        gpu_uuids=uuids_of([card.gpu for card in placed.cards]),
        layer_split=cut.counts,
        expert_layers_in_ram=cut.expert_layers,
        context_checkpoints=checkpoints.a_slot,
        shared_kv=layout.shared_kv,
        lazy_tables=cut.lazy,
        projector=model.projector if takes_projector(build) else None,
        card_sampling=course.card_sampling,
    )


def decide_course(
    machine: Machine,
    model: Model,
    build: EngineBuild,
    wish: Wish,
    history: Sequence[Experience],
) -> Course:
    """Where everything goes; then the batch that this allows, and where everything goes with it.

    The batch depends on the speed of a prompt, that on the device, and the device on the room
    that a batch leaves. Where weights of main memory go to a card for every batch of a prompt, a
    small one would carry them as often for fewer tokens: it stays large.
    """
    sizes, pages = Sizes(model), choose_pages(machine)
    cards = cards_of(usable_gpus(machine, build), wish.headroom)
    lazy = leaves_tables_on_disk(model, sizes.weights, build, machine)

    def course(batch_tokens: int) -> Course:
        placed = place(
            model,
            sizes,
            cards,
            ram_room(machine, wish.headroom),
            tuple(
                layouts(
                    model,
                    wish,
                    batch_tokens,
                    shared_kv=shares_kv(model, build),
                    flash_attention=build.flash_attention or not usable_gpus(machine, build),
                )
            ),
            Abilities.of(build),
            lazy=lazy,
            least_bits=wish.least_bits,
        )
        cpu = choose_cpus(machine, beside_node=node_of_cards(placed))
        if not fits_node(machine, cpu, device_bytes(placed.lines, "RAM"), wish.headroom):
            cpu = spread_cpus(machine)
        setup = setup_for(
            build, device_name(placed), huge_pages=pages.huge_pages, threads=cpu.threads
        )
        readers = readers_of(machine, placed, cpu, pages)
        return Course(placed, cpu, pages, readers, setup, samples_on_card(build, model, placed))

    first = course(context_for(model, wish) if model.pooling else BATCH_SIZES_TOKENS[0])
    if first.carries_weights or model.projector is not None:
        return first
    groups = first.placed.groups(first.cpu.memory_nodes)
    prompt = prefill(model, first.readers, first.setup, history, placed=groups)
    batch_tokens = choose_batch(model, wish, prompt)
    return first if batch_tokens == first.placed.layout.micro_batch_tokens else course(batch_tokens)


def uuids_of(gpus: Sequence[Gpu]) -> tuple[str, ...]:
    """The cards by names that stay when one of them has gone; () unless each has its own."""
    uuids = tuple(gpu.uuid for gpu in gpus if gpu.uuid and gpu.uuid.startswith("GPU-"))
    return uuids if len(set(uuids)) == len(gpus) else ()


def node_of_cards(placed: Placement) -> int | None:
    """The memory node that all cards in use are beside; None without cards or when it differs."""
    nodes = {card.gpu.numa_node for card in placed.cards}
    return nodes.pop() if len(nodes) == 1 else None


def promise(
    machine: Machine, model: Model, course: Course, history: Sequence[Experience]
) -> Forecast:
    """What the plan promises of speed."""
    layout = course.placed.layout
    return forecast(
        model,
        course.readers,
        kv_types=(layout.kv_type_k, layout.kv_type_v),
        setup=course.setup,
        history=history,
        placed=course.placed.groups(course.cpu.memory_nodes),
        disk=machine.disks[0] if machine.disks else None,
        card_sampling=course.card_sampling,
    )


def reasons(
    machine: Machine, model: Model, wish: Wish, course: Course, spin: Reason
) -> tuple[Reason, ...]:
    """Why each setting is what it is."""
    layout = course.placed.layout
    return (
        *placement_reasons(machine, model, course.placed),
        *layout_reasons(layout, model, wish),
        Reason("batch", str(layout.micro_batch_tokens), batch_words(course)),
        *ranking_reason(model),
        *projector_reason(model),
        *cache_reason(wish),
        *sampling_reason(model, course.card_sampling),
        course.cpu.reason,
        course.pages.reason,
        spin,
    )


def cache_reason(wish: Wish) -> tuple[Reason, ...]:
    """Why documents are not kept for later; nothing for other purposes."""
    if wish.purpose != "batch":
        return ()
    words = Text(
        "Each document comes once, and while the engine copies a prompt to main memory all its "
        "slots wait: on an H200 a 7B with 4 to 16 streams lost 20 to 35 % by it (2026-12).",
        "每份文档只来一次；引擎把提示词复制到内存时所有槽位都要等待："
        "在 H200 上，7B 模型 4 至 16 路并发因此损失 20%–35%（2026-12 实测）。",
    )
    return (Reason("prompt cache", "off", words),)


def ranking_reason(model: Model) -> tuple[Reason, ...]:
    """Why the engine ranks and does nothing else; nothing for other models."""
    if not model.ranks:
        return ()
    words = Text(
        "The file says that the model scores documents by a question: it answers /v1/rerank alone.",
        "文件表明该模型用于按问题给文档打分（重排序）：只提供 /v1/rerank。",
    )
    return (Reason("reranking", "on", words),)


def batch_words(course: Course) -> Text:
    """Why prompts are read in batches of this size."""
    if course.placed.sizes.projector:
        return Text(
            "Some models see an image only when all of it is read in one batch.",
            "部分模型需在同一批次内读完整幅图像才能理解它。",
        )
    if course.carries_weights:
        return Text(
            "Weights in main memory are copied to the card for every batch of a prompt: a smaller "
            "one would copy as much for fewer tokens. An abandoned prompt frees its slot late.",
            "内存中的权重每个批次都要复制到显卡：批次更小则同样的复制只换来更少词元。"
            "客户端断开后槽位释放较慢。",
        )
    return Text(
        "Small enough that an abandoned prompt frees its slot within two batches, about a "
        "second where prefill allows it, and that other streams do not stall.",
        "批次足够小：客户端断开后两个批次内释放槽位（预填充够快时约一秒），其他请求也不会卡顿。",
    )


def findings(
    machine: Machine, model: Model, build: EngineBuild, wish: Wish, placed: Placement
) -> tuple[Finding, ...]:
    """What speaks against the plan, or is worth knowing before it starts."""
    gpus = usable_gpus(machine, build)
    cards, ram_bytes = cards_of(gpus, wish.headroom), ram_room(machine, wish.headroom)
    return (
        *check_cpu(machine, build),
        *check_gpu_code(machine, build),
        *check_gpu_access(machine),
        *check_attention(build, on_cards=bool(placed.cards)),
        *check_gpu_room(gpus, model, wish, placed),
        *check_fullness(placed),
        *check_model(model, wish.context_tokens),
        *check_ranking(model, build),
        *check_drafts(model, placed.layout),
        *filter(None, (not_made_yet(model),)),
        *doubts_as_findings(machine.doubts),
        *check_fit(cards, ram_bytes, model, wish, placed),
    )


def served_name(path: str) -> str:
    """The name clients call the model by: the file's, without its ending and part number."""
    place = re.sub(r"^(?:hf|ms):[^:]+:", "", path)  # a file of a repository on a hub
    stem = re.sub(r"(-\d{5}-of-\d{5})?\.(gguf|safetensors)$", "", PurePath(place).name)
    return stem.replace(",", "-")  # llama-server splits an alias at commas


def fits_node(machine: Machine, cpu: CpuChoice, n_bytes: int, headroom: float) -> bool:
    """False when the chosen node has not enough free memory, headroom included."""
    if cpu.memory_nodes is None or len(machine.nodes) < 2:
        return True
    free = [n.memory_free_bytes for n in machine.nodes if n.index in cpu.memory_nodes]
    known = [n for n in free if n is not None]
    return not known or n_bytes <= sum(known) * (1 - headroom)


def choose_batch(model: Model, wish: Wish, prompt: Estimate) -> int:
    """The largest batch of which two fit into `TWO_BATCHES_S` of prefill.

    Not smaller than the least: below it a CPU reads the weights more often than it computes.
    A pooled model takes its whole input in one batch, so its batch is the context.
    """
    if model.pooling:
        return context_for(model, wish)
    room_tokens = prompt.value * TWO_BATCHES_S / 2
    fitting = (size for size in BATCH_SIZES_TOKENS if size <= room_tokens)
    return next(fitting, BATCH_SIZES_TOKENS[-1])


def prompt_cache(machine: Machine, wish: Wish, lines: Sequence[BudgetLine]) -> int:
    """Main memory for prompts of past conversations: a tenth of what is left over.

    None of it for documents, each of which comes once: the engine stops all its slots while it
    copies a prompt there.
    """
    if wish.purpose == "batch":
        return 0
    left = left_over(machine, wish, lines) or 0
    return min(PROMPT_CACHE_MAX_BYTES, max(0, int(left * PROMPT_CACHE_SHARE)))


def left_over(machine: Machine, wish: Wish, lines: Sequence[BudgetLine]) -> int | None:
    """Main memory that the budget leaves, headroom taken off; None where it is not known."""
    room = ram_room(machine, wish.headroom)
    return None if room is None else room - device_bytes(lines, "RAM")


def cache_line(cache_bytes: int) -> tuple[BudgetLine, ...]:
    """The budget's line for the prompts of past conversations; none without a cache."""
    if not cache_bytes:
        return ()
    words = Text("at most, filled as conversations come and go", "上限，随对话增减而占用")
    return (BudgetLine("RAM", "prompt cache", cache_bytes, "estimated", words),)
