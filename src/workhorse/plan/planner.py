"""From a machine, a model, an engine build and a wish to a Plan. Pure."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal

from workhorse.plan.checks import (
    check_cpu,
    check_gpu_access,
    check_gpu_code,
    check_gpu_room,
    check_model,
    does_not_fit,
    doubts_as_findings,
    usable_gpus,
)
from workhorse.plan.cpus import CpuChoice, choose_cpus, spread_cpus
from workhorse.plan.memory import Layout, budget, device_bytes
from workhorse.plan.pages import PageChoice, choose_pages, choose_spin
from workhorse.plan.speed import Experience, Reader, best_bandwidth, forecast, prefill, setup_for
from workhorse.records import (
    BudgetLine,
    EngineBuild,
    Estimate,
    Finding,
    Gpu,
    Machine,
    Model,
    Plan,
    Reason,
    Rejected,
    Verdict,
)
from workhorse.text import Text
from workhorse.units import MIB, show_bandwidth, show_bytes

# A service that fills memory to the brim dies on the first surprise.
RESERVE = 0.2
CHAT_CONTEXT_TOKENS = 8192
CHAT_SLOTS = 4
SMALLEST_CONTEXT_TOKENS = 2048

# The engine looks for a client that has left between two batches of a prompt, and stops at the
# end of the next but one (watched on llama-server 0.5.0, 2026-11-30). Two batches in a second
# free the slot within it, and other streams never wait longer than half a second for a prompt.
BATCH_SIZES_TOKENS = (512, 256, 128, 64, 32)
TWO_BATCHES_S = 1.0

# Of the memory left over, the share that may hold prompts of past conversations.
PROMPT_CACHE_SHARE = 0.1
PROMPT_CACHE_MAX_BYTES = 8192 * MIB


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user asked for; `None` where the plan may decide."""

    context_tokens: int | None = None
    slots: int | None = None


@dataclass(frozen=True, slots=True)
class Room:
    """The device that holds the model and the memory it can give, reserve already taken off."""

    device: str
    gpu: Gpu | None
    free_bytes: int | None


def make_plan(
    machine: Machine,
    model: Model,
    build: EngineBuild,
    wish: Wish,
    history: Sequence[Experience] = (),
) -> Plan:
    """The best plan for this model here. `plan.verdict.blocked` says that it cannot work."""
    room = choose_room(machine, model, build, wish)
    cpu = choose_cpus(machine, beside_node=room.gpu.numa_node if room.gpu else None)
    pages = choose_pages(machine)
    device = room.gpu.name if room.gpu else room.device
    setup = setup_for(build, device, huge_pages=pages.huge_pages, threads=cpu.threads)
    who_reads = reader(machine, room, cpu, pages)
    batch_tokens = choose_batch(model, wish, prefill(model, who_reads, setup, history))
    layout, lines, fit_findings, fit_rejected = fit(model, room, wish, batch_tokens)
    if not fits_node(machine, cpu, device_bytes(lines, "RAM")):
        cpu = spread_cpus(machine)
        setup = setup_for(build, device, huge_pages=pages.huge_pages, threads=cpu.threads)
        who_reads = reader(machine, room, cpu, pages)
    cache_bytes = prompt_cache(machine, lines)
    spin, spin_reason = choose_spin(build, machine, all_on_gpu=room.gpu is not None)
    promise = forecast(
        model,
        who_reads,
        kv_types=(layout.kv_type_k, layout.kv_type_v),
        setup=setup,
        history=history,
    )
    return Plan(
        model_path=model.path,
        model_name=served_name(model.path),
        engine=build,
        context_tokens=layout.context_tokens,
        slots=layout.slots,
        kv_type_k=layout.kv_type_k,
        kv_type_v=layout.kv_type_v,
        flash_attention=layout.flash_attention,
        batch_tokens=batch_tokens,
        micro_batch_tokens=layout.micro_batch_tokens,
        threads=cpu.threads,
        cpus=cpu.cpus,
        memory_nodes=cpu.memory_nodes,
        gpu_layers=model.layers + 1 if room.gpu else 0,
        layers=model.layers + 1,
        gpu_index=room.gpu.index if room.gpu else None,
        device=device,
        prompt_cache_bytes=cache_bytes,
        embeddings=model.pooling,
        load_mode=pages.load_mode,
        huge_pages=pages.huge_pages,
        spin=spin,
        budget=(*lines, *cache_line(cache_bytes)),
        forecast=promise,
        reasons=(
            device_reason(machine, room, model),
            *layout_reasons(layout, model, wish),
            cpu.reason,
            pages.reason,
            spin_reason,
        ),
        rejected=(*fit_rejected, *cpu.rejected, *pages.rejected),
        verdict=Verdict((*findings(machine, model, build, wish, room), *fit_findings)),
    )


def findings(
    machine: Machine, model: Model, build: EngineBuild, wish: Wish, room: "Room"
) -> tuple[Finding, ...]:
    """What speaks against the plan, or is worth knowing before it starts."""
    return (
        *check_cpu(machine, build),
        *check_gpu_code(machine, build),
        *check_gpu_access(machine),
        *check_gpu_room(machine, model, build, on_gpu=room.gpu is not None),
        *check_model(model, wish.context_tokens),
        *doubts_as_findings(machine.doubts),
    )


def served_name(path: str) -> str:
    """The name clients call the model by: the file's, without its ending and part number."""
    stem = re.sub(r"-\d{5}-of-\d{5}$", "", PurePath(path).stem)
    return stem.replace(",", "-")  # llama-server splits an alias at commas


def choose_room(machine: Machine, model: Model, build: EngineBuild, wish: Wish) -> Room:
    """The GPU with most memory when the model fits it, else main memory.

    A model is not split between a card and the CPU here: each layer left on the CPU is read at
    the CPU's bandwidth, and a smaller quant on the card is nearly always faster.
    """
    for gpu in sorted(usable_gpus(machine, build), key=lambda g: -(g.memory_total_bytes or 0)):
        if gpu.memory_total_bytes is None:
            continue
        free = (
            gpu.memory_free_bytes if gpu.memory_free_bytes is not None else gpu.memory_total_bytes
        )
        room = Room(f"GPU {gpu.index}", gpu, int(min(free, gpu.memory_total_bytes * (1 - RESERVE))))
        if not any(f.level == "blocker" for f in fit(model, room, wish, BATCH_SIZES_TOKENS[0])[2]):
            return room
    return Room("RAM", None, ram_room(machine))


def ram_room(machine: Machine) -> int | None:
    """Main memory that the engine may take: what is available here and in the control group."""
    candidates = [machine.memory.available_bytes]
    limit, used = machine.limits.memory_bytes, machine.limits.memory_used_bytes
    if limit is not None:
        candidates.append(limit - (used or 0))
    known = [c for c in candidates if c is not None]
    return int(min(known) * (1 - RESERVE)) if known else None


def context_for(model: Model, wish: Wish) -> int:
    """Tokens of one slot's context, before memory is looked at."""
    trained = model.context_trained_tokens or CHAT_CONTEXT_TOKENS
    return wish.context_tokens or min(trained, CHAT_CONTEXT_TOKENS)


def layouts(model: Model, wish: Wish, batch_tokens: int) -> Iterator[Layout]:
    """Settings to try, best first: what is given up, in the order users miss it least."""
    context = context_for(model, wish)
    slots = wish.slots or CHAT_SLOTS
    for kv_type in ("f16", "q8_0"):
        yield Layout(context, slots, kv_type, kv_type, micro_batch_tokens=batch_tokens)
    if wish.slots is None:
        for fewer in (2, 1):
            yield Layout(context, fewer, "q8_0", "q8_0", micro_batch_tokens=batch_tokens)
        slots = 1
    while wish.context_tokens is None and context > SMALLEST_CONTEXT_TOKENS:
        context = max(context // 2, SMALLEST_CONTEXT_TOKENS)
        yield Layout(context, slots, "q8_0", "q8_0", micro_batch_tokens=batch_tokens)


def fit(
    model: Model, room: Room, wish: Wish, batch_tokens: int
) -> tuple[Layout, tuple[BudgetLine, ...], tuple[Finding, ...], tuple[Rejected, ...]]:
    """The first layout that fits the room, with its budget and what did not fit before it."""
    rejected: list[Rejected] = []
    needed = 0
    for layout in layouts(model, wish, batch_tokens):
        if not quantised_kv_fits(model, layout):
            continue
        lines = budget(model, layout, device=room.device, gpu=room.gpu is not None)
        needed = device_bytes(lines, room.device)
        if room.free_bytes is None or needed <= room.free_bytes:
            return layout, lines, (), tuple(rejected)
        rejected.append(
            Rejected(
                f"{layout.slots} × {layout.context_tokens} tokens, KV {layout.kv_type_k}",
                Text(
                    f"{show_bytes(needed)} needed, {show_bytes(room.free_bytes)} to give "
                    f"on {room.device}.",
                    f"需要 {show_bytes(needed)}，{room.device} 可用 "
                    f"{show_bytes(room.free_bytes)}。",
                ),
            )
        )
    finding = does_not_fit(model, room.device, needed, room.free_bytes or 0)
    return layout, lines, (finding,), tuple(rejected)


def quantised_kv_fits(model: Model, layout: Layout) -> bool:
    """False when a head's row is no whole number of Q8_0 blocks: the engine refuses to start."""
    if layout.kv_type_k == "f16":
        return True
    return all(
        a.key_size % 32 == 0 and a.value_size % 32 == 0 for a in model.attention if a is not None
    )


def fits_node(machine: Machine, cpu: CpuChoice, n_bytes: int) -> bool:
    """False when the chosen node has not enough free memory, reserve included."""
    if cpu.memory_nodes is None or len(machine.nodes) < 2:
        return True
    free = [n.memory_free_bytes for n in machine.nodes if n.index in cpu.memory_nodes]
    known = [n for n in free if n is not None]
    return not known or n_bytes <= sum(known) * (1 - RESERVE)


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


def reader(machine: Machine, room: Room, cpu: CpuChoice, pages: PageChoice) -> Reader:
    """What will read the weights, with the bandwidth of the same memory and page size."""
    if room.gpu is not None:
        rated = room.gpu.rated_bandwidth_bytes_per_s
        words = Text(
            f"{room.gpu.name}: bus width × memory clock", f"{room.gpu.name}：位宽 × 显存频率"
        )
        return Reader("gpu", rated, words, "datasheet", 1, room.gpu.compute_capability)
    size: Literal["small", "huge"] = "huge" if pages.huge_pages else "small"
    read, nodes = machine.memory.bandwidths, cpu.memory_nodes
    measured = best_bandwidth(read, size, nodes) or best_bandwidth(read, "small", nodes)
    if measured is None:
        return Reader("cpu", None, Text("not measured", "未测量"), "estimated", cpu.threads)
    shown = show_bandwidth(measured.bytes_per_s)
    words = Text(
        f"{shown} read with {measured.threads} threads, {measured.pages} pages ({measured.method})",
        f"{measured.threads} 线程读取 {shown}，{'大页' if measured.pages == 'huge' else '小页'}"
        f"（{measured.method}）",
    )
    return Reader("cpu", measured.bytes_per_s, words, "measured", cpu.threads)


def prompt_cache(machine: Machine, lines: Sequence[BudgetLine]) -> int:
    """Main memory for prompts of past conversations: a tenth of what is left over."""
    room = ram_room(machine)
    if room is None:
        return 0
    left = room - device_bytes(lines, "RAM")
    return min(PROMPT_CACHE_MAX_BYTES, max(0, int(left * PROMPT_CACHE_SHARE)))


def cache_line(cache_bytes: int) -> tuple[BudgetLine, ...]:
    """The budget's line for the prompts of past conversations; none without a cache."""
    if not cache_bytes:
        return ()
    words = Text("at most, filled as conversations come and go", "上限，随对话增减而占用")
    return (BudgetLine("RAM", "prompt cache", cache_bytes, "estimated", words),)


def device_reason(machine: Machine, room: Room, model: Model) -> Reason:
    """Why the model is placed where it is."""
    size = show_bytes(model.weight_bytes)
    if room.gpu is not None:
        because = Text(
            f"All {model.layers + 1} layers fit {room.gpu.name}: {size} of weights.",
            f"全部 {model.layers + 1} 层可放入 {room.gpu.name}：权重 {size}。",
        )
    elif machine.gpus:
        because = Text(
            f"No GPU that this engine can use holds the model: {size} of weights in main memory.",
            f"没有此引擎可用且放得下模型的显卡：{size} 权重放在内存。",
        )
    else:
        because = Text(
            f"There is no GPU: {size} of weights in main memory.",
            f"本机没有显卡：{size} 权重放在内存。",
        )
    return Reason("device", room.device, because)


def layout_reasons(layout: Layout, model: Model, wish: Wish) -> tuple[Reason, ...]:
    """Why this context, these slots and this KV type."""
    asked = Text("As asked.", "按用户要求。")
    trained = model.context_trained_tokens
    context = Text(
        f"Enough for chat; the model was trained for {trained or 'an unknown length'}.",
        f"足够对话使用；模型训练长度为 {trained or '未知'}。",
    )
    slots = Text(
        "Requests answered at the same time; the rest wait.", "同时应答的请求数，其余排队。"
    )
    kv = {
        "f16": Text("Full precision: there is room.", "空间足够，保持全精度。"),
        "q8_0": Text("Halves the KV cache: the room is short.", "空间不足，KV 缓存减半。"),
    }
    return (
        Reason("context", str(layout.context_tokens), asked if wish.context_tokens else context),
        Reason("slots", str(layout.slots), asked if wish.slots else slots),
        Reason("kv", layout.kv_type_k, kv[layout.kv_type_k]),
        Reason(
            "flash attention",
            "on",
            Text(
                "Less scratch memory, and quantised KV needs it; the golden prompt checks it.",
                "节省临时内存，量化 KV 也依赖它；启动时由标准提示词验证。",
            ),
        ),
        Reason(
            "batch",
            str(layout.micro_batch_tokens),
            Text(
                "Small enough that an abandoned prompt frees its slot within two batches, about a "
                "second where prefill allows it, and that other streams do not stall.",
                "批次足够小：客户端断开后两个批次内释放槽位（预填充够快时约一秒），其他请求也不会卡顿。",
            ),
        ),
    )
