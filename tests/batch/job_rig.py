"""A job, a ledger, and a fake engine behind the real gateway, all in the test's own process."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fake_client import Client, fake
from stand_ins import StandInBackend, gateway

from workhorse.batch.concurrency import Concurrency, Room
from workhorse.batch.item import Item, NewItem, Result
from workhorse.batch.job import Job, JobRecord
from workhorse.batch.ledger import Ledger
from workhorse.batch.pace import PaceKeeper
from workhorse.batch.progress import Progress
from workhorse.batch.retry import Patience
from workhorse.batch.runner import run_job
from workhorse.batch.task import Request, Task, Tools
from workhorse.bench.service import Service
from workhorse.engines.fake.tokens import say, to_tokens
from workhorse.serve.backend import Capacity
from workhorse.text import Text

PATIENCE_S = 120.0  # for what must come true on a machine with other work
SLOTS = 4
NOW_S = 1_800_000_000.0
JOB = Job(template="test", definition=None, input="here", output=None, url="http://here")


def texts(count: int, words: str = "text") -> list[NewItem]:
    """So many small documents."""
    return [
        NewItem(id=f"{number}.txt", source=f"{number}.txt", content=f"{words} {number}")
        for number in range(count)
    ]


@contextmanager
def new_ledger(folder: Path) -> Iterator[Ledger]:
    """A ledger that is closed with the block."""
    with closing(Ledger(folder / "batch-1.sqlite")) as ledger:
        yield ledger


@dataclass
class Heard:
    """What a run tells."""

    progress: list[Progress] = field(default_factory=list)
    notes: list[Text] = field(default_factory=list)

    def seen(self, progress: Progress) -> None:
        self.progress.append(progress)

    def note(self, words: Text) -> None:
        self.notes.append(words)


def service_at(url: str) -> Service:
    """A service as it is found: a gateway in front of llama-server."""
    return Service(url, "horse", {}, tokenizer="llama.cpp")


@dataclass
class Standing:
    """A gateway with a fake engine behind it."""

    url: str
    engine: Client
    backend: StandInBackend


@asynccontextmanager
async def standing(**told: Any) -> AsyncIterator[Standing]:
    """The fake engine with this behaviour, and a gateway that knows its slots."""
    told = {"slots": SLOTS, **told}
    async with fake(**told) as engine:
        backend = StandInBackend(engine.url)
        capacity = Capacity(told["slots"], told.get("context_tokens", 4096))
        async with gateway(backend, capacity=capacity, restart_wait_s=0.2) as url:
            yield Standing(url, engine, backend)


def pace(streams: int = SLOTS) -> PaceKeeper:
    """A pace without windows."""
    return PaceKeeper(Concurrency(Room(asked=streams)))


async def run(ledger: Ledger, job_id: str, task: Task | None, url: str, **told: Any) -> JobRecord:
    """The job, run to its end within the test's patience."""
    told = {"pace": pace(), "tell": Heard(), **told}
    async with asyncio.timeout(PATIENCE_S):
        return await run_job(ledger, job_id, task=task, service=service_at(url), **told)


def asking(text: str, step: str = "all", tokens: int = 8, **more: Any) -> Request:
    """A small chat."""
    message = {"role": "user", "content": text}
    return Request(step=step, body={"messages": [message], "max_tokens": tokens, **more})


async def one_question(item: Item, tools: Tools) -> Result:
    """The smallest task."""
    answer = await tools.ask(asking(item.content))
    return Result(text=answer.text)


def added(ledger: Ledger, items: Iterable[NewItem], **told: Any) -> str:
    """A job over items; its id."""
    job = Job(**{**{name: getattr(JOB, name) for name in JOB.__struct_fields__}, **told})
    return ledger.add(job, items, NOW_S).id


def said_to(text: str, tokens: int = 8) -> str:
    """What the fake engine answers to a small chat."""
    prompt = to_tokens(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n")
    pieces, _ = say(prompt, seed=0, limit=tokens, natural=True, length=None)
    return "".join(pieces)


async def until(condition: Callable[[], object]) -> None:
    """Wait for what must come true."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 (a thread or another process makes it true)
            await asyncio.sleep(0.005)


class LongPatience(Patience):
    """No request is too slow, but those whose body is longer than `short_above`."""

    def __init__(self, short_above: int | None = None, short_s: float = 0.2) -> None:
        super().__init__()
        self._short_above, self._short_s = short_above, short_s

    def limit_s(self, prompt_bytes: int, output_tokens: int, slow: int = 0) -> float:
        if self._short_above is not None and prompt_bytes > self._short_above:
            return self._short_s
        return PATIENCE_S
