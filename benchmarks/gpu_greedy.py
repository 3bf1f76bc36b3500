"""Does a card give the same greedy tokens as the CPU? The same engine, the same prompts."""

import json
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from servers import free_port, running

PROMPTS = (
    "Name three colours.",
    "Once upon a time there was an old horse who",
    "def fibonacci(n):",
    "The capital of France is",
)
TOKENS = 48


@dataclass(frozen=True)
class Greedy:
    """One way to run the model, and for each prompt how many tokens agreed with the CPU's."""

    name: str
    agreed: list[int]  # of TOKENS each
    gaps: list[float | None]  # at the first other token: how near the CPU's two best were

    @property
    def same(self) -> bool:
        """Every token of every prompt."""
        return all(n == TOKENS for n in self.agreed)

    def markdown(self) -> str:
        """The row of the table."""
        gaps = ", ".join("—" if gap is None else f"{gap:.3f}" for gap in self.gaps)
        counts = ", ".join(str(n) for n in self.agreed)
        return f"| {self.name} | {'the same' if self.same else counts} of {TOKENS} | {gaps} |"


def compare(engine: Path, model: Path, ways: dict[str, list[str]]) -> list[Greedy]:
    """The tokens of each way (more options for the engine) against those of its CPU."""
    cpu = tokens_of(engine, model, ["--n-gpu-layers", "0", "--device", "none"])
    found = []
    for name, options in ways.items():
        seen = tokens_of(engine, model, options)
        agreed, gaps = [], []
        for wanted, got in zip(cpu, seen, strict=True):
            pairs = zip(wanted, got, strict=False)
            same = next((i for i, (a, b) in enumerate(pairs) if a[0] != b[0]), len(wanted))
            agreed.append(same)
            gaps.append(wanted[same][1] if same < len(wanted) else None)
        found.append(Greedy(name, agreed, gaps))
    return found


def tokens_of(engine: Path, model: Path, options: list[str]) -> list[list[tuple[int, float]]]:
    """For each prompt the greedy tokens, each with the log-probability gap to the second best."""
    port = free_port()
    argv = [
        str(engine), "--model", str(model), "--host", "127.0.0.1", "--port", str(port),
        "--ctx-size", "1024", "--parallel", "1", "--no-ui", *options,
    ]  # fmt: skip
    with running(argv, port, "/health") as server:
        return [ask(server.url, prompt) for prompt in PROMPTS]


def ask(url: str, prompt: str) -> list[tuple[int, float]]:
    """One greedy answer of TOKENS tokens."""
    body = {
        "prompt": prompt, "n_predict": TOKENS, "temperature": 0, "ignore_eos": True,
        "n_probs": 2, "cache_prompt": False,
    }  # fmt: skip
    request = urllib.request.Request(
        url + "/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=300) as answer:
        pieces = json.load(answer)["completion_probabilities"]
    found = []
    for piece in pieces:
        best, second = piece["top_logprobs"][:2]
        found.append((piece["id"], best["logprob"] - second["logprob"]))
    return found
