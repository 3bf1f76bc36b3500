"""A machine that is not here, put together from tables: for plans before anything is bought."""

import re
from dataclasses import dataclass
from difflib import get_close_matches

from workhorse.errors import EXIT_USAGE, AppError
from workhorse.knowledge.cpus import CpuLine, cpu_line_named, memory_rate_mt_s
from workhorse.knowledge.engine_environments import environments, environments_for
from workhorse.knowledge.gpus import Card, bare_name, cards
from workhorse.knowledge.versions import version, version_range
from workhorse.plan.checks import architecture
from workhorse.records import (
    Core,
    Cpu,
    EngineBuild,
    Gpu,
    Limits,
    Machine,
    Memory,
    NumaNode,
    System,
)
from workhorse.text import Text
from workhorse.units import GB, GIB, MIB, show_bytes

# What a driver keeps of a card before anybody asked: 543 MiB of a V100, 271 of a T4 and 615 of an
# H200 (captures, 2026-11).
DRIVER_BYTES = 620 * MIB
# ECC takes a sixteenth of GDDR; HBM has room of its own for it (NVIDIA's notes on nvidia-smi).
ECC_SHARE_OF_GDDR = 1 / 16
# Of main memory what an idle server leaves to programs: 93 and 95 % (captures, 2026-11).
AVAILABLE_SHARE = 0.92
# Where the number of cores is not told: fewer than any server of the last ten years has.
CORES_ASSUMED = 8
# llama.cpp's CUDA kernels start at Maxwell (ggml-cuda/CMakeLists.txt, commit 0c1e570, 2026-10).
CAPABILITY_FROM = (5, 0)

# The settings of llama-server 0.5.0 that a plan uses (`--help`, commit 0c1e570, 2026-10-01).
_KNOWS = (
    "--model", "--alias", "--host", "--port", "--ctx-size", "--parallel", "--threads",
    "--threads-batch", "--batch-size", "--ubatch-size", "--cache-type-k", "--cache-type-v",
    "--n-gpu-layers", "--split-mode", "--tensor-split", "--n-cpu-moe", "--lazy-mode", "--slots",
    "--metrics", "--embeddings", "--reranking", "--load-mode", "--flash-attn", "--fit",
    "--cache-ram", "--verbosity", "--cors-origins", "--no-ui", "--kv-unified",
    "--kv-unified-per-slot",
)  # fmt: skip
_FORMS = ("flash-attn takes a value", "split-mode takes tensor", "verbosity has levels")
# Of vLLM's options the one that a plan asks for (knowledge/engine_options.toml).
_ATTENTION_OPTION, _HAS_IT = "--attention-backend", ">=0.13.0"


@dataclass(frozen=True, slots=True)
class Parts:
    """What the user says of a machine that is not here; cores are of one socket."""

    gpu: str | None
    gpus: int
    ram_bytes: int
    nodes: int = 1
    cpu: str | None = None
    cores: int | None = None


def composed_machine(parts: Parts) -> Machine:
    """The machine that these parts make; each fact of it says that it was put together.

    Raises AppError with near names for a card or a CPU that the tables do not have.
    """
    card = None if parts.gpu is None else card_named(parts.gpu)
    line = None if parts.cpu is None else line_named(parts.cpu)
    cores, doubts = parts.cores or CORES_ASSUMED, [_composed()]
    if parts.cores is None:
        doubts.append(_cores_unknown())
    memory = _memory(parts, line)
    if memory.rated_bandwidth_bytes_per_s is None:
        doubts.append(_memory_speed_unknown(parts.cpu))
    every = tuple(range(cores * parts.nodes))
    nodes = tuple(
        NumaNode(
            index=node,
            cpus=every[node * cores : (node + 1) * cores],
            memory_total_bytes=parts.ram_bytes // parts.nodes,
            memory_free_bytes=int(parts.ram_bytes // parts.nodes * AVAILABLE_SHARE),
            distances=tuple(10 if node == other else 21 for other in range(parts.nodes)),
        )
        for node in range(parts.nodes)
    )
    return Machine(
        cpu=_cpu(parts, line, cores),
        nodes=nodes,
        memory=memory,
        limits=Limits(every, None, None, None),
        system=System(None, None, None, None),
        driver=None,
        gpus=() if card is None else tuple(_gpu(card, n, parts) for n in range(parts.gpus)),
        disks=(),
        busy_cpus=None,
        learned_from=_sources(parts, card, line),
        doubts=tuple(doubts),
    )


def card_named(name: str) -> Card:
    """The card of that name; AppError with near names when there is none, or more than one."""
    wanted = _plain(name)
    found = [card for card in cards() if wanted in _names(card)]
    if len(found) == 1:
        return found[0]
    if found:
        sizes = ", ".join(f"{card.name} {card.memory_gib}GB" for card in found)
        raise AppError(
            Text(
                f"{len(found)} cards are called {name!r}: they differ in memory.",
                f"有 {len(found)} 种显卡名为 {name!r}，显存不同。",
            ),
            Text(f"Add the memory: {sizes}.", f"请加上显存：{sizes}。"),
            exit_code=EXIT_USAGE,
        )
    near = near_names(name, {plain: card.name for card in cards() for plain in _names(card)})
    raise _unknown(Text(f"The card {name!r}", f"显卡 {name!r}"), near)


def line_named(name: str) -> CpuLine:
    """The line of CPUs of that name; AppError with near names when there is none."""
    found = cpu_line_named(name)
    if found is not None:
        return found
    raise _unknown(
        Text(f"The CPU {name!r}", f"CPU {name!r}"),
        ["Xeon E5-2690 v4", "Xeon Gold 6226R", "EPYC 7302"],
    )


def near_names(name: str, known: dict[str, str]) -> list[str]:
    """Known names that look like `name` or hold its words, the nearest first."""
    wanted = _plain(name)
    holding = [shown for plain, shown in known.items() if wanted and wanted in plain]
    alike = [known[plain] for plain in get_close_matches(wanted, known, n=5, cutoff=0.5)]
    return list(dict.fromkeys((*holding, *alike)))[:6]


def _names(card: Card) -> set[str]:
    """The ways to write a card's name, with and without its memory at the end."""
    names = {_plain(known) for known in (card.name, *card.also_named)}
    memory = f"{card.memory_gib}gb"
    return names | {name + memory for name in names if not name.endswith(memory)}


def _plain(name: str) -> str:
    """Letters and digits of a name without the brand: people write it in many ways."""
    words = re.sub(r"[^a-z0-9]+", " ", bare_name(name).replace("gib", "gb")).split()
    return "".join(word for word in words if word not in ("nvidia", "tesla", "geforce", "quadro"))


def _unknown(what: Text, near: list[str]) -> AppError:
    listed = ", ".join(near)
    return AppError(
        Text(f"{what.en} is not in the table.", f"{what.zh} 不在已知列表中。"),
        Text(f"Near it: {listed}.", f"相近的有：{listed}。")
        if near
        else Text(
            "Give the name as nvidia-smi shows it, such as Tesla V100-PCIE-16GB.",
            "请使用 nvidia-smi 显示的名称，例如 Tesla V100-PCIE-16GB。",
        ),
        exit_code=EXIT_USAGE,
    )


def _gpu(card: Card, index: int, parts: Parts) -> Gpu:
    total = card.memory_gib * GIB
    if card.ecc and not card.memory_kind.startswith("HBM"):
        total = int(total * (1 - ECC_SHARE_OF_GDDR))
    bandwidth = card.bandwidth_gb_per_s
    return Gpu(
        index=index,
        name=card.name,
        uuid=None,
        pci_address=None,
        compute_capability=card.capability,
        memory_total_bytes=total,
        memory_free_bytes=max(0, total - DRIVER_BYTES),
        memory_bus_bits=card.memory_bus_bits,
        memory_clock_max_mhz=None,
        rated_bandwidth_bytes_per_s=None if bandwidth is None else bandwidth * GB,
        pcie_generation_now=None,
        pcie_generation_max=card.pcie_generation,
        pcie_width_now=None,
        pcie_width_max=card.pcie_width,
        numa_node=index * parts.nodes // parts.gpus,
        ecc_enabled=None,
        temperature_c=None,
        power_limit_w=None,
        power_limit_default_w=float(card.power_w),
        throttle_reasons=None,
        pci_id=card.pci_ids[0] if card.pci_ids else None,
    )


def _cpu(parts: Parts, line: CpuLine | None, cores: int) -> Cpu:
    topology = tuple(
        Core(socket=n // cores, core=n % cores, node=n // cores, cpus=(n,))
        for n in range(cores * parts.nodes)
    )
    rate = memory_rate_mt_s(line, parts.cpu) if line and parts.cpu else None
    return Cpu(
        architecture="x86_64",
        vendor=None if line is None else line.vendor,
        name=parts.cpu,
        flags=(),
        cores=topology,
        l2_bytes=None,
        l3_bytes=None,
        max_mhz=None,
        family=None if line is None else line.family,
        memory_channels=None if line is None else line.channels,
        memory_rate_max_mt_s=rate,
    )


def _memory(parts: Parts, line: CpuLine | None) -> Memory:
    rated = None
    if line is not None and parts.cpu and line.channels:
        rate = memory_rate_mt_s(line, parts.cpu)
        rated = None if rate is None else parts.nodes * line.channels * rate * 1e6 * 8
    return Memory(
        total_bytes=parts.ram_bytes,
        available_bytes=int(parts.ram_bytes * AVAILABLE_SHARE),
        swap_total_bytes=None,
        swap_free_bytes=None,
        thp=None,
        huge_page_bytes=None,
        huge_pages_free=None,
        memlock_bytes=None,
        rated_bandwidth_bytes_per_s=rated,
    )


def _sources(parts: Parts, card: Card | None, line: CpuLine | None) -> dict[str, str]:
    found = {
        "memory": f"composed: {show_bytes(parts.ram_bytes)} as asked, free share assumed",
        "nodes": f"composed: {parts.nodes} equal nodes as asked",
        "cpu": "composed: cores as asked" if parts.cores else "composed: cores assumed",
    }
    if line is not None:
        found["cpu"] += f"; {line.name}: knowledge/cpus.toml ({line.source}, {line.date})"
    if card is not None:
        found["gpus"] = (
            f"composed: {parts.gpus} × {card.name}, knowledge/gpus.toml "
            f"({card.confidence}, {card.date})"
        )
    return found


def _composed() -> Text:
    return Text(
        "This machine was put together from options and tables: nothing of it was read or "
        "measured.",
        "该机器由选项和资料表拼成，未经读取或测量。",
    )


def _cores_unknown() -> Text:
    return Text(
        f"The number of cores was not told: {CORES_ASSUMED} a socket are taken (--cores).",
        f"未给出核心数：按每路 {CORES_ASSUMED} 核计算（--cores）。",
    )


def _memory_speed_unknown(cpu: str | None) -> Text:
    if cpu is None:
        return Text(
            "The speed of its main memory was not told: decode is forecast only where all weights "
            "lie on cards. --cpu NAME tells it.",
            "未给出内存速度：只有权重全部在显卡上时才能预测解码速度。请用 --cpu NAME 指定 CPU。",
        )
    return Text(
        f"The table does not tell the memory speed of {cpu}: decode is forecast only where all "
        "weights lie on cards.",
        f"资料表中没有 {cpu} 的内存速度：只有权重全部在显卡上时才能预测解码速度。",
    )


def assumed_build(machine: Machine) -> EngineBuild | None:
    """The engine that a plan for another machine takes: one with code for its cards.

    None when it has no card that llama.cpp has code for.
    """
    names = dict.fromkeys(
        name
        for gpu in machine.gpus
        if gpu.compute_capability is not None and gpu.compute_capability >= CAPABILITY_FROM
        for name in (architecture(gpu),)
        if name is not None
    )
    if not names:
        return None
    return EngineBuild(
        engine="llama.cpp",
        kind="binary",
        command=("llama-server",),
        version=f"llama-server for {', '.join(names)} (assumed)",
        needs_flags=(),
        gpu_architectures=tuple(names),
        openmp=None,
        library_dir=None,
        knows=_KNOWS,
        source="llama.cpp 0c1e570; `workhorse engine build` makes it",
        forms=_FORMS,
    )


def assumed_environment(machine: Machine, word: str) -> EngineBuild | None:
    """The environment that `engine install WORD` would give that machine; None: there is none."""
    known = [gpu.compute_capability for gpu in machine.gpus if gpu.compute_capability is not None]
    named = [recipe for recipe in environments() if recipe.name == word]
    recipe = next(iter(named or environments_for(word, max(known, default=None))), None)
    if recipe is None:
        return None
    reached = dict.fromkeys(
        architecture(gpu)
        for gpu in machine.gpus
        if gpu.compute_capability is not None and recipe.is_for(gpu.compute_capability)
    )
    its = version(recipe.version)
    newer = its is not None and version_range(_HAS_IT).holds(its)
    return EngineBuild(
        engine=recipe.engine,
        kind="environment",
        command=(f"{recipe.name}/bin/python", "-m", recipe.module),
        version=f"{recipe.engine} {recipe.version} ({recipe.name}, assumed)",
        needs_flags=recipe.needs_flags,
        gpu_architectures=tuple(name for name in reached if name is not None),
        openmp=None,
        library_dir=None,
        knows=(_ATTENTION_OPTION,) if newer else (),
        source=recipe.source,
    )
