"""One model, two engines, one gateway: llama.cpp and vLLM on the CPU side by side.

    WORKHORSE_HOME=FOLDER python benchmarks/two_engines.py [--engine NAME] [--answers N]

The model has two layers and random weights, the same in both files, so the greedy answers can be
compared letter by letter. `workhorse up` serves both from one settings file; needs an environment
with vLLM for the CPU in the home folder (`workhorse engine install vllm --for cpu`).
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp

from workhorse.run.process import free_port

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "engines"))
from tiny_checkpoint import write_checkpoint, write_gguf  # type: ignore[import-not-found]

READY_S = 1800.0
PROMPTS = ("Name three colours.", "What is a horse?", "Count to five.")
SETTINGS = """
[[model]]
model = "tiny-llama.gguf"
engine = "llama.cpp"
context = 2048
slots = 2

[[model]]
model = "tiny-vllm"
engine = "{engine}"
context = 2048
slots = 2
"""


async def main() -> int:
    """Serve, ask, compare; 0 when both answered through the one port."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--engine", default="vllm")
    asked.add_argument("--answers", type=int, default=3)
    args = asked.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        write_gguf(place / "tiny-llama.gguf")
        write_checkpoint(place / "tiny-vllm")
        (place / "service.toml").write_text(SETTINGS.format(engine=args.engine))
        port = free_port("127.0.0.1")
        command = [sys.executable, "-m", "workhorse", "up", "--config", str(place / "service.toml")]
        command += ["--port", str(port), "--no-measure", "--skip-golden"]
        began_s = time.monotonic()
        service = await asyncio.create_subprocess_exec(*command, cwd=place)
        try:
            async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
                await both_ready(http, service)
                print(f"both ready after {time.monotonic() - began_s:.0f} s")
                return await compare(http, args.answers)
        finally:
            service.terminate()
            print(f"stopped with exit code {await service.wait()}")


async def both_ready(http: aiohttp.ClientSession, service: asyncio.subprocess.Process) -> None:
    """Wait until each model has answered once."""
    async with asyncio.timeout(READY_S):
        for model in ("tiny-llama", "tiny-vllm"):
            while True:
                if service.returncode is not None:
                    raise SystemExit(f"the service ended with exit code {service.returncode}")
                try:
                    status, _ = await chat(http, model, PROMPTS[0], 1)
                except aiohttp.ClientError:
                    status = 0
                if status == 200:
                    break
                await asyncio.sleep(0.5)


async def compare(http: aiohttp.ClientSession, answers: int) -> int:
    """Ask both the same, one after the other and at once; say how far they agree."""
    print("models:", [m["id"] for m in (await get(http, "/v1/models"))["data"]])
    for prompt in PROMPTS[:answers]:
        told = {}
        for model in ("tiny-llama", "tiny-vllm"):
            began_s = time.monotonic()
            status, answer = await chat(http, model, prompt, 32)
            text = answer["choices"][0]["message"]["content"]
            took_s = time.monotonic() - began_s
            told[model] = text
            print(
                f"  {model:11} {status} {took_s:6.2f} s  "
                f"{answer['usage']['completion_tokens']} tokens {text!r}"
            )
        one, other = told.values()
        same = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
        print("  the same" if same is None else f"  the same for {same} letters")
    both = await asyncio.gather(
        *(chat(http, model, PROMPTS[0], 64) for model in ("tiny-llama", "tiny-vllm"))
    )
    print("at once:", [(status, answer["usage"]["completion_tokens"]) for status, answer in both])
    for model in ("tiny-llama", "tiny-vllm"):
        print(f"  stream of {model}: {await stream(http, model)}")
    page = await (await http.get("/metrics")).text()
    counted = [line for line in page.splitlines() if "tokens_total" in line and line[0] != "#"]
    print("\n".join(counted))
    return 0 if all(status == 200 for status, _ in both) else 1


async def stream(http: aiohttp.ClientSession, model: str) -> str:
    """How many pieces a stream has, and whether it ends as it should."""
    body = {**asking(model, PROMPTS[0], 16), "stream": True}
    async with http.post("/v1/chat/completions", json=body) as answer:
        text = await answer.text()
    whole = "whole" if text.rstrip().endswith("[DONE]") else "cut"
    usage = "with figures" if '"usage":{' in text else "without figures"
    return f"{text.count('data:')} events, {whole}, {usage}"


def asking(model: str, prompt: str, tokens: int) -> dict[str, Any]:
    """A greedy chat request."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "temperature": 0,
    }


async def chat(
    http: aiohttp.ClientSession, model: str, prompt: str, tokens: int
) -> tuple[int, dict[str, Any]]:
    """One whole answer."""
    async with http.post("/v1/chat/completions", json=asking(model, prompt, tokens)) as answer:
        return answer.status, await answer.json(content_type=None)


async def get(http: aiohttp.ClientSession, path: str) -> dict[str, Any]:
    """A document of the gateway."""
    async with http.get(path) as answer:
        found: dict[str, Any] = await answer.json()
        return found


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main()))
