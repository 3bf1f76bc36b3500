"""The real engine with the real model, started as `up` starts it: `-b 512`, `--slots`."""

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from stand_ins import PATIENCE_S

from workhorse.engines import embedded
from workhorse.engines.openmp import ensure_openmp
from workhorse.records import Launch
from workhorse.run.process import EngineProcess, free_port

START_S = 300.0
SLOTS = 2
SETTINGS = (
    f"--alias small --ctx-size {SLOTS * 8192} --parallel {SLOTS} --threads 2 --threads-batch 2 "
    "--batch-size 512 --ubatch-size 512 --load-mode none --flash-attn on --cache-type-k f16 "
    "--cache-type-v f16 --n-gpu-layers 0 --fit off --cache-ram 0 --verbosity 3 --slots --metrics"
)


class RealEngine:
    """A running engine and what it says of its slots."""

    def __init__(self, process: EngineProcess, http: aiohttp.ClientSession) -> None:
        self.url = process.base_url
        self.http = http
        self._process = process

    async def post(self, path: str, body: object) -> tuple[int, Any]:
        async with self.http.post(self.url + path, data=json.dumps(body)) as answer:
            return answer.status, await answer.json(content_type=None)

    async def busy_slots(self) -> list[dict[str, Any]]:
        """The slots that work. It answers only between two batches."""
        async with self.http.get(f"{self.url}/slots") as answer:
            return [slot for slot in await answer.json() if slot["is_processing"]]

    async def queued(self) -> int:
        """How many requests wait for a slot."""
        async with self.http.get(f"{self.url}/metrics") as answer:
            page = await answer.text()
        found = re.search(r"^llamacpp:requests_deferred (\d+)", page, re.MULTILINE)
        assert found
        return int(found[1])

    async def until(self, holds: Callable[[list[dict[str, Any]], int], bool]) -> None:
        """Waits until something holds of the busy slots and the number of the queued."""
        async with asyncio.timeout(2 * PATIENCE_S):
            while not holds(await self.busy_slots(), await self.queued()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)  # another process knows, and has no event for it

    def stops(self) -> list[int]:
        """How many tokens each slot held when it was freed, prompt and answer together."""
        said = "\n".join(self._process.log_tail(2000))
        return [int(n) for n in re.findall(r"stop processing: n_tokens = (\d+)", said)]


@asynccontextmanager
async def real_engine(model: Path, log: Path) -> AsyncIterator[RealEngine]:
    """Starts it and ends it."""
    libgomp = str(ensure_openmp() or "")
    port = free_port("127.0.0.1")
    launch = Launch(
        argv=(
            *(sys.executable, embedded.__file__, "--model", str(model), "--port", str(port)),
            *SETTINGS.split(),
        ),
        # Other tests may keep the cores busy: bounded spinning, as the plan does it.
        env={"GOMP_SPINCOUNT": "1000", "LD_LIBRARY_PATH": libgomp},
        cpus=(),
        memory_nodes=None,
        host="127.0.0.1",
        port=port,
        health_path="/health",
        stop_grace_s=60.0,
    )
    process = EngineProcess(launch, log)
    await process.start()
    try:
        await process.wait_ready(START_S)
        async with aiohttp.ClientSession() as http:
            yield RealEngine(process, http)
    finally:
        await process.stop()
