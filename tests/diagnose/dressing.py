"""Puts the lines of a trouble into a healthy log and dresses it as collectors of logs do."""

import json
from pathlib import Path

HEALTHY = Path(__file__).parent / "healthy"
ENGINE_LOGS = Path(__file__).parent.parent / "engines" / "logs"

_PLAIN = [
    "starting up",
    "reading configuration from /etc/llm/config.yaml",
    "cache directory is /var/cache/llm",
    "worker 1 of 2 is up",
    "worker 2 of 2 is up",
    "using 14 threads",
    "metrics at /metrics",
    "ready in 12.1 s",
]
# What the engine says until it serves: a trouble of the start comes in the middle of it.
_STARTS = {
    "llama_start": ("llama_v100_serving.log", "server is listening"),
    "vllm_start": ("vllm_v100.log", "Starting vLLM API server"),
    "ollama_start": ("ollama_cpu_only.log", "inference compute"),
}
_FILES = {
    "llama": "llama_v100_serving.log",
    "vllm": "vllm_v100.log",
    "lmdeploy": "lmdeploy_v100.log",
    "sglang": "sglang_t4.log",
    "ollama": "ollama_cpu_only.log",
    "dmesg": "dmesg_v100.txt",
}
DRESSES = ("plain", "journald", "compose", "json", "colours", "kubernetes", "deep")


def embedded(lines: str, kind: str) -> list[str]:
    """The lines at two thirds of a healthy log of that kind."""
    if kind == "plain":
        around = _PLAIN * 3
    elif kind in _STARTS:
        name, until = _STARTS[kind]
        whole = (HEALTHY / name).read_text().splitlines()
        around = whole[: next(n for n, line in enumerate(whole) if until in line)]
    else:
        around = (HEALTHY / _FILES[kind]).read_text().splitlines()
    place = len(around) if kind in _STARTS else len(around) * 2 // 3
    return [*around[:place], *lines.splitlines(), *around[place:][:8]]


def dressed(lines: list[str], dress: str) -> bytes:
    """The log as a collector writes it down."""
    match dress:
        case "journald":
            lines = [f"Nov 30 10:11:{n % 60:02d} node1 llm[2210]: {t}" for n, t in enumerate(lines)]
        case "compose":
            return "\r\n".join(f"engine-1  | {line}" for line in lines).encode() + b"\r\n"
        case "json":
            lines = [json.dumps({"log": f"{line}\n", "stream": "stderr"}) for line in lines]
        case "colours":
            lines = [f"\x1b[1;31m{line}\x1b[0m" for line in lines]
        case "kubernetes":
            lines = [f"2026-11-30T10:11:12.{n:06d}001Z stderr F {t}" for n, t in enumerate(lines)]
        case "deep":
            more = (HEALTHY / "llama_cpu_spec_none.log").read_text().splitlines()
            lines = [*(more * (5000 // len(more) + 1))[:4900], *lines, *more]
    return "\n".join(lines).encode() + b"\n"
