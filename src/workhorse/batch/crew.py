"""The items in hand: which are begun, which run alone, how each ends.

As many are begun as keep a request waiting for every turn that comes free, however long the chain
of requests of one item is. An item that had a request at the engine when it died is asked again
alone: an engine that dies once more has died of it, and no other item pays for that.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from workhorse.batch.asking import Asker, EngineDied
from workhorse.batch.item import Item, Reason, Result, State
from workhorse.batch.job import JobRecord
from workhorse.batch.ledger_thread import LedgerThread
from workhorse.batch.passing import pass_on
from workhorse.batch.task import ItemFailed, NotValid, Task
from workhorse.batch.tools import ItemTools
from workhorse.errors import AppError
from workhorse.run.policy import STEADY_S
from workhorse.text import Text
from workhorse.units import MIB

ITEMS_MOST, TEXT_MOST_BYTES = 512, 256 * MIB
# So many further requests wait for a turn, and a share of those under way: who gets one goes at
# once, and the ledger has time to bring the next item.
AHEAD, AHEAD_SHARE = 2, 0.25
# So many different items in a row, each alone, and the engine died of every one: it is not them.
CRASHES_MOST = 5
# A supervisor gives an engine up that dies too often before it has run a while. After so many
# deaths the next suspect waits until that while is over; the service is not ours alone.
DEATHS_MOST = 3
CALM_S = STEADY_S + 10.0

log = logging.getLogger(__name__)


class Crew:
    """Works off the items of one job."""

    def __init__(
        self,
        store: LedgerThread,
        found: JobRecord,
        owner: str,
        *,
        task: Task | None,
        asker: Asker,
        tools: Callable[[Item], ItemTools],
        ended: Callable[[State], None],
        clock: Callable[[], float],
    ) -> None:
        self._store, self._ledger = store, store.ledger
        self._job_id, self._attempts, self._owner = found.id, found.job.attempts, owner
        self._task, self._asker, self._tools = task, asker, tools
        self._ended, self._clock = ended, clock
        self._changed = asyncio.Event()
        self._running: dict[asyncio.Task[None], tuple[Item, ItemTools]] = {}
        self._lost: list[Item] = []  # of those that run: they were at an engine that died
        self._suspects: deque[list[Item]] = deque()  # groups, to be run apart
        self._apart = 0  # so many of such a group were begun; 0: anything may run
        self._dry = False  # nothing was due when we looked
        self._stopping = False  # nothing more is begun, what runs is ended
        self._trouble: Exception | None = None
        self._crashed: set[int] = set()  # alone, since an item was done

    def stir(self) -> None:
        """Something has changed: look whether more can be begun."""
        self._changed.set()

    def stop(self, trouble: Exception | None = None) -> None:
        """End the work; `trouble` is what `run` raises."""
        self._stopping = True
        self._trouble = self._trouble or trouble
        self._changed.set()

    async def run(self) -> bool:
        """Work until every item has ended: True. False: `stop` came first; raises its trouble."""
        try:
            while not self._stopping:
                self._changed.clear()
                if await self._begin_one():
                    continue
                if self._running:
                    await self._changed.wait()
                    continue
                due_unix_s = await self._store.do(self._ledger.due, self._job_id)
                waits_s = [] if due_unix_s is None else [due_unix_s - self._clock()]
                if self._lost or self._suspects:
                    waits_s.append(self._calm_in_s())
                if not waits_s:
                    return True
                self._dry = False
                await self._wait(min(waits_s))
        finally:
            self._stopping = True
            for one in tuple(self._running):
                one.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)
        if self._trouble is not None:
            raise self._trouble
        return False

    # inside

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def _begin_one(self) -> bool:
        """Begin an item; False: not now."""
        if (self._lost or self._suspects) and self._calm_in_s() <= 0:
            if not self._running:
                self._begin_apart()
                return True
            return False
        if self._apart or self._dry or not self._wants_more():
            return False
        item = await self._store.do(self._ledger.lease, self._job_id, self._owner, self._clock())
        if item is None:
            self._dry = True
        elif item.attempts:
            self._suspects.append([item])  # an engine has died of it before
        else:
            self._begin(item)
        return item is not None

    def _begin_apart(self) -> None:
        """Run the next group of suspects, and nothing else."""
        if self._lost:
            half = (len(self._lost) + 1) // 2
            halves = self._lost[:half], self._lost[half:]
            self._suspects.extendleft(one for one in reversed(halves) if one)
            self._lost = []
        group = self._suspects.popleft()
        self._apart = len(group)
        for item in group:
            self._begin(item)

    def _wants_more(self) -> bool:
        asker = self._asker
        if not self._running:
            return True
        in_hand = len(self._running) + len(self._lost) + sum(len(one) for one in self._suspects)
        if asker.is_away or in_hand >= ITEMS_MOST:
            return False
        if sum(len(item.content) for item, _ in self._running.values()) >= TEXT_MOST_BYTES:
            return False
        ahead = AHEAD + AHEAD_SHARE * asker.under_way
        thinking = sum(not tools.is_asking for _, tools in self._running.values())
        return asker.waiting + asker.refused < ahead and thinking < ahead

    def _calm_in_s(self) -> float:
        """When the engine may be put at risk again; 0: now."""
        now_s = asyncio.get_running_loop().time()
        recent_s = [died_s for died_s in self._asker.deaths_s if now_s - died_s < CALM_S]
        return recent_s[-1] + CALM_S - now_s if len(recent_s) >= DEATHS_MOST else 0.0

    def _begin(self, item: Item) -> None:
        tools = self._tools(item)
        work = asyncio.create_task(self._work(item, tools))
        self._running[work] = item, tools
        work.add_done_callback(self._over)

    def _over(self, work: asyncio.Task[None]) -> None:
        del self._running[work]
        self._dry = False
        if not self._running:
            self._apart = 0
        self._changed.set()
        error = None if work.cancelled() else work.exception()
        if error is not None or (work.cancelled() and not self._stopping):
            # A fault of ours: the item has no end, so the job must not have one.
            self.stop(error if isinstance(error, Exception) else RuntimeError(repr(work)))

    async def _work(self, item: Item, tools: ItemTools) -> None:
        """One item, to its end."""
        try:
            if self._apart:
                await self._asker.well()
            ended = await self._try(item, tools)
            if isinstance(ended, AppError):
                self.stop(ended)
            elif isinstance(ended, EngineDied):
                await self._crash(item, tools)
            else:
                await self._keep(item, tools, ended)
        except AppError as error:  # the ledger's
            self.stop(error)

    async def _try(self, item: Item, tools: ItemTools) -> Result | Reason | AppError | EngineDied:
        """What the item's task came to."""
        try:
            if item.kind == "request":
                return await pass_on(item, tools)
            if self._task is None:
                raise TypeError("a job over texts needs a task")
            return await self._task(item, tools)
        except Exception as error:  # noqa: BLE001 (whatever it trips over is this item's affair)
            return _essence(error, item)
        finally:
            await tools.close()

    async def _keep(
        self, item: Item, tools: ItemTools, ended: Result | Reason, attempts: int | None = None
    ) -> None:
        """The item's one end."""
        place = self._job_id, item.number, self._owner
        if isinstance(ended, Result):
            kept = await self._store.do(self._ledger.finish, *place, ended, tools.usage())
            self._crashed.clear()
        else:
            if attempts is None:
                attempts = item.attempts + tools.errors
            kept = await self._store.do(
                self._ledger.fail, *place, ended, tools.usage(), attempts=attempts
            )
        if kept:
            self._ended("done" if isinstance(ended, Result) else "failed")

    async def _crash(self, item: Item, tools: ItemTools) -> None:
        """The engine died while it had a request of the item."""
        if self._apart != 1:
            self._lost.append(item)
            return
        self._crashed.add(item.number)
        if len(self._crashed) >= CRASHES_MOST:
            self.stop(_dies_of_all(len(self._crashed)))
        attempts = item.attempts + 1
        if attempts >= self._attempts:
            await self._keep(item, tools, _crashed(attempts), attempts)
            return
        await self._store.do(
            self._ledger.give_back,
            *(self._job_id, item.number, self._owner),
            attempts=attempts,
            due_unix_s=self._clock(),
            usage=tools.usage(),
        )


def _essence(error: Exception, item: Item) -> Reason | AppError | EngineDied:
    """What an error means for the job, or for the item; the gravest of several."""
    inside = _leaves(error)
    for one in inside:
        if isinstance(one, AppError):
            return one
    for one in inside:
        if isinstance(one, EngineDied):
            return one
    for one in inside:
        if isinstance(one, ItemFailed):
            return one.reason
        if isinstance(one, NotValid):
            return Reason(cause="not valid", seen=one.seen, seen_zh=one.seen_zh)
    log.error("The template failed on %s.", item.source, exc_info=error)
    seen = f"{type(error).__name__}: {error}"[:300]
    return Reason(
        cause="template",
        seen=f"The template's own code failed on it: {seen}.",
        seen_zh=f"模板代码处理该项时出错：{seen}。",
    )


def _leaves(error: BaseException) -> list[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for one in error.exceptions for leaf in _leaves(one)]


def _crashed(times: int) -> Reason:
    return Reason(
        cause="crashed",
        seen=f"The engine ended {times} times while it was asked this item and nothing else.",
        seen_zh=f"单独处理该项时，引擎退出了 {times} 次。",
    )


def _dies_of_all(items: int) -> AppError:
    return AppError(
        Text(
            f"The engine died of {items} items in a row, each asked alone.",
            f"引擎连续在 {items} 项上退出，每项均为单独处理。",
        ),
        Text(
            "See why: `workhorse diagnose` with the engine's log. Then `workhorse batch resume`.",
            "请用 `workhorse diagnose` 分析引擎日志，然后运行 `workhorse batch resume`。",
        ),
        speaker="engine",
    )
