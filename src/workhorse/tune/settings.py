"""What each value of a variable means: one setting of a plan moved, or why it cannot be. Pure.

Words of the variables, as a `Change` holds them:

| variable | value |
|---|---|
| `slots` | a number |
| `cpus` | a list as the kernel writes it (`0-13,28-41`): a thread a core, memory beside them |
| `threads` | a number |
| `numa` | memory nodes: `0` binds, `0,1` interleaves, `local` leaves it to the kernel |
| `load` | `none`, `none huge`, `mmap`, `mlock`, `mlock huge` |
| `spin` | `bounded`, `default` |
| `flash attention` | `on`, `off` |
| `kv` | `f16`, `q8_0` …: of keys and of values; `keys q8_0`: of keys alone, no flash attention |
| `batch`, `micro-batch` | tokens |
| `gpu layers` | layers on cards, the output counted as one |
| `expert layers` | the first so many layers have their experts in main memory |
| `split` | `layer`, `row` |
| `sampling` | `host`, `card`: where tokens are chosen |
| `drafts` | `off`, or the engine's kind and tokens a step: `draft-mtp 3`, `ngram-mod` |
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from workhorse.plan.cpus import allowed_cores, allowed_memory, quota_cut
from workhorse.records import Drafts, Machine, Model, Plan
from workhorse.text import Text
from workhorse.tune.given import Refusal

OFF = "off"
LOCAL = "local"
KEYS = "keys "
HUGE = " huge"
HOST, CARD = "host", "card"


@dataclass(frozen=True, slots=True)
class Settings:
    """A plan whose settings are being moved, its model and its machine."""

    plan: Plan
    model: Model
    machine: Machine


def set_slots(now: Settings, value: str) -> Plan | Refusal:
    """So many requests at a time, each with its context."""
    slots = number(value)
    if not slots:
        return unreadable("slots", value)
    return replace(now.plan, slots=slots, shared_kv=shares(now.plan, slots))


def shares(plan: Plan, slots: int) -> bool:
    """Whether the slots share one pool: one slot has nothing to share it with."""
    return slots > 1 and (
        plan.shared_kv
        or (plan.slots == 1 and {"--kv-unified", "--kv-unified-per-slot"} <= set(plan.engine.knows))
    )


def set_cpus(now: Settings, value: str) -> Plan | Refusal:
    """These CPUs: a thread for each physical core among them, memory of their nodes."""
    wanted = cpu_list(value)
    by_node = allowed_cores(now.machine)
    mine = [core for group in by_node.values() for core in group if set(core.cpus) & set(wanted)]
    known = {cpu for core in mine for cpu in core.cpus}
    if not wanted or not set(wanted) <= known:
        return Refusal(
            Text(f"CPUs {value} are not all allowed here.", f"CPU {value} 并非全部可用。")
        )
    nodes = sorted({core.node for core in mine})
    return replace(
        now.plan,
        cpus=wanted,
        threads=quota_cut(len(mine), now.machine.limits.quota_cpus),
        memory_nodes=allowed_memory(now.machine, nodes) if len(now.machine.nodes) > 1 else None,
    )


def set_threads(now: Settings, value: str) -> Plan | Refusal:
    """So many threads on the CPUs in use."""
    threads = number(value)
    most = quota_cut(len(now.plan.cpus), now.machine.limits.quota_cpus)
    if not threads:
        return unreadable("threads", value)
    if threads > most:
        return Refusal(
            Text(
                f"{threads} threads on {most} CPUs would wait for each other.",
                f"{most} 个 CPU 上开 {threads} 个线程只会互相等待。",
            )
        )
    return replace(now.plan, threads=threads)


def set_numa(now: Settings, value: str) -> Plan | Refusal:
    """Memory of these nodes: one is bound, several are interleaved."""
    if value == LOCAL:
        return replace(now.plan, memory_nodes=None)
    wanted = cpu_list(value)
    known = {node.index for node in now.machine.nodes}
    if not wanted or not set(wanted) <= known or allowed_memory(now.machine, wanted) != wanted:
        return Refusal(
            Text(f"Nodes {value} have no memory for us.", f"节点 {value} 没有可用内存。")
        )
    return replace(now.plan, memory_nodes=wanted)


def set_load(now: Settings, value: str) -> Plan | Refusal:
    """How weights come into memory, and into which pages."""
    mode, huge = value.removesuffix(HUGE), value.endswith(HUGE)
    modes: dict[str, Literal["none", "mmap", "mlock"]] = {
        "none": "none", "mmap": "mmap", "mlock": "mlock",
    }  # fmt: skip
    if mode not in modes or (huge and mode == "mmap"):
        return unreadable("load", value)
    return replace(now.plan, load_mode=modes[mode], huge_pages=huge)


def set_spin(now: Settings, value: str) -> Plan | Refusal:
    """How long threads that wait keep their core."""
    if value == "bounded":
        return replace(now.plan, spin="bounded")
    return replace(now.plan, spin="default") if value == "default" else unreadable("spin", value)


def set_flash_attention(now: Settings, value: str) -> Plan | Refusal:
    """Flash attention on or off."""
    if value not in ("on", OFF):
        return unreadable("flash attention", value)
    return replace(now.plan, flash_attention=value == "on")


def set_kv(now: Settings, value: str) -> Plan | Refusal:
    """The type of keys and values, or of keys alone."""
    if value.startswith(KEYS):
        kind = value.removeprefix(KEYS)
        return replace(now.plan, kv_type_k=kind, kv_type_v="f16", flash_attention=False)
    return replace(now.plan, kv_type_k=value, kv_type_v=value)


def set_micro_batch(now: Settings, value: str) -> Plan | Refusal:
    """Tokens computed at once; the batch is never smaller."""
    tokens = number(value)
    if not tokens:
        return unreadable("micro-batch", value)
    batch = max(tokens, now.plan.batch_tokens)
    return replace(now.plan, micro_batch_tokens=tokens, batch_tokens=batch)


def set_batch(now: Settings, value: str) -> Plan | Refusal:
    """Tokens of a prompt between two looks at the other streams; holds whole micro-batches."""
    tokens = number(value)
    if not tokens:
        return unreadable("batch", value)
    micro = min(tokens, now.plan.micro_batch_tokens)
    return replace(now.plan, batch_tokens=tokens, micro_batch_tokens=micro)


def set_gpu_layers(now: Settings, value: str) -> Plan | Refusal:
    """So many of the last layers on the cards, the output counted as one."""
    layers = number(value)
    if layers is None or layers > now.plan.layers or not now.plan.gpu_indexes:
        return unreadable("gpu layers", value)
    return replace(now.plan, gpu_layers=layers)


def set_expert_layers(now: Settings, value: str) -> Plan | Refusal:
    """The first so many layers keep their experts in main memory."""
    layers = number(value)
    if layers is None or layers > now.model.layers or not now.model.experts:
        return unreadable("expert layers", value)
    return replace(now.plan, expert_layers_in_ram=layers)


SPLITS: tuple[Literal["layer", "row", "tensor"], ...] = ("layer", "row", "tensor")


def set_split(now: Settings, value: str) -> Plan | Refusal:
    """How several cards share the weights."""
    mode = next((mode for mode in SPLITS if mode == value), None)
    return unreadable("split", value) if mode is None else replace(now.plan, split_mode=mode)


def on_one_card(plan: Plan) -> bool:
    """Whether one card holds all layers."""
    return len(plan.gpu_indexes) == 1 and plan.gpu_layers >= plan.layers


def set_sampling(now: Settings, value: str) -> Plan | Refusal:
    """Where tokens are chosen."""
    if value not in (HOST, CARD):
        return unreadable("sampling", value)
    if value == CARD and not on_one_card(now.plan):
        return Refusal(
            Text("No one card holds all layers of this plan.", "该方案没有单卡容纳全部层。")
        )
    return replace(now.plan, card_sampling=value == CARD)


def set_drafts(now: Settings, value: str) -> Plan | Refusal:
    """Tokens guessed ahead, of this kind and so many a step."""
    if value == OFF:
        return replace(now.plan, drafts=None)
    kind, _, tokens = value.partition(" ")
    if tokens and not number(tokens):
        return unreadable("drafts", value)
    return replace(now.plan, drafts=Drafts(kind, number(tokens) if tokens else None))


# In the order in which they are made: what a later one refers to stands before it.
SETTERS: dict[str, Callable[[Settings, str], Plan | Refusal]] = {
    "slots": set_slots,
    "cpus": set_cpus,
    "threads": set_threads,
    "numa": set_numa,
    "load": set_load,
    "spin": set_spin,
    "flash attention": set_flash_attention,
    "kv": set_kv,
    "batch": set_batch,
    "micro-batch": set_micro_batch,
    "gpu layers": set_gpu_layers,
    "expert layers": set_expert_layers,
    "split": set_split,
    "sampling": set_sampling,
    "drafts": set_drafts,
}


def number(value: str) -> int | None:
    """A whole number that is not negative; None for anything else."""
    return int(value) if value.isascii() and value.isdigit() and len(value) < 10 else None


def cpu_list(value: str) -> tuple[int, ...]:
    """The numbers of a list as the kernel writes it, sorted; () where it is none."""
    found: set[int] = set()
    for part in value.split(","):
        first, _, last = part.partition("-")
        low, high = number(first), number(last or first)
        if low is None or high is None or not low <= high < 65536:
            return ()
        found.update(range(low, high + 1))
    return tuple(sorted(found))


def unreadable(variable: str, value: str) -> Refusal:
    """The refusal of a value that the variable does not have."""
    return Refusal(
        Text(f"{value!r} is not a value of {variable}.", f"{value!r} 不是 {variable} 可取的值。")
    )
