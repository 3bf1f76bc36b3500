"""How exact twins are: each model whole and as twins, asked in turn in one run.

    python benchmarks/twin_accuracy.py OUT.json [--engine PATH] --vocabularies DIR [--only NAME ...]
    python benchmarks/twin_accuracy.py OUT.json [--engine PATH] --model MODEL.gguf
    python benchmarks/twin_accuracy.py OUT.json --engine PATH --vocabularies DIR --skeletons

The whole models have random valid blocks too (but for --model): no weights are downloaded. DIR
has llama.cpp's `ggml-vocab-*.gguf`. Prints one row a model, and writes all raw times to OUT.json.
With --cpu-time other programs disturb little: one thread, and the CPU time that it took.
Needs the disk and memory of the largest shape twice over (7B at 4 bits: 5 GB and 6 GB).
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from workhorse.bench.load import load_session
from workhorse.bench.scenario import scenario_for
from workhorse.bench.service import find_service
from workhorse.bench.tokenizer import make_prompts
from workhorse.engines.find import binary_build, embedded_build
from workhorse.engines.openmp import ensure_openmp
from workhorse.machine.probe import probe
from workhorse.models.gguf import describe, read_gguf
from workhorse.models.header import read_header
from workhorse.plan.planner import make_plan
from workhorse.plan.wish import Wish
from workhorse.records import EngineBuild, Machine, Plan
from workhorse.rehearse.job import Wanted, memory_room, plan_for
from workhorse.rehearse.measure import measure_twins, started
from workhorse.rehearse.protocol import Protocol
from workhorse.rehearse.result import conclude
from workhorse.rehearse.scratch import scratch
from workhorse.rehearse.skeleton import dry_run, write_skeleton
from workhorse.rehearse.source import Key, Part, local_parts, metadata
from workhorse.rehearse.times import TwinTimes
from workhorse.rehearse.twin import last_level_cache, make_twin, plan_twins
from workhorse.rehearse.twin_file import pieces, write_twin
from workhorse.run.ask import ask_engine
from workhorse.run.process import EngineProcess

sys.path.append(str(Path(__file__).parent.parent / "tests/models"))
from published_shapes import (  # type: ignore[import-not-found]
    PUBLISHED,
    Delta,
    Experts,
    Published,
)

SHAPES = {
    "Qwen2.5-0.5B Q8_0": (PUBLISHED["Qwen2.5-0.5B"], "qwen2"),
    "Qwen3.5-0.8B Q4_K, hybrid": (replace(PUBLISHED["Qwen3.5-0.8B"], type="q4_k"), "qwen35"),
    "Gemma-3-1B Q8_0, windows": (replace(PUBLISHED["Gemma-3-1B"], type="q8_0"), "gemma-4"),
    "Llama 1.1B Q4_0": (
        Published("llama", 22, 2048, 32, 4, 64, 32000, 5632, type="q4_0"),
        "llama-spm",
    ),
    "1B-7B MoE of 64, 8 used, Q4_K": (
        Published("qwen3moe", 16, 2048, 16, 16, 128, 50304, 1024, experts=Experts(64, 8, 1024)),
        "qwen2",
    ),
    "hybrid MoE 0.4B-3B of 128, 8 used, Q4_K": (
        Published(
            "qwen35moe", 24, 1024, 8, 2, 256, 248320, 512, tied=True,
            experts=Experts(128, 8, 512, 512), delta=Delta(16, 16),
        ),
        "qwen35",
    ),
    "Qwen2.5-3B Q4_K": (
        Published("qwen2", 36, 2048, 16, 2, 128, 151936, 11008, tied=True), "qwen2"
    ),
    "Mistral 7B Q4_0": (replace(PUBLISHED["Mistral-7B-v0.3"], type="q4_0"), "llama-spm"),
}  # fmt: skip
PROMPT_TOKENS, OUTPUT_TOKENS, ROUNDS = 512, 48, 3


@dataclass(frozen=True)
class Row:
    """One model: predicted by twins, and measured whole in the same run."""

    name: str
    layers: int
    twin_layers: list[int]
    whole_bytes: int
    decode_predicted: float
    decode_low: float
    decode_high: float
    decode_measured: float
    prefill_predicted: float
    prefill_low: float
    prefill_high: float
    prefill_measured: float
    noise_share: float  # of the whole model's own rounds: (most - least) / median
    times: list[dict[str, list[float]]]

    def markdown(self) -> str:
        """The row of the table."""
        decode = self.decode_predicted / self.decode_measured - 1
        prefill = self.prefill_predicted / self.prefill_measured - 1
        twins = " + ".join(map(str, self.twin_layers))
        return (
            f"| {self.name} | {self.whole_bytes / 1e9:.2f} | {twins} of {self.layers} "
            f"| {self.decode_predicted:.4g} / {self.decode_measured:.4g} | {decode:+.1%} "
            f"| {self.prefill_predicted:.4g} / {self.prefill_measured:.4g} | {prefill:+.1%} "
            f"| {self.noise_share:.0%} |"
        )


def main() -> None:
    """Measure the chosen shapes one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--engine", type=Path, help="a llama-server; left out: embedded")
    parser.add_argument("--vocabularies", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--scratch", type=Path, default=Path("twins"))
    parser.add_argument("--prompt-tokens", type=int, default=PROMPT_TOKENS)
    parser.add_argument(
        "--cpu-time", action="store_true", help="CPU time of one thread, on a shared machine"
    )
    parser.add_argument("--skeletons", action="store_true", help="compare dry runs instead")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    args = parser.parse_args()
    machine, build = probe(measure_s=0), engine(args.engine)
    rows: list[Row] = []
    for name, model in models(args):
        with model as path:
            if args.skeletons:
                print(f"| {name} | {skeletons(path, machine, build, args.scratch)} |", flush=True)
                continue
            row = measure(name, path, machine, build, args)
        rows.append(row)
        print(row.markdown(), flush=True)
        document = {
            "when": datetime.now(UTC).isoformat(timespec="seconds"),
            "engine": build.version,
            "rows": [asdict(one) for one in rows],
        }
        args.out.write_text(json.dumps(document, indent=1) + "\n")


def engine(path: Path | None) -> EngineBuild:
    """The llama-server at `path`, else the embedded engine."""
    if path is not None:
        return binary_build(path)
    ensure_openmp()
    return embedded_build()


def models(args: argparse.Namespace) -> Iterator[tuple[str, AbstractContextManager[Path]]]:
    """Name and file of each model; the file is there while its block runs."""
    if args.model:
        yield args.model.stem, given(args.model)
        return
    for name, (shape, vocabulary) in SHAPES.items():
        if not args.only or name in args.only:
            source = args.vocabularies / f"ggml-vocab-{vocabulary}.gguf"
            yield name, made(shape, source, args.scratch)


@contextmanager
def given(path: Path) -> Iterator[Path]:
    """A file that was there before and stays."""
    yield path


@contextmanager
def made(shape: Published, vocabulary: Path, folder: Path) -> Iterator[Path]:
    """A whole model of a shape with random weights and a real tokenizer."""
    with local_parts(vocabulary) as (words,), scratch(folder) as own:
        tokenizer = [key for key in metadata(words) if key.name.startswith("tokenizer.")]
        tokens = words.header.values["tokenizer.ggml.tokens"]
        shape = replace(shape, vocabulary=tokens.count)  # type: ignore[union-attr]
        raw: bytes = shape.header().header()

        def read_at(at: int, size: int) -> bytes:
            return raw[at : at + size].ljust(size, b"\0")

        header = read_header(read_at, 2**50, name="shape")
        model = describe([header], Path("shape.gguf"))
        keys: list[Key] = [
            key
            for key in metadata(Part("shape", header, read_at))
            if not key.name.startswith("tokenizer.")
        ]
        twin = make_twin(model, range(model.layers))
        path = own / "whole.gguf"
        with path.open("wb") as file:
            for piece in pieces([*keys, *tokenizer], twin.tensors, 32, model.layers):
                file.write(piece)
        yield path


def measure(
    name: str, path: Path, machine: Machine, build: EngineBuild, args: argparse.Namespace
) -> Row:
    """Twins and the whole model, all running, asked in turn."""
    model = read_gguf(path)
    plan = make_plan(machine, model, build, Wish(context_tokens=2048, slots=1))
    cache_bytes = last_level_cache(machine, gpu=plan.gpu_index is not None)
    twins = plan_twins(model, cache_bytes, memory_room(Wanted(machine, model, plan)))
    protocol = Protocol(
        scenario_for(prompt_tokens=args.prompt_tokens, output_tokens=OUTPUT_TOKENS, repeats=ROUNDS),
        None,
        None,
    )
    with local_parts(path) as parts, scratch(args.scratch / "twins") as own:
        plans = []
        for twin in twins.twins:
            file = own / f"{len(twin.layers)}.gguf"
            write_twin(parts[0], twin, model.architecture, model.layers, file, lambda _: None)
            plans.append((plan_for(plan, twin, file), len(twin.layers)))
        plans.append((plan, model.layers))
        if args.cpu_time:
            times = asyncio.run(cpu_times(plans, protocol, own / "logs"))
        else:
            times = list(asyncio.run(measure_twins(plans, protocol, own / "logs", lambda _: None)))
    found = conclude(plan, model.quantisation, twins, protocol, times[:-1])
    decode, prefill = found.forecast.decode_tokens_per_s, found.forecast.prefill_tokens_per_s
    assert decode is not None
    whole = times[-1]
    return Row(
        name,
        model.layers,
        [len(twin.layers) for twin in twins.twins],
        model.weight_bytes,
        decode.value,
        decode.low,
        decode.high,
        1 / median(whole.token_s),
        prefill.value,
        prefill.low,
        prefill.high,
        args.prompt_tokens / median(whole.prompt_s),
        spread(whole.token_s),
        [asdict(one) for one in times],
    )


async def cpu_times(
    plans: Sequence[tuple[Plan, int]], protocol: Protocol, logs: Path
) -> list[TwinTimes]:
    """As `measure_twins`, in CPU time of one thread: what other programs do hardly counts.

    A prompt with one token, then the same prompt out of the cache with the others.
    """
    scenario = protocol.standard
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(load_session())
        running = []
        for number, (plan, _) in enumerate(plans):
            alone = replace(plan, threads=1)
            process = await started(alone, logs / f"{number}.log", stack)
            service = await find_service(client, process.base_url, process.address.key)
            running.append((process, await make_prompts(client, service, scenario, number)))
        times = [TwinTimes() for _ in running]
        for number in range(-1, scenario.repeats):  # the first one warms up
            for (process, prompts), one in zip(running, times, strict=True):
                spent = []
                for tokens in (1, scenario.output_tokens):
                    before_s = cpu_s(process)
                    question = {"prompt": list(prompts[number]), "n_predict": tokens}
                    always = {"cache_prompt": True, "ignore_eos": True, "temperature": 0}
                    await ask_engine(process, "/completion", question | always)
                    spent.append(cpu_s(process) - before_s)
                if number >= 0:
                    one.prompt_s.append(spent[0])
                    one.token_s.append(spent[1] / scenario.output_tokens)
        return times


def cpu_s(process: EngineProcess) -> float:
    """CPU seconds of all threads of an engine so far; nanoseconds in the kernel's own count."""
    tasks = Path(f"/proc/{process.pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def skeletons(path: Path, machine: Machine, build: EngineBuild, folder: Path) -> str:
    """Under how many of several settings the engine says the same of the header alone."""
    plan = make_plan(machine, read_gguf(path), build, Wish())
    settings = [
        replace(plan, context_tokens=context, slots=slots, kv_type_k=kv, kv_type_v=kv)
        for context in (512, 8192)
        for slots in (1, 4)
        for kv in ("f16", "q8_0")
    ]
    with local_parts(path) as parts, scratch(folder / "skeletons") as own:
        skeleton = write_skeleton(parts, own)
        equal = [dry_run(one, skeleton) == dry_run(one, path) for one in settings]
    return f"{sum(equal)} of {len(equal)}"


def spread(values: Sequence[float]) -> float:
    """How far the least and the most are apart, as a share of the median."""
    return (max(values) - min(values)) / median(values)


if __name__ == "__main__":
    main()
