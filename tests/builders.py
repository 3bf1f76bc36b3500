"""Machines, models and builds for planner tests, small enough to read."""

from dataclasses import replace
from typing import Literal

from workhorse.records import (
    Attention,
    Bandwidth,
    Core,
    Cpu,
    Disk,
    EngineBuild,
    Gpu,
    Limits,
    Machine,
    Memory,
    Model,
    NumaNode,
    System,
    Tensor,
)
from workhorse.units import GB, GIB

EMBEDDED = EngineBuild(
    engine="llama.cpp",
    kind="embedded",
    command=("python", "embedded.py"),
    version="test 1",
    needs_flags=("avx2", "fma"),
    gpu_architectures=(),
    openmp=True,
    library_dir=None,
    knows=("--model", "--ctx-size", "--parallel", "--load-mode", "--threads", "--fit"),
    source="test",
)
CUDA = replace(EMBEDDED, kind="binary", gpu_architectures=("sm_70",), openmp=None)


def machine(
    *,
    nodes: int = 1,
    cores: int = 4,
    threads_a_core: int = 1,
    ram_bytes: int = 32 * GIB,
    gpus: tuple[Gpu, ...] = (),
    quota_cpus: float | None = None,
    flags: tuple[str, ...] = ("avx2", "fma"),
    bandwidths: tuple[Bandwidth, ...] | None = None,
) -> Machine:
    """A machine with `cores` physical cores on each of `nodes` nodes, siblings numbered last."""
    total = nodes * cores
    topology = tuple(
        Core(
            socket=index // cores,
            core=index % cores,
            node=index // cores,
            cpus=tuple(index + total * thread for thread in range(threads_a_core)),
        )
        for index in range(total)
    )
    every = tuple(sorted(cpu for core in topology for cpu in core.cpus))
    if bandwidths is None:
        bandwidths = (
            Bandwidth(20.0 * GB, "small", cores, None, "test", 1.0),
            Bandwidth(40.0 * GB, "huge", cores, None, "test", 1.0),
        )
    return Machine(
        cpu=Cpu("x86_64", "GenuineIntel", "Test CPU", flags, topology, None, None, None),
        nodes=tuple(
            NumaNode(
                index=node,
                cpus=tuple(cpu for core in topology if core.node == node for cpu in core.cpus),
                memory_total_bytes=ram_bytes // nodes,
                memory_free_bytes=ram_bytes // nodes,
                distances=tuple(10 if node == other else 21 for other in range(nodes)),
            )
            for node in range(nodes)
        ),
        memory=Memory(ram_bytes, ram_bytes, 0, 0, "madvise", 2 << 20, 0, None, bandwidths),
        limits=Limits(every, quota_cpus, None, None),
        system=System("6.1", "Debian", "2.36", True),
        driver=None,
        gpus=gpus,
        disks=(),
        busy_cpus=0.0,
        learned_from={},
    )


def gpu(index: int = 0, *, memory_bytes: int = 16 * GIB, numa_node: int | None = 0) -> Gpu:
    """A V100 in a healthy slot."""
    return Gpu(
        index=index,
        name="Tesla V100-PCIE-16GB",
        uuid=None,
        pci_address=f"00000000:{index:02X}:00.0",
        compute_capability=(7, 0),
        memory_total_bytes=memory_bytes,
        memory_free_bytes=memory_bytes,
        memory_bus_bits=4096,
        memory_clock_max_mhz=877,
        rated_bandwidth_bytes_per_s=898.0 * GB,
        pcie_generation_now=3,
        pcie_generation_max=3,
        pcie_width_now=16,
        pcie_width_max=16,
        numa_node=numa_node,
        ecc_enabled=True,
        temperature_c=40,
        power_limit_w=250.0,
        power_limit_default_w=250.0,
        throttle_reasons=(),
    )


def model(
    *,
    layers: int = 4,
    embedding: int = 256,
    feed_forward: int = 1024,
    heads: int = 8,
    kv_heads: int = 2,
    head_size: int = 64,
    vocabulary: int = 1024,
    window_tokens: int | None = None,
    tied: bool = False,
    experts: int = 0,
    experts_used: int = 0,
) -> Model:
    """A llama-shaped model in F16."""
    tensors = [tensor("token_embd.weight", embedding, vocabulary)]
    if not tied:
        tensors.append(tensor("output.weight", embedding, vocabulary))
    for layer in range(layers):
        tensors.append(tensor(f"blk.{layer}.attn_q.weight", embedding, heads * head_size))
        if experts:
            name = f"blk.{layer}.ffn_down_exps.weight"
            tensors.append(tensor(name, feed_forward, embedding, experts))
        else:
            tensors.append(tensor(f"blk.{layer}.ffn_down.weight", feed_forward, embedding))
    return Model(
        path="/models/tiny-f16.gguf",
        name="tiny",
        format="gguf",
        architecture="llama",
        file_bytes=sum(t.n_bytes for t in tensors),
        tensors=tuple(tensors),
        attention=(Attention(kv_heads, head_size, head_size, window_tokens),) * layers,
        layers=layers,
        embedding_size=embedding,
        heads=heads,
        vocabulary=vocabulary,
        context_trained_tokens=32768,
        experts=experts,
        experts_used=experts_used,
        quantisation="f16",
        chat_template="{{ messages }}",
        pooling=False,
        licence=None,
    )


def disk(kind: Literal["nvme", "ssd", "hdd", "network"]) -> Disk:
    """A disk with room for everything."""
    return Disk("/models", "ext4", 4000 * GB, 4000 * GB, kind)


def tensor(name: str, *shape: int) -> Tensor:
    """An F16 tensor."""
    elements = 1
    for size in shape:
        elements *= size
    return Tensor(name, "f16", shape, elements * 2, 0)
