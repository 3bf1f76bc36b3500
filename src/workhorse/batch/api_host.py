"""What the batches of OpenAI's API need of the service that they run beside."""

import asyncio
import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

from workhorse.batch.api_lines import Resolve
from workhorse.bench.service import Service
from workhorse.settings import BatchSettings

T = TypeVar("T")


class Host(Protocol):
    """The service that answers the requests."""

    @property
    def settings(self) -> BatchSettings:
        """The limits as they are now."""
        ...

    @property
    def largest_request_bytes(self) -> int:
        """What the gateway takes of one request."""
        ...

    def service(self, owner: str, model: str) -> Service:
        """How it is asked in the name of an owner."""
        ...

    def resolve(self, owner: str) -> Resolve:
        """Which served model a name stands for, among those that an owner may ask for."""
        ...

    def in_force(self, owner: str) -> bool:
        """May the owner still ask?"""
        ...

    def slots(self, model: str) -> int | None:
        """Of all engines of a model; None: not known."""
        ...

    def serves(self, model: str) -> bool:
        """Is the model served now?"""
        ...

    def chats(self, model: str) -> int:
        """Requests of people for a model that are under way."""
        ...


async def in_thread(work: Callable[[threading.Event], T]) -> T:
    """Do what blocks in a thread, and wait for its end also when cancelled; it is told to stop."""
    stop = threading.Event()
    task = asyncio.create_task(asyncio.to_thread(work, stop))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # told to nobody: it is done again
        raise
