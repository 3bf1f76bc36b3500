"""The bench beside a public load tool and llama-bench on the same engine, in turns.

    python benchmarks/load_tools.py OUT.json MODEL.gguf --binaries BUILD/bin \\
        [--guidellm VENV/bin/guidellm]

A native llama-server with one slot and one thread (so that the client has a CPU of its own on a
small machine); each round asks it once by the bench and once by `guidellm` (`pip install guidellm`
in an environment of its own), and runs `llama-bench` for the same lengths. Aim: within 3 %.
"""

import argparse
import asyncio
import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp

from servers import running
from workhorse.bench.compare import compare
from workhorse.bench.load import load_session, measure_service
from workhorse.bench.scenario import Scenario
from workhorse.bench.service import Service, find_service
from workhorse.bench.stats import decode_tokens_per_s, ttft_s
from workhorse.bench.tokenizer import make_prompts
from workhorse.config import HOST
from workhorse.run.process import free_port

PROMPT_TOKENS, OUTPUT_TOKENS = 512, 128
SETTINGS = "-t 1 -b 512 -ub 512 -fa on -lm none"
# llama-bench picks no tokens: the server gets the cheapest way of picking them.
SERVER_SETTINGS = "-c 1024 -np 1 --cache-ram 0 --samplers temperature"
# Without huge pages for all, each start of a process has another speed (56 to 73 tok/s, 2026-11).
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
TOOL_WITHIN_S = 300


@dataclass(frozen=True, slots=True)
class Figures:
    """What one tool said of one request: tok/s; prefill from the time to the first token."""

    decode: float
    prefill: float


async def by_bench(url: str, scenario: Scenario) -> tuple[Figures, Figures]:
    """One request by the bench, its warm-up apart; and what the engine's own clock says of it."""
    async with load_session() as client:
        service = await find_service(client, url)
        (run,) = await measure_service(
            client, service, scenario, on_progress=lambda _: None, seed=secrets.randbits(32)
        )
    decode, first_s = decode_tokens_per_s(run), ttft_s(run)
    if decode is None or first_s is None or run.prompt_tokens is None:
        raise RuntimeError(f"the bench measured nothing: {run.error}")
    if run.engine_decode_s is None or run.engine_prefill_s is None:
        raise RuntimeError("the engine tells no times")
    # The first token comes out of the prompt: the engine's time is of the others, too.
    own = Figures(
        (run.output_tokens - 1) / run.engine_decode_s, run.prompt_tokens / run.engine_prefill_s
    )
    return Figures(decode, run.prompt_tokens / first_s), own


async def fresh_prompt(url: str, scenario: Scenario) -> str:
    """A prompt of the right length as text, which nobody has asked yet."""
    async with load_session() as client:
        service = await find_service(client, url)
        prompts = await make_prompts(client, service, scenario, secrets.randbits(32))
        return await text_of(client, service, list(prompts[0]))


async def text_of(client: aiohttp.ClientSession, service: Service, tokens: list[object]) -> str:
    """The text of tokens by the engine's own tokenizer."""
    async with client.post(f"{service.url}/detokenize", json={"tokens": tokens}) as answer:
        return str((await answer.json())["content"])


def by_guidellm(program: Path, url: str, scenario: Scenario) -> Figures:
    """One request by guidellm."""
    with tempfile.TemporaryDirectory() as folder:
        data, out = Path(folder) / "data.json", Path(folder) / "out.json"
        prompt = asyncio.run(fresh_prompt(url, scenario))
        row = {"prompt": prompt, "output_tokens_count": scenario.output_tokens}
        data.write_text(json.dumps([row]))
        command = [
            str(program), "run", "--disable-console",
            "--backend", f"kind=openai_http,target={url},request_format=/v1/completions",
            "--profile", "kind=synchronous", "--constraint", "kind=max_requests,count=1",
            "--data", f"kind=json_file,path={data}", "--output", f"kind=json,path={out}",
        ]  # fmt: skip
        done = subprocess.run(command, timeout=TOOL_WITHIN_S, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"guidellm: {done.stdout[-1000:]} {done.stderr[-3000:]}")
        metrics = json.loads(out.read_text())["benchmarks"][0]["metrics"]
    figures = {name: values["successful"]["median"] for name, values in metrics.items() if name in (
        "inter_token_latency_ms", "time_to_first_token_ms", "prompt_token_count",
    )}  # fmt: skip
    return Figures(
        1000 / figures["inter_token_latency_ms"],
        1000 * figures["prompt_token_count"] / figures["time_to_first_token_ms"],
    )


def by_llama_bench(program: Path, model: Path, scenario: Scenario) -> Figures:
    """The same lengths without a server: a prompt, and decoding behind one."""
    command = [str(program), "-m", str(model), *SETTINGS.split(), "-r", "1", "-o", "json"]
    speeds = []
    prompt, output = str(scenario.prompt_tokens), str(scenario.output_tokens)
    for lengths in (("-p", "0", "-n", output, "-d", prompt), ("-p", prompt, "-n", "0")):
        done = subprocess.run(
            [*command, *lengths], check=True, timeout=TOOL_WITHIN_S, capture_output=True
        )
        speeds.append(float(json.loads(done.stdout)[0]["avg_ts"]))
    return Figures(*speeds)


def main() -> None:
    """Measure in turns, print a table, store it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--binaries", type=Path, required=True)
    parser.add_argument("--guidellm", type=Path)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=PROMPT_TOKENS)
    parser.add_argument("--output-tokens", type=int, default=OUTPUT_TOKENS)
    args = parser.parse_args()
    os.environ |= HUGE_PAGES
    scenario = Scenario("tools", args.prompt_tokens, args.output_tokens, 1, 1)
    found = take_turns(args, scenario)
    rows = [
        comparison(name, figure, found)
        for name in found
        if name != "bench"
        for figure in ("decode", "prefill")
    ]
    print("| figure | bench | other tool | its figure | bench / other | 95 % |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        low, high = row["interval"] or (0.0, 0.0)
        print(
            f"| {row['figure']} | {row['bench']:.2f} | {row['tool']} | {row['other']:.2f} | "
            f"{row['ratio']:.3f} | {low:.3f}–{high:.3f} |"
        )
    document = {
        "benchmark": "load_tools",
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": args.model.name,
        "settings": f"{SETTINGS}; server: {SERVER_SETTINGS}",
        "prompt_tokens": scenario.prompt_tokens,
        "output_tokens": scenario.output_tokens,
        "rows": rows,
        "rounds": {name: [asdict(one) for one in values] for name, values in found.items()},
    }
    args.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def take_turns(args: argparse.Namespace, scenario: Scenario) -> dict[str, list[Figures]]:
    """What each tool said, round by round; who is first alternates."""
    port = free_port(HOST)
    server = [str(args.binaries / "llama-server"), "-m", str(args.model), *SETTINGS.split()]
    server += ["--host", HOST, "--port", str(port), *SERVER_SETTINGS.split()]
    found: dict[str, list[Figures]] = {}
    with running(server, port, "/health") as service:
        tools: dict[str, Callable[[], Figures | tuple[Figures, Figures]]] = {
            "bench": lambda: asyncio.run(by_bench(service.url, scenario)),
            "llama-bench": lambda: by_llama_bench(
                args.binaries / "llama-bench", args.model, scenario
            ),
            "guidellm": lambda: by_guidellm(args.guidellm, service.url, scenario),
        }
        names = [name for name in tools if name != "guidellm" or args.guidellm]
        for number in range(args.rounds):
            for name in names if number % 2 == 0 else names[::-1]:
                said = tools[name]()
                figures, own = said if isinstance(said, tuple) else (said, None)
                found.setdefault(name, []).append(figures)
                if own is not None:
                    found.setdefault("the engine's own clock", []).append(own)
            latest = {name: values[-1] for name, values in found.items()}
            print(number, latest, file=sys.stderr, flush=True)
    return found


def comparison(tool: str, figure: str, found: dict[str, list[Figures]]) -> dict[str, Any]:
    """One figure of the bench over that of another tool, paired by round."""
    ours = [getattr(one, figure) for one in found["bench"]]
    other = [getattr(one, figure) for one in found[tool]]
    result = compare(ours, other)
    return {
        "figure": figure,
        "tool": tool,
        "bench": median(ours),
        "other": median(other),
        "ratio": result.ratio,
        "interval": result.interval,
    }


if __name__ == "__main__":
    main()
