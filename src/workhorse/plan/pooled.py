"""A plan for an engine with one pool of KV for all requests: vLLM and LMDeploy. Pure.

The whole model lies on one card, or in main memory; what is left of the room is the pool. Requests
share it by pages, so `slots` is how many are computed together and not what is set aside.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from workhorse.plan.checks import usable_gpus
from workhorse.plan.compute_buffers import compute_bytes
from workhorse.plan.cpus import CpuChoice, choose_cpus
from workhorse.plan.kept import Layout, state_bytes
from workhorse.plan.pages import PageChoice
from workhorse.plan.placement import Card, cards_of, ram_room
from workhorse.plan.planner import served_name
from workhorse.plan.pooled_checks import findings
from workhorse.plan.pooled_speed import promise
from workhorse.plan.pooled_words import reasons
from workhorse.plan.readers import memory_reader
from workhorse.plan.speed import Experience, card_reader, setup_for
from workhorse.plan.wish import SMALLEST_CONTEXT_TOKENS, Wish, context_for
from workhorse.records import (
    BudgetLine,
    Dtype,
    EngineBuild,
    KvDtype,
    Machine,
    Model,
    Placed,
    Plan,
    Pool,
    Reason,
    Stored,
    Verdict,
)
from workhorse.text import Text
from workhorse.units import GB, GIB, MIB

AMPERE = (8, 0)
FP8_KV_FROM = (8, 9)
# TurboMind quantises its cache for this head size alone (lmdeploy docs, supported_models.md).
INT8_KV_HEAD = 128

# vLLM 0.32.0 on a CPU with a model of 1 MB: 3 GB resident in its three processes (2026-11).
RUNTIME_BYTES = 3 * GB
# A CUDA context and captured graphs; NCCL and workspaces of the kernels (estimated).
CARD_RUNTIME_BYTES = 1536 * MIB

# Requests computed together where the user does not say: on a card more of them cost little each.
CARD_SLOTS, CPU_SLOTS = 16, 4
# Prompt tokens of one step. vLLM's own default is 2048 and more; a prompt that nobody waits for
# any more ends with its step, and other streams wait no longer than one.
CARD_BATCH_TOKENS, CPU_BATCH_TOKENS = 2048, 512
# The pool is divided into pages, the largest those of vLLM on a CPU. One of them is never given
# out: told the bytes of one whole request, vLLM 0.32.0 does not start (tried 2026-11).
PAGE_TOKENS = 128
# Below so many cores the scheduler's process shares one with the arithmetic instead of having one
# to itself (vLLM's own rule keeps one free, which of two is half).
CORES_WITH_ONE_FREE = 4


@dataclass(frozen=True, slots=True)
class Room:
    """Where a model may lie, and how the engine computes there."""

    card: Card | None  # None: main memory
    room_bytes: int | None  # None: not known
    runtime_bytes: int
    attention: str | None
    chunked_prefill: bool
    prefix_cache: bool


@dataclass(frozen=True, slots=True)
class Fit:
    """One way to fill the room."""

    layout: Layout
    kv_dtype: KvDtype
    pool_bytes: int
    weight_bytes: int
    compute_bytes: int
    state_bytes: int
    fits: bool


def make_pooled_plan(
    machine: Machine,
    model: Model,
    stored: Stored,
    build: EngineBuild,
    wish: Wish,
    history: Sequence[Experience] = (),
    *,
    batch_tokens: int | None = None,
) -> Plan:
    """The plan for a checkpoint on such an engine. `plan.verdict.blocked`: it cannot work.

    `batch_tokens`: prompt tokens of one step; None: we decide.
    """
    room = choose_room(machine, build, wish)
    dtype = choose_dtype(stored, room)
    batch_tokens = batch_tokens or (CARD_BATCH_TOKENS if room.card else CPU_BATCH_TOKENS)
    fit = choose_fit(model, stored, build, wish, room, dtype, batch_tokens)
    cpu = worker_cpus(machine, room)
    layout = fit.layout
    pages = PageChoice("none", False, Reason("pages", "small", Text("", "")))
    reader = card_reader(room.card.gpu) if room.card else memory_reader(machine, cpu, pages)
    device = room.card.gpu.name if room.card else "RAM"
    setup = setup_for(build, device, huge_pages=False, threads=cpu.threads)
    where = f"GPU {room.card.gpu.index}" if room.card else "RAM"
    placed = (Placed("layers", where, fit.weight_bytes, 0, model.layers - 1),)
    pool = pool_of(build, room, fit, dtype)
    return Plan(
        model_path=stored.folder,
        model_name=served_name(stored.folder),
        engine=build,
        context_tokens=layout.context_tokens,
        slots=layout.slots,
        kv_type_k=fit.kv_dtype,
        kv_type_v=fit.kv_dtype,
        flash_attention=True,
        batch_tokens=layout.micro_batch_tokens,
        micro_batch_tokens=layout.micro_batch_tokens,
        threads=cpu.threads,
        cpus=cpu.cpus,
        memory_nodes=cpu.memory_nodes,
        gpu_layers=model.layers + 1 if room.card else 0,
        layers=model.layers + 1,
        gpu_index=room.card.gpu.index if room.card else None,
        device=device,
        prompt_cache_bytes=0,
        embeddings=model.pooling,
        load_mode="none",
        huge_pages=False,
        # PyTorch brings the same OpenMP as llama.cpp: on cores with other work it would spin.
        spin="default" if room.card else "bounded",
        budget=budget(fit, room, where),
        forecast=promise(model, reader, setup, history, machine, on_card=bool(room.card)),
        reasons=(*reasons(model, stored, pool, layout, wish, build, on_card=bool(room.card)),),
        rejected=cpu.rejected,
        verdict=Verdict(findings(machine, model, stored, build, wish, room.card, fit, pool)),
        placement=placed,
        gpu_indexes=(room.card.gpu.index,) if room.card else (),
        pool=pool,
    )


def pool_of(build: EngineBuild, room: Room, fit: Fit, dtype: Dtype) -> Pool:
    """What the engine's pool of KV blocks holds, and how it computes."""
    return Pool(
        dtype=dtype,
        kv_dtype=fit.kv_dtype,
        kv_bytes=fit.pool_bytes,
        memory_share=memory_share(build, room, fit),
        attention=room.attention,
        prefix_cache=room.prefix_cache,
        chunked_prefill=room.chunked_prefill,
    )


def choose_room(machine: Machine, build: EngineBuild, wish: Wish) -> Room:
    """The roomiest card that the build has code for, else main memory."""
    cards = cards_of(usable_gpus(machine, build), wish.headroom) if build.gpu_architectures else ()
    if not cards:
        rooms = (ram_room(machine, wish.headroom), node_room(machine, wish.headroom))
        known = [room for room in rooms if room is not None]
        return Room(None, min(known, default=None), RUNTIME_BYTES, None, True, True)
    card = cards[0]
    capability = card.gpu.compute_capability
    attention, whole_prompts = attention_for(build, capability)
    return Room(
        card,
        card.room_bytes,
        CARD_RUNTIME_BYTES,
        attention,
        chunked_prefill=not whole_prompts,
        prefix_cache=not whole_prompts,
    )


def node_room(machine: Machine, headroom: float) -> int | None:
    """Room on the memory node of the engine's CPUs; None: not known, or there is only one node.

    vLLM binds all of its memory to the node of its first CPU, so more than that ends it
    (`init_cpu_memory_env`, v1/worker/cpu_worker.py of 0.32.0, read 2026-11). What programs hold
    counts as if it all lay there, unless more is free: the page cache gives way.
    """
    beside = choose_cpus(machine).memory_nodes or ()
    total, available = machine.memory.total_bytes, machine.memory.available_bytes
    held = total - available if total is not None and available is not None else 0
    rooms = [
        max(node.memory_free_bytes or 0, node.memory_total_bytes - held)
        for node in machine.nodes
        if node.index in beside and node.memory_total_bytes is not None
    ]
    return int(sum(rooms) * (1 - headroom)) if rooms else None


def attention_for(
    build: EngineBuild, capability: tuple[int, int] | None
) -> tuple[str | None, bool]:
    """The attention backend to name, and whether it reads a prompt in one piece only.

    vLLM before Ampere: xformers with the V0 engine of 0.9.2, which has neither chunked prefill
    nor a prefix cache there; Triton where the backend is an option (facts in compat/vllm.toml).
    """
    if build.engine != "vllm" or capability is None or capability >= AMPERE:
        return None, False
    if "--attention-backend" in build.knows:
        return ("TRITON_ATTN", False) if capability < (7, 5) else (None, False)
    return "XFORMERS", True


def choose_dtype(stored: Stored, room: Room) -> Dtype:
    """What the arithmetic is in: as stored, but no bfloat16 before Ampere and no float32."""
    capability = room.card.gpu.compute_capability if room.card else None
    if room.card is not None and (capability is None or capability < AMPERE):
        return "float16"
    return "float16" if stored.dtype == "float16" else "bfloat16"


def choose_fit(
    model: Model,
    stored: Stored,
    build: EngineBuild,
    wish: Wish,
    room: Room,
    dtype: str,
    batch_tokens: int,
) -> Fit:
    """The first way that fits, in the order users miss it least; else the smallest."""
    tried = ways(model, build, wish, room)
    fits = [fill(model, stored, room, dtype, batch_tokens, *way) for way in tried]
    return next((fit for fit in fits if fit.fits), fits[-1])


def ways(
    model: Model, build: EngineBuild, wish: Wish, room: Room
) -> Iterator[tuple[int, int, KvDtype]]:
    """Context, slots and KV type to try: a smaller KV, then a shorter context."""
    context = context_for(model, wish)
    slots = wish.slots or (CARD_SLOTS if room.card else CPU_SLOTS)
    smaller = smaller_kv(model, build, room)
    yield context, slots, "auto"
    if smaller is not None:
        yield context, slots, smaller
    while wish.context_tokens is None and context > SMALLEST_CONTEXT_TOKENS:
        context = max(context // 2, SMALLEST_CONTEXT_TOKENS)
        yield context, slots, smaller or "auto"


def smaller_kv(model: Model, build: EngineBuild, room: Room) -> KvDtype | None:
    """The KV type with half the bytes that works on this card; None: there is none."""
    capability = room.card.gpu.compute_capability if room.card else None
    if capability is None:
        return None
    if build.engine == "lmdeploy":
        heads = {a.key_size for a in model.attention if a is not None}
        return "int8" if heads == {INT8_KV_HEAD} else None
    return "fp8" if capability >= FP8_KV_FROM else None


def fill(
    model: Model,
    stored: Stored,
    room: Room,
    dtype: str,
    batch_tokens: int,
    context: int,
    slots: int,
    kv_dtype: KvDtype,
) -> Fit:
    """What one way takes, and the pool that it leaves; it fits with one whole request in it."""
    whole = not room.chunked_prefill or model.pooling
    batch = max(batch_tokens, context) if whole else batch_tokens
    layout = Layout(context, slots, micro_batch_tokens=batch)
    weights, compute = stored.weight_bytes(dtype), compute_bytes(model, layout)
    states = state_bytes(model, layout)
    token = kv_token_bytes(model, 1 if kv_dtype in ("fp8", "int8") else 2)
    block, blocks = PAGE_TOKENS * token, -(-context // PAGE_TOKENS)
    one, every = (blocks + 1) * block, (blocks * slots + 1) * block
    if room.room_bytes is None:
        return Fit(layout, kv_dtype, every, weights, compute, states, fits=True)
    left = room.room_bytes - weights - compute - states - room.runtime_bytes
    wanted = left if room.card else min(left, every)
    pool = max(wanted, one)
    if room.card is None and pool > GIB // 4:
        # Versions that take whole GiB round; what is asked for must be what is budgeted.
        pool = max(one, pool // MIB * MIB)
    return Fit(layout, kv_dtype, pool, weights, compute, states, fits=left >= one)


def kv_token_bytes(model: Model, element_bytes: int) -> int:
    """KV of one token in all layers; windows count as whole layers, which is a bound."""
    return sum(
        a.kv_heads * (a.key_size + a.value_size) * element_bytes
        for a in model.attention
        if a is not None
    )


def memory_share(build: EngineBuild, room: Room, fit: Fit) -> float | None:
    """What the engine is told of the card's memory.

    vLLM: the share of the whole that it may take in all. LMDeploy: the share that the KV takes of
    what is free once the weights are loaded (lmdeploy 0.18.0 messages.py).
    """
    if room.card is None:
        return None
    total = room.card.gpu.memory_total_bytes or room.card.room_bytes
    if build.engine == "lmdeploy":
        free = room.card.gpu.memory_free_bytes or total
        return min(0.95, max(0.05, fit.pool_bytes / max(1, free - fit.weight_bytes)))
    return min(0.95, room.card.room_bytes / total)


def worker_cpus(machine: Machine, room: Room) -> CpuChoice:
    """One thread a core of one node; from four cores on one stays free for the scheduler.

    The CPUs in the order in which threads are bound to them: each core's first before any second,
    however the kernel counts them.
    """
    node = room.card.gpu.numa_node if room.card else None
    choice = choose_cpus(machine, beside_node=node)
    nth = {cpu: n for core in machine.cpu.cores for n, cpu in enumerate(sorted(core.cpus))}
    cpus = tuple(sorted(choice.cpus, key=lambda cpu: (nth.get(cpu, 0), cpu)))
    choice = replace(choice, cpus=cpus)
    if room.card is not None or choice.threads < CORES_WITH_ONE_FREE:
        return choice
    return replace(choice, threads=choice.threads - 1)


def budget(fit: Fit, room: Room, where: str) -> tuple[BudgetLine, ...]:
    """The memory, line by line."""
    header = Text("from the files' headers", "来自文件头")
    pool = Text(
        "one pool for all requests, in pages"
        + ("; all that is left of the room" if room.card else ""),
        "所有请求共用的分页缓存" + ("；占用剩余空间" if room.card else ""),
    )
    bound = Text("a bound; not fitted to this engine", "上限，未针对该引擎拟合")
    runtime = Text("measured on a CPU, 2026-11", "CPU 实测，2026-11")
    lines = [
        BudgetLine(where, "weights", fit.weight_bytes, "header", header),
        BudgetLine(where, "kv", fit.pool_bytes, "estimated", pool),
        BudgetLine(where, "compute", fit.compute_bytes, "estimated", bound),
        BudgetLine("RAM", "runtime", RUNTIME_BYTES, "measured", runtime),
    ]
    if fit.state_bytes:
        lines.append(BudgetLine(where, "state", fit.state_bytes, "estimated", bound))
    if room.card:
        context = Text("CUDA context and graphs", "CUDA 上下文与图")
        lines.append(BudgetLine(where, "runtime", CARD_RUNTIME_BYTES, "estimated", context))
    return tuple(lines)
