"""The ledger as a runner uses it: in a thread of its own, so that no stream waits for a disk."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from typing import ParamSpec, TypeVar

from workhorse.batch.ledger import Ledger

P = ParamSpec("P")
T = TypeVar("T")


class LedgerThread:
    """One thread for the calls of one runner, in their order."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="ledger")

    async def do(self, call: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """What `call` gives, from the thread. Who is cancelled meanwhile leaves it to be done."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, partial(call, *args, **named))

    @asynccontextmanager
    async def held(self, job_id: str) -> AsyncIterator[None]:
        """`Ledger.held` for the length of the block."""
        stack = ExitStack()
        try:
            await self.do(stack.enter_context, self.ledger.held(job_id))
            yield
        finally:
            await self.do(stack.close)

    async def close(self) -> None:
        """End the thread once it has done what it was asked."""
        await asyncio.get_running_loop().run_in_executor(None, self._pool.shutdown)
