"""llama.cpp's server: a Plan becomes a Launch. One adapter for the embedded server and a binary."""

import shlex
from collections.abc import Iterable

from workhorse.knowledge.llamacpp_flags import CARD_SAMPLING, spell
from workhorse.records import EngineBuild, Launch, Plan
from workhorse.units import MIB

HEALTH_PATH = "/health"
# What `--api-key` is called there (common/arg.cpp, 006167dd of 2024 to 0c1e570 of 2026-10): an
# argument could be read by every user of the machine.
KEY_VARIABLE = "LLAMA_API_KEY"

# llama-server writes which buffers it made on which device at this level only (measured 2026-11).
LOG_LEVEL_WITH_BUFFERS = "4"

# A busy wait of about 10 microseconds before a thread gives its core back. GCC's default spins
# for seconds: with other load on the cores decode falls from 115 to 1-5 tok/s, bounded to 14-24;
# when quiet it costs up to 10 % (measured 2026-11).
SPIN_COUNT = "1000"

# SIGTERM ends llama-server only after requests in flight; a second one ends it (measured 2026-11).
STOP_GRACE_S = 10.0


def launch(plan: Plan, port: int, host: str = "127.0.0.1") -> Launch:
    """How to start the plan's engine on `host`:`port`."""
    return Launch(
        argv=(*plan.engine.command, *settings(plan, port, host)),
        env=environment(plan),
        cpus=plan.cpus,
        memory_nodes=plan.memory_nodes,
        host=host,
        port=port,
        health_path=HEALTH_PATH,
        stop_grace_s=STOP_GRACE_S,
        key_variable=key_variable(plan.engine),
    )


def key_variable(build: EngineBuild) -> str | None:
    """Where this build takes the key of its port; None: it knows no keys."""
    return KEY_VARIABLE if "--api-key" in build.knows else None


def settings(plan: Plan, port: int, host: str) -> tuple[str, ...]:
    """The command line after the program, with only what this build understands."""
    threads = str(plan.threads)
    wanted: list[tuple[str, ...]] = [
        ("--model", plan.model_path),
        ("--alias", plan.model_name),
        ("--host", host),
        ("--port", str(port)),
        # Each slot gets its share of the context: a cache of its own, or a part of one pool.
        ("--ctx-size", str(plan.context_tokens * plan.slots)),
        ("--parallel", str(plan.slots)),
        ("--threads", threads),
        ("--threads-batch", threads),
        ("--batch-size", str(plan.batch_tokens)),
        ("--ubatch-size", str(plan.micro_batch_tokens)),
        ("--cache-type-k", plan.kv_type_k),
        ("--cache-type-v", plan.kv_type_v),
        ("--n-gpu-layers", str(plan.gpu_layers)),
        *placement_settings(plan),
        *projector_settings(plan),
        ("--slots",),
        ("--metrics",),
    ]
    if plan.engine.bounded_wait:
        # Between two tokens its threads wait for a signal: polling would nap for minutes.
        wanted += [("--poll", "0"), ("--poll-batch", "0")]
    if plan.shared_kv:
        wanted += [("--kv-unified",), ("--kv-unified-per-slot", str(plan.context_tokens))]
    if plan.states_dir is not None:
        wanted.append(("--slot-save-path", plan.states_dir))
        if plan.shared_kv:
            # Else each request moves what idle slots hold, templates too, to main memory, where
            # one copy is left for all: of four clients that came at once two read all of it
            # again (measured 2026-11).
            wanted.append(("--no-cache-idle-slots",))
    if plan.context_checkpoints is not None:
        wanted.append(("--ctx-checkpoints", str(plan.context_checkpoints)))
    if plan.card_sampling and plan.drafts is None:  # with drafts it was never run
        wanted.append((CARD_SAMPLING,))
    if plan.embeddings:
        # --reranking is --embeddings and the head that scores (common/arg.cpp, 2026-11).
        wanted.append(("--reranking",) if plan.reranks else ("--embeddings",))
    known = [word for words in wanted if words[0] in plan.engine.knows for word in words]
    return (*known, *changed_settings(plan))


def placement_settings(plan: Plan) -> Iterable[tuple[str, ...]]:
    """Which layers and experts lie where, as far as one card does not hold them all."""
    if plan.rpc:
        yield ("--rpc", ",".join(plan.rpc))
        if not plan.gpu_indexes:
            # On another machine the output would send all logits back for each token: 197 KB
            # instead of 3 for a vocabulary of 49,152 (measured 2026-12).
            yield ("--override-tensor", r"^(output|token_embd)\.weight$=CPU")
    if len(plan.layer_split) > 1:
        yield ("--split-mode", plan.split_mode)
        yield ("--tensor-split", ",".join(map(str, plan.layer_split)))
    if plan.expert_layers_in_ram:
        yield ("--n-cpu-moe", str(plan.expert_layers_in_ram))
    if any(group.group == "tables" for group in plan.placement):
        # On its own the engine reads large tables lazily and holds small ones.
        yield ("--lazy-mode", "on" if plan.lazy_tables else "off")


def projector_settings(plan: Plan) -> Iterable[tuple[str, ...]]:
    """The file that turns images into embeddings, and where it computes."""
    if plan.projector is None:
        return
    yield ("--mmproj", plan.projector.path)
    if plan.gpu_index is None:
        # Left to itself the engine takes any card it sees, which the plan left alone.
        yield ("--no-mmproj-offload",)


def changed_settings(plan: Plan) -> Iterable[str]:
    """The settings whose spelling changed between versions, in the words of this build."""
    drafts = plan.drafts
    for setting, value in (
        *((("draft kind", drafts.kind),) if drafts else ()),
        *((("draft tokens", str(drafts.tokens)),) if drafts and drafts.tokens else ()),
        ("load mode", plan.load_mode),
        ("flash attention", "on" if plan.flash_attention else "off"),
        # The engine's own fitting would quietly cut the context or move layers to the CPU.
        ("fit", "off"),
        ("prompt cache", str(plan.prompt_cache_bytes // MIB)),
        ("log level", LOG_LEVEL_WITH_BUFFERS),
        # The engine's default answers any web page of any origin.
        ("origins", ""),
        ("web page", "off"),
    ):
        yield from spell(setting, value, plan.engine.knows, plan.engine.forms) or ()


def environment(plan: Plan) -> dict[str, str]:
    """What the plan adds to the engine's environment."""
    added: dict[str, str] = {}
    if plan.huge_pages:
        added["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
    if plan.spin == "bounded":
        added["GOMP_SPINCOUNT"] = SPIN_COUNT
    if plan.engine.library_dir is not None:
        added["LD_LIBRARY_PATH"] = plan.engine.library_dir
    if plan.gpu_index is not None:
        # Without PCI order, CUDA's device 0 is the fastest card and not the driver's first.
        added["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        # When a card falls off the bus the others get other numbers, and keep their UUIDs.
        named = plan.gpu_uuids or plan.gpu_indexes or (plan.gpu_index,)
        added["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, named))
    return added


def command_line(start: Launch) -> str:
    """The launch as one line for a shell: what `--dry-run` prints."""
    words = [f"{name}={shlex.quote(value)}" for name, value in start.env.items()]
    if start.memory_nodes is not None:
        policy = "--membind" if len(start.memory_nodes) == 1 else "--interleave"
        words += ["numactl", f"{policy}={','.join(map(str, start.memory_nodes))}"]
    if start.cpus:
        words += ["taskset", "-c", ",".join(map(str, start.cpus))]
    return " ".join([*words, *(shlex.quote(word) for word in start.argv)])
