"""Everything that workhorse says of an NVIDIA GPU, tried on the one that is here.

    python benchmarks/gpu_check.py OUT.json [--engine LLAMA_SERVER] [--ptx-engine LLAMA_SERVER]
                                   [--vocabularies DIR] [--only NAME ...] [--small MODEL.gguf]
                                   [--tune 2m]

`make gpu-check` calls it. In order: probe; an engine with code for the card (`--engine`, else
`workhorse engine build --gpu auto`); greedy tokens of a small trained model in F16 (`--small`,
else the embedded one, widened), card against CPU, with flash attention off and on; whole models
of 7B shapes with random valid weights at F16, Q8_0 and Q4_K: memory and speed at 1 to 8 streams
against the plan; one of them served by `workhorse up` and measured through the gateway. With
`--tune` each shape is tuned for so long, and measured at 1 to 16 streams before and after.
`--ptx-engine` is a build for another card (sm_70) that a newer one runs through PTX: its tokens
and its speed beside the first engine's. DIR has llama.cpp's `ggml-vocab-*.gguf`; left out, every
shape gets the embedded model's tokenizer. What was seen is printed and stored after each step.
Where no card answers it says so and ends with 3.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpu_greedy import compare
from gpu_rows import SHAPES, check
from gpu_tuned import before_and_after, markdown
from servers import free_port, wait_ready
from twin_accuracy import made
from workhorse.config import places
from workhorse.engines.find import binary_build
from workhorse.errors import EXIT_FAILED, EXIT_NO
from workhorse.machine.probe import probe
from workhorse.models.embedded import embedded_model
from workhorse.records import Machine
from workhorse.rehearse.scratch import scratch

sys.path.append(str(Path(__file__).parent.parent / "tests/models"))
from published_shapes import PUBLISHED  # type: ignore[import-not-found]

DEFAULT = ("Qwen2.5-7B Q4_K", "Qwen2.5-7B Q8_0", "Qwen2.5-7B F16")
ALL_ON_CARD = ["--n-gpu-layers", "999", "--flash-attn"]


def main() -> None:
    """Run every step; a step that fails is told, and the next one runs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--engine", type=Path)
    parser.add_argument("--ptx-engine", type=Path)
    parser.add_argument("--vocabularies", type=Path)
    parser.add_argument("--only", nargs="*", default=DEFAULT)
    parser.add_argument("--small", type=Path, help="a trained F16 model for the greedy tokens")
    parser.add_argument("--tune", metavar="TIME", help="tune each shape for so long")
    parser.add_argument("--scratch", type=Path, default=Path("gpu-check"))
    args = parser.parse_args()
    machine = probe(measure_s=1.0)
    if not machine.gpus:
        print("No NVIDIA GPU answers here: nothing was checked.", file=sys.stderr)
        sys.exit(EXIT_NO)
    engine = args.engine or built_engine()
    check_all = Check(args, machine, engine)
    check_all.greedy()
    check_all.shapes()
    sys.exit(EXIT_FAILED if check_all.failures else 0)


class Check:
    """The steps, and all that they saw."""

    def __init__(self, args: argparse.Namespace, machine: Machine, engine: Path) -> None:
        self.args, self.machine, self.engine = args, machine, engine
        self.failures: list[str] = []
        self.seen: dict[str, Any] = {
            "when": datetime.now(UTC).isoformat(timespec="seconds"),
            "cards": [gpu.name for gpu in machine.gpus],
            "driver": machine.driver.version if machine.driver else None,
            "engine": binary_build(engine).version,
            "greedy": [],
            "rows": [],
            "served": [],
            "tuned": [],
        }

    def greedy(self) -> None:
        """The same tokens as the CPU gives?"""
        with self.told("greedy"), self.trained() as path:
            ways = {f"flash attention {fa}": [*ALL_ON_CARD, fa] for fa in ("off", "on")}
            for engine in filter(None, (self.engine, self.args.ptx_engine)):
                print(f"\n{engine}\n\n| on the card | tokens as on the CPU | gaps |\n|---|---|---|")
                for row in compare(engine, path, ways):
                    print(row.markdown(), flush=True)
                    self.seen["greedy"].append({"engine": str(engine), **asdict(row)})
                    self.keep()

    def shapes(self) -> None:
        """Memory and speed against the plan, then the service itself."""
        served = False
        print("\n| model | plan for | MiB: promised / seen | tok/s: promised / seen | streams |")
        print("|---|---|---|---|---|")
        for name in self.args.only:
            with self.told(name), self.model(SHAPES[name]) as path:
                for engine in filter(None, (self.engine, self.args.ptx_engine)):
                    for row in check(name, path, self.machine, binary_build(engine)):
                        print(row.markdown(), flush=True)
                        self.seen["rows"].append({"engine": str(engine), **asdict(row)})
                        self.keep()
                        if engine is not self.engine:
                            break  # its speed alone
                if not served:
                    served = True
                    self.served(path)
                if self.args.tune:
                    self.tuned(name, path)

    def served(self, path: Path) -> None:
        """`workhorse up` on the card, measured through the gateway."""
        with self.told("up"), service(path, self.engine) as url:
            for streams in (1, 4):
                command = ["bench", url, "--json", "--streams", str(streams), "--repeats", "3"]
                done = subprocess.run(
                    [sys.executable, "-m", "workhorse", *command], capture_output=True, text=True
                )
                if done.returncode:
                    raise RuntimeError(f"bench: {done.stderr[-500:]}")
                self.seen["served"].append(json.loads(done.stdout))
                self.keep()
        print(f"served: {len(self.seen['served'])} measurements through the gateway", flush=True)

    def tuned(self, name: str, path: Path) -> None:
        """Before and after tuning."""
        with self.told(f"tune {name}"):
            seen = before_and_after(path, self.engine, self.machine, self.args.tune)
            self.seen["tuned"].append({"name": name} | seen)
            self.keep()
            for row in markdown(name, seen):
                print(row, flush=True)

    @contextmanager
    def trained(self) -> Iterator[Path]:
        """A small trained model in F16: of random weights many tokens are equally likely."""
        if self.args.small is not None:
            yield self.args.small
            return
        source = embedded_model(places().data, lambda *_: None)
        with scratch(self.args.scratch) as own:
            path = own / "small-f16.gguf"
            command = [str(self.engine.with_name("llama-quantize")), "--allow-requantize"]
            command += [str(source), str(path), "F16"]
            subprocess.run(command, check=True, capture_output=True)
            yield path

    @contextmanager
    def model(self, shape: tuple[str, str, str]) -> Iterator[Path]:
        """A model file of this shape with random weights."""
        base, kind, vocabulary = shape
        folder = self.args.vocabularies
        source = (
            folder / f"ggml-vocab-{vocabulary}.gguf"
            if folder
            else embedded_model(places().data, lambda *_: None)
        )
        with made(replace(PUBLISHED[base], type=kind), source, self.args.scratch) as path:
            yield path

    @contextmanager
    def told(self, step: str) -> Iterator[None]:
        """A step that fails does not take the others with it."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it was, it is told and counts
            self.failures.append(step)
            self.seen.setdefault("failures", []).append(f"{step}: {error!r}")
            print(f"{step}: FAILED: {error!r}", file=sys.stderr, flush=True)
            self.keep()

    def keep(self) -> None:
        """Store what was seen so far."""
        document = json.dumps(self.seen, indent=1, default=str) + "\n"
        self.args.out.write_text(document, encoding="utf-8")


def built_engine() -> Path:
    """A llama-server with code for the card that is here, built now unless there is one."""
    name = "gpu-check"
    program = places().engines / name / "bin" / "llama-server"
    if not program.exists():
        command = [sys.executable, "-m", "workhorse", "engine", "build", "--gpu", "auto"]
        subprocess.run([*command, "--name", name], check=True)
    return program


@contextmanager
def service(model: Path, engine: Path) -> Iterator[str]:
    """`workhorse up` with this model, ready; its address."""
    port = free_port()
    command = [sys.executable, "-m", "workhorse", "up", str(model), "--engine", str(engine)]
    command += ["--port", str(port), "--skip-golden", "--no-measure"]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=dict(os.environ))
        try:
            wait_ready(process, f"http://127.0.0.1:{port}/healthz")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


if __name__ == "__main__":
    main()
