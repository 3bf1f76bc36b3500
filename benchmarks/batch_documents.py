"""500 real documents through three templates: how much of the bench's capacity, of a serial loop?

    python benchmarks/batch_documents.py OUT.json [--count 500] [--chars 400] [--serial 60]
        [--model MODEL.gguf] [--engine LLAMA_SERVER] [--slots 4]

READMEs, licences, texts and source files of the installed packages and of Python's library, cut to
--chars, on the embedded model behind `workhorse up --for batch`. For each template a serial loop
sends the very same requests for --serial of the documents one after the other to the gateway, as a
script would; then `workhorse bench` measures the service at several stream counts with requests as
long as the loop's; then the template is one job of `workhorse batch`, which is compared with both.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from batch_rig import machine_words, service, workhorse, write_documents
from workhorse.batch.answers import read_answer, usage_of
from workhorse.batch.item import Item, Usage
from workhorse.batch.job import Job
from workhorse.batch.task import Check, ItemFailed, NotValid, Request
from workhorse.batch.tasks import make_task
from workhorse.batch.template_files import find_template, settle_options
from workhorse.config import places
from workhorse.models.embedded import embedded_model
from workhorse.plan.planner import served_name

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 60},
        "language": {"enum": ["English", "Chinese", "Python", "other"]},
        "formal": {"type": "boolean"},
    },
    "required": ["title", "language", "formal"],
    "additionalProperties": False,
}
HIDDEN = {"out": "", "model": "", "engine": ""}  # paths of this machine
TEMPLATES: dict[str, dict[str, Any]] = {
    "summary-short": {"words": 40},
    "classify": {"labels": ["code", "licence", "manual", "news", "other"]},
    "extract": {"schema": SCHEMA},
}


@dataclass(frozen=True)
class Asked:
    """What the command line says of every template."""

    model: str
    serial: int
    streams: str


class Serial:
    """The means of a template for a script that asks one request at a time."""

    def __init__(self, http: aiohttp.ClientSession, model: str, context_tokens: int) -> None:
        self._http, self._model = http, model
        self.context_tokens = context_tokens
        self.usage = Usage()
        self._lock = asyncio.Lock()  # also where a template awaits several at once

    async def count_tokens(self, text: str) -> int:
        """By the model's tokenizer."""
        async with self._http.post(
            "/tokenize", json={"content": text, "model": self._model}
        ) as answer:
            return len((await answer.json())["tokens"])

    async def ask(self, request: Request, check: Check | None = None) -> Any:
        """One request, and once more where its answer is not valid."""
        async with self._lock:
            for last in (False, True):
                body = {**request.body, "model": self._model}
                async with self._http.post(request.path, json=body) as response:
                    answer = read_answer(await response.read())
                self.usage += usage_of(answer.body)
                try:
                    return answer if check is None else check(answer)
                except NotValid:
                    if last:
                        raise
        raise AssertionError

    async def embed(self, texts: Sequence[str]) -> None:
        """Not here."""


def some_of(folder: Path, count: int) -> list[Path]:
    """So many documents, evenly out of the folder."""
    paths = sorted(folder.iterdir())
    return paths[:: max(1, len(paths) // count)][:count]


async def serial_loop(url: str, model: str, job: Job, paths: list[Path]) -> dict[str, Any]:
    """The documents, one request after the other."""
    task = make_task(job)
    failed = 0
    async with aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(total=None)) as http:
        tools = Serial(http, model, 2048)
        began_s = time.monotonic()
        for number, path in enumerate(paths):
            item = Item(
                number=number,
                id=path.name,
                source=path.name,
                kind="text",
                content=path.read_text(encoding="utf-8"),
                media_type="text/plain",
                state="leased",
                attempts=0,
            )
            try:
                await task(item, tools)
            except (ItemFailed, NotValid):
                failed += 1
        took_s = time.monotonic() - began_s
    return {
        "documents": len(paths),
        "failed": failed,
        "seconds": took_s,
        "usage": msgspec.to_builtins(tools.usage),
    }


def job_of(template: str, options: dict[str, Any], folder: Path, url: str) -> Job:
    """The order that the command makes of the same words."""
    found = find_template(template, folder / "none")
    return Job(
        template=template,
        definition=found.definition,
        options=settle_options(found.template, options, folder),
        input=str(folder),
        output=None,
        url=url,
    )


def one_template(
    template: str, options: dict[str, Any], home: Path, folder: Path, url: str, asked: Asked
) -> dict[str, Any]:
    """The loop of one template, the bench with its requests' lengths, and the job."""
    words = [f"--set={name}={typed(value, home)}" for name, value in options.items()]
    order = job_of(template, options, folder, url)
    alone = asyncio.run(serial_loop(url, asked.model, order, some_of(folder, asked.serial)))
    usage = alone["usage"]
    read = (usage["prompt_tokens"] - usage["cached_tokens"]) / usage["requests"]
    written = usage["output_tokens"] / usage["requests"]
    ladder = ("bench", url, "--what", "ladder", "--streams", asked.streams, "--json")
    lengths = ("--prompt-tokens", str(round(read)), "--output-tokens", str(round(written)))
    workhorse(home, *ladder, *lengths)
    output = home / f"{template}.jsonl"
    report = workhorse(
        home,
        *("batch", str(folder), "--template", template, "--url", url, *words),
        *("--output", str(output), "--form", "jsonl", "--json", "--attempts", "2"),
        code=(0, 1),
    )
    lines = output.read_text(encoding="utf-8").splitlines()
    return {"report": report, "lines": len(lines), "serial": alone} | figures(report, alone)


def typed(value: Any, home: Path) -> str:
    """An option as it is typed."""
    if isinstance(value, dict):
        path = home / "schema.json"
        path.write_text(json.dumps(value))
        return str(path)
    return ",".join(value) if isinstance(value, list) else str(value)


def figures(report: dict[str, Any], alone: dict[str, Any]) -> dict[str, Any]:
    """The share of the bench, and how much faster than the loop."""
    usage, spent = report["usage"], report["spent"]
    capacity, worked_s = spent["capacity"], spent["worked_s"]
    computed = usage["prompt_tokens"] - usage["cached_tokens"]
    bench_s = computed / capacity["prefill_tokens_per_s"]["value"]
    bench_s += usage["output_tokens"] / capacity["decode_tokens_per_s"]["value"]
    counts = report["counts"]
    documents = counts["done"] + counts["failed"]
    return {
        "documents a second": documents / worked_s,
        "serial documents a second": alone["documents"] / alone["seconds"],
        "times the serial loop": documents / worked_s * alone["seconds"] / alone["documents"],
        "share of the bench": bench_s / worked_s,
        "computed prompt tokens": computed,
        "output tokens": usage["output_tokens"],
        "worked_s": worked_s,
    }


def main() -> int:
    """Run everything once and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--chars", type=int, default=400)
    parser.add_argument("--serial", type=int, default=60)
    parser.add_argument("--templates", default=",".join(TEMPLATES))
    parser.add_argument("--slots", default="4")
    parser.add_argument("--streams", default="1,2,4,8", help="of the bench")
    parser.add_argument("--engine", help="a llama-server; left out: the embedded engine")
    parser.add_argument("--model", type=Path, help="left out: the embedded model")
    args = parser.parse_args()
    found: dict[str, Any] = {"before": machine_words(), "arguments": vars(args) | HIDDEN}
    with tempfile.TemporaryDirectory() as scratch:
        home, folder = Path(scratch) / "home", Path(scratch) / "documents"
        home.mkdir()
        folder.mkdir()
        found["kinds"] = write_documents(folder, args.count, args.chars)
        model = args.model or embedded_model(places().data)
        options = ["--for", "batch", "--slots", args.slots, "--context", "2048"]
        options += ["--engine", args.engine] if args.engine else []
        with service(home, model, *options) as (url, _):
            asked = Asked(served_name(str(model)), args.serial, args.streams)
            for template in args.templates.split(","):
                one = one_template(template, TEMPLATES[template], home, folder, url, asked)
                found[template] = one
                args.out.write_text(json.dumps(found) + "\n")
                print(template, json.dumps({k: v for k, v in one.items() if k != "report"}))
    found["after"] = machine_words()
    args.out.write_text(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
