"""What the driver says a model takes of a card, beside what was predicted from its header.

    python benchmarks/memory_on_card.py ENGINE_MEMORY [--shapes NAME ...] [--card N]

ENGINE_MEMORY is `engine_memory.cpp` of this folder, built against a CUDA build of llama.cpp (see
memory_arithmetic.py). Each model is loaded for real: a file of its true shape, its weights zeros
in a hole, so that it takes no room on the disk. Evaluates a batch, asks NVML by how much the
card's used memory grew, prints a table. Nothing else may start or end on the card meanwhile.
Models that do not fit its free memory are left out.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent.parent / "tests" / "models"
sys.path.insert(0, str(TESTS))

import pynvml  # noqa: E402
from odd_shapes import ODD  # type: ignore[import-not-found]  # noqa: E402
from published_shapes import PUBLISHED  # type: ignore[import-not-found]  # noqa: E402

from workhorse.models.gguf import read_gguf  # noqa: E402
from workhorse.plan.cuts import Cut, Sizes  # noqa: E402
from workhorse.plan.memory import Layout, device_bytes  # noqa: E402
from workhorse.units import MIB  # noqa: E402

LAYOUTS = (
    Layout(2048, 1),
    Layout(32768, 1, "q8_0", "q8_0"),
    Layout(8192, 4),
)


def predicted(path: Path, layout: Layout) -> dict[str, int]:
    """Bytes on the card by item, and in all, when every layer is there."""
    model = read_gguf(path)
    cut = Cut((model.layers + 1,), model.layers, 0, False)
    lines = Sizes(model).lines(layout, cut, ["card"])
    items: dict[str, int] = {}
    for line in lines:
        if line.device == "card":
            items[line.item] = items.get(line.item, 0) + line.n_bytes
    return items | {"all": device_bytes(lines, "card")}


def loaded(program: Path, path: Path, layout: Layout, card: Any) -> tuple[dict[str, int], int]:
    """What the engine says of the loaded model, and by how much the card's used memory grew.

    Not the process's own figure: in a container NVML knows it by another number.
    """
    numbers = (layout.context_tokens, layout.slots, layout.micro_batch_tokens)
    words = [*map(str, numbers), layout.kv_type_k, layout.kv_type_v]
    words += [str(int(layout.flash_attention)), str(layout.slots)]
    before = pynvml.nvmlDeviceGetMemoryInfo(card).used
    with subprocess.Popen(
        [str(program), "--load", str(path), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout and process.stdin
        said = json.loads(process.stdout.readline() or "null")
        held = int(pynvml.nvmlDeviceGetMemoryInfo(card).used) - int(before)
        process.stdin.close()
    if said is None:
        raise RuntimeError(f"{path.name}: not loaded")
    return said, held


def main() -> None:
    """Load each model in turn and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("program", type=Path, metavar="ENGINE_MEMORY")
    parser.add_argument("--shapes", nargs="+", default=[*PUBLISHED, *ODD])
    parser.add_argument("--card", type=int, default=0)
    args = parser.parse_args()
    pynvml.nvmlInit()
    card = pynvml.nvmlDeviceGetHandleByIndex(args.card)
    print(
        "| model | context × slots | KV | weights | KV + state | compute | all MiB | NVML | off |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name in args.shapes:
            make = PUBLISHED[name].header if name in PUBLISHED else ODD[name]
            path = make().write(Path(folder) / "model.gguf")
            for layout in LAYOUTS:
                ours = predicted(path, layout)
                if ours["all"] > pynvml.nvmlDeviceGetMemoryInfo(card).free:
                    print(f"{name}: {ours['all'] / MIB:.0f} MiB do not fit", file=sys.stderr)
                    continue
                try:
                    said, held = loaded(args.program, path, layout, card)
                except (RuntimeError, OSError) as error:
                    print(error, file=sys.stderr)
                    continue
                kept = ours["kv"] + ours.get("state", 0)
                pairs = (
                    (ours["weights"], said["card_model"]),
                    (kept, said["card_context"]),
                    (ours["compute"], said["card_compute"]),
                )
                cells = " | ".join(f"{a / MIB:.1f} / {b / MIB:.1f}" for a, b in pairs)
                print(
                    f"| {name} | {layout.context_tokens} × {layout.slots} | {layout.kv_type_k} "
                    f"| {cells} | {ours['all'] / MIB:.0f} | {held / MIB:.0f} "
                    f"| {(ours['all'] / held - 1) * 100:+.1f} % |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
