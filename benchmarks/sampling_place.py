"""What choosing tokens on the device gives: llama-server with and without `--backend-sampling`.

    python benchmarks/sampling_place.py MODEL.gguf OUT.json --engine LLAMA_SERVER
        [--slots 16] [--streams 1,4,16] [--turns 3] [--tokens 256]

The plan for documents (no prompt cache), as it is and with the option, started in turn, in the next
round backwards, and asked by so many clients at once for answers drawn as the engine does where
nothing is said (temperature 0.8). Prints tok/s of one stream while it decodes, of all together from
the first question to the last word, and the memory that the cards then hold.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

import pynvml

from gpu_tuned import planned
from servers import free_port, running
from stream_load import Load, run

OPTION = "--backend-sampling"
WARM_UP_TOKENS = 16


@dataclass
class Side:
    """One way to start the server, and what was seen of it, by the number of streams."""

    name: str
    command: tuple[str, ...]
    decode: dict[int, list[float]] = field(default_factory=dict)
    totals: dict[int, list[float]] = field(default_factory=dict)
    memory_mib: list[float] = field(default_factory=list)


def main() -> None:
    """Measure both, print the table, keep every figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--engine", type=Path, required=True)
    parser.add_argument("--slots", default="16")
    parser.add_argument("--streams", default="1,4,16")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=256)
    args = parser.parse_args()
    words = ("--for", "batch", "--slots", args.slots, "--context", "2048")
    with tempfile.TemporaryDirectory() as home:
        side, _ = planned(home, args.model, args.engine, "plan", words)
    env = tuple(f"{name}={value}" for name, value in side.env.items())
    plain = ("env", *env, *(word for word in side.command if word != OPTION))
    sides = [Side("on the CPU", plain), Side("on the device", (*plain, OPTION))]
    for number in range(args.turns):
        for one in sides[:: -1 if number % 2 else 1]:
            asyncio.run(look(one, args))
    print(f"\n| {args.model.name} | streams | a stream, tok/s | in all, tok/s | MiB |")
    print("|---|---|---|---|---|")
    for one in sides:
        for streams, seen in one.totals.items():
            decode, held = median(one.decode[streams]), median(one.memory_mib)
            print(f"| {one.name} | {streams} | {decode:.1f} | {median(seen):.0f} | {held:.0f} |")
    found = {"model": args.model.name, "sides": [asdict(one) | {"command": None} for one in sides]}
    args.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


async def look(side: Side, args: argparse.Namespace) -> None:
    """A fresh start of this server, asked by each number of streams."""
    port, free_mib = free_port(), held_mib()
    with running((*side.command, "--port", str(port)), port, "/health") as server:
        for streams in map(int, args.streams.split(",")):
            await run(server.url, "any", Load(streams, WARM_UP_TOKENS, whole_letters=False))
            seen = await run(server.url, "any", Load(streams, args.tokens, whole_letters=False))
            each = [(args.tokens - 1) / (one.end_s - one.first_token_s) for one in seen.streams]
            side.decode.setdefault(streams, []).append(median(each))
            total = streams * args.tokens / seen.took_s
            side.totals.setdefault(streams, []).append(total)
            print(f"{side.name}, {streams}: {total:.0f} tok/s", file=sys.stderr, flush=True)
        side.memory_mib.append(held_mib() - free_mib)


def held_mib() -> float:
    """What all cards here hold; 0 without a card."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return 0.0
    handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
    return float(sum(pynvml.nvmlDeviceGetMemoryInfo(one).used for one in handles)) / 2**20


if __name__ == "__main__":
    main()
