"""Has an engine hold the declared templates before clients ask: from disk, or prefilled when idle.

How llama-server 0.5.0 picks a slot decides what has to be done (tools/server/server-context.cpp,
commit 0c1e570; tried November 2026). It takes the free slot that shares most with the prompt; so
every slot that no client has used yet is given a template, and each of N clients finds one. A
slot that a client has used is left alone: it holds that conversation, and its beginning serves
others as well. Only when so many other requests came that a template must have been crowded out
does it get the slot that has rested longest, whose conversation goes to the engine's prompt cache.

The engine is asked directly, never through the line of clients, and only while nobody is served.

A prompt that waits in line is not prefilled ahead of its turn: it waits because every slot is
taken, and what is sent ahead waits for the same slot. With four busy slots a prefill sent ahead
began in the moment in which the first was free, 26.37 s after the start, as the request itself
would have (benchmarks/templates.py, 2026-11).
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

from workhorse.errors import AppError
from workhorse.run.address import Address
from workhorse.serve.activity import Activity
from workhorse.serve.engine_slots import EngineSlots, Slot, engine_at
from workhorse.serve.kept_states import PART_SUFFIX, KeptStates
from workhorse.serve.templates import HIT_SHARE, Ledger, Tally, Template, slots_for, state_key

# Work starts when nobody has asked for this long.
QUIET_S = 2.0
# What a start or restart may take longer for states from the disk; the rest comes when idle.
RESTORE_BUDGET_S = 3.0
# Some chat templates write today's date into the system prompt.
RENDER_AGAIN_S = 600.0
ADDRESS_WAIT_S = 1800.0

log = logging.getLogger(__name__)

TROUBLE = (AppError, aiohttp.ClientError, OSError, KeyError, TypeError, ValueError)


class Warmer:
    """Keeps the templates of one engine ready; one task of the service `run`s it.

    `address` is the engine's own (`Backend.address`); `setup` tells states of different models,
    builds and settings apart; `states` None keeps nothing on disk; `prompt_cache` says that the
    engine keeps what leaves a slot.
    """

    def __init__(
        self,
        model: str,
        templates: Sequence[Template],
        address: Callable[[float], Awaitable[Address]],
        activity: Activity,
        ledger: Ledger,
        *,
        setup: str,
        states: KeptStates | None,
        prompt_cache: bool,
        quiet_s: float = QUIET_S,
    ) -> None:
        self.ready = asyncio.Event()  # all that can be done has been, for the first time
        self._model = model
        self._templates = tuple(t for t in templates if t.model in (None, model))
        self._address = address
        self._activity = activity
        self._ledger = ledger
        self._setup = setup
        self._states = states
        self._prompt_cache = prompt_cache
        self._quiet_s = quiet_s
        self._tokens: dict[str, tuple[int, ...]] = {}  # by template: the model's, not a start's
        self._rendered_s: dict[str, float] = {}  # when that was asked
        # By slot: what we put there, and the last task that was not a client's.
        self._held: dict[int, Template] = {}
        self._rested: dict[int, int | None] = {}
        self._unsavable: set[str] = set()
        self._again = asyncio.Event()
        self._using = asyncio.Lock()
        for template in self._templates:
            ledger.of(template, model)

    async def started(self, address: Address) -> None:
        """A new engine answers at `address` and nobody is served yet: give it what is on disk.

        Takes no longer than a few seconds and never fails: the rest is done when idle.
        """
        self._held.clear()
        self._rested.clear()
        self._again.set()
        for template in self._templates:
            tally = self._tally(template)
            if tally.state != "refused":
                tally.state = "waiting"
        with suppress(TimeoutError):
            async with asyncio.timeout(RESTORE_BUDGET_S):
                await self._trying(self._bring_first(address))

    async def run(self) -> None:
        """Do what is to be done whenever nobody is served; never ends."""
        while True:
            await self._activity.wait_idle(self._quiet_s)
            self._again.clear()
            try:
                address = await self._address(ADDRESS_WAIT_S)
            except AppError:  # given up or ended: until it is started again
                await self._again.wait()
                continue
            async with self._using:
                if not await self._unless_client(self._trying(self._bring(address, prefill=True))):
                    continue
            self.ready.set()
            await _first(
                self._activity.arrived(), self._again.wait(), asyncio.sleep(RENDER_AGAIN_S)
            )

    def declare(self, templates: Sequence[Template]) -> None:
        """Other templates from now on; those that stay as they are stay where they are."""
        before = {one.name: one for one in self._templates}
        self._templates = tuple(t for t in templates if t.model in (None, self._model))
        for template in self._templates:
            if before.get(template.name) != template:
                self._tokens.pop(template.name, None)
                tally = self._tally(template)
                tally.state, tally.tokens, tally.why = "waiting", None, None
        self._again.set()

    @asynccontextmanager
    async def own_use(self) -> AsyncIterator[None]:
        """While we ask the engine for something else: what that leaves in slots is no client's."""
        client = asyncio.create_task(self._activity.arrived())
        try:
            async with self._using:
                yield
                if not client.done() and self._templates:
                    await self._trying(self._rest(await self._address(0.0)))
        finally:
            client.cancel()
            self._again.set()

    async def _unless_client(self, work: Coroutine[object, object, None]) -> bool:
        """Did it come to its end before a client came? A client ends it at once."""
        doing = asyncio.create_task(work)
        client = asyncio.create_task(self._activity.arrived())
        try:
            await asyncio.wait({doing, client}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            done = doing.done()
            await _end(doing, client)
        if done:
            doing.result()
        return done

    async def _trying(self, work: Coroutine[object, object, None]) -> None:
        """What goes wrong costs a template, never the service."""
        try:
            await work
        except TROUBLE as error:
            log.warning("Templates of %s: %s", self._model, error)

    async def _bring_first(self, address: Address) -> None:
        """As `_bring` from disk alone; whatever the slots did before was the engine's check."""
        if self._templates:
            await self._rest(address)
            await self._bring(address, prefill=False)

    async def _rest(self, address: Address) -> None:
        async with engine_at(address) as engine:
            for slot in await engine.slots():
                if self._rested.get(slot.number) != slot.task:
                    self._rested[slot.number] = slot.task
                    self._held.pop(slot.number, None)

    async def _bring(self, address: Address, *, prefill: bool) -> None:
        """Every slot that is free for it gets its template; `prefill`: computing is allowed."""
        if not self._templates:
            return
        async with engine_at(address) as engine:
            for template in self._templates:
                await self._render(engine, template)
            usable = [t for t in self._templates if self._tally(t).state != "refused"]
            slots = await engine.slots()
            shares = slots_for([self._tally(one).requests for one in usable], len(slots))
            beyond = [one for place, one in enumerate(usable) if place not in shares]
            await self._bring_beyond(engine, slots[-1], beyond, prefill=prefill)
            for slot, share in zip(await engine.slots(), shares, strict=False):
                if self._is_unused(slot) and self._held.get(slot.number) != usable[share]:
                    await self._put(engine, slot, usable[share], prefill=prefill)
            if prefill:
                await self._push_back(engine, usable)

    async def _bring_beyond(
        self, engine: EngineSlots, slot: Slot, templates: Sequence[Template], *, prefill: bool
    ) -> None:
        """Templates beyond the number of slots go through one into the engine's prompt cache."""
        for template in templates:
            if not (self._prompt_cache and self._is_unused(slot)):
                return
            if self._tally(template).state == "ready":
                continue
            if await self._put(engine, slot, template, prefill=prefill):
                await self._move_out(engine, slot)
                slot = (await engine.slots())[-1]

    async def _move_out(self, engine: EngineSlots, slot: Slot) -> None:
        """Another prompt in a slot makes the engine keep what was in it in its prompt cache."""
        tokens = next(iter(self._tokens.values()))
        await engine.prefill(tokens[:1], slot.number)
        self._held.pop(slot.number, None)
        self._rested[slot.number] = (await engine.slots())[slot.number].task

    async def _push_back(self, engine: EngineSlots, usable: Sequence[Template]) -> None:
        """Give a template that was crowded out the slot that has rested longest."""
        for template in usable:
            slots = await engine.slots()
            used = [s for s in slots if not s.busy and not self._is_unused(s)]
            if (
                not used
                or not self._prompt_cache
                or any(self._held.get(s.number) == template and self._is_unused(s) for s in slots)
                or self._ledger.others_since(template, self._model) < len(slots)
            ):
                continue
            slot = min(used, key=lambda one: one.task or 0)
            await self._move_out(engine, slot)
            await self._put(engine, slot, template, prefill=True)
            self._ledger.pushed_back(template, self._model)

    async def _render(self, engine: EngineSlots, template: Template) -> None:
        tally, now_s = self._tally(template), asyncio.get_running_loop().time()
        if tally.state == "refused":
            return
        if (known := self._tokens.get(template.name)) is not None:
            if now_s < self._rendered_s[template.name] + RENDER_AGAIN_S:
                return
            self._rendered_s[template.name] = now_s
            if await engine.still_begins(template, known):
                return
            self._held = {n: one for n, one in self._held.items() if one != template}
            tally.state = "waiting"
        try:
            tokens = await engine.tokens(template)
        except AppError as error:  # the chat template refuses these messages
            self._refuse(tally, str(error.what.en))
            return
        self._tokens[template.name], self._rendered_s[template.name] = tokens, now_s
        tally.tokens = len(tokens)
        if not tokens:
            self._refuse(tally, "nothing of it is sure to begin every prompt")

    async def _put(
        self, engine: EngineSlots, slot: Slot, template: Template, *, prefill: bool
    ) -> bool:
        """A slot gets a template, from disk when it is there; False when it did not."""
        tally = self._tally(template)
        tokens = self._tokens[template.name]
        path = await self._saved(template)
        if path is not None:
            try:
                if await engine.restore(slot.number, path.name) == len(tokens):
                    tally.on_disk = True
                    await self._note(engine, slot, template)
                    return True
            except AppError as error:
                log.warning("The state of %s was refused: %s", template.name, error.what.en)
            await asyncio.to_thread(path.unlink, missing_ok=True)
        if prefill:
            await self._compute(engine, slot, template)
        return prefill

    async def _compute(self, engine: EngineSlots, slot: Slot, template: Template) -> None:
        """Prefill it, and save it where that is wanted and works."""
        tally, tokens = self._tally(template), self._tokens[template.name]
        tally.state, tally.progress = "prefilling", 0.0
        begun = asyncio.Event()

        def on_progress(share: float) -> None:
            tally.progress = share
            begun.set()

        part = self._part_name(template)
        saving = None
        try:
            computing = asyncio.create_task(engine.prefill(tokens, slot.number, on_progress))
            try:
                await _first(begun.wait(), asyncio.wait({computing}))
                if self._is_kept(template):
                    # Asked for while the slot is busy, the engine saves it in the moment in
                    # which it is free, before any client could get it.
                    saving = asyncio.create_task(engine.save(slot.number, part))
                if not computing.done():
                    # A client that ends this work leaves a slot that is no client's.
                    self._rested[slot.number] = (await engine.slots())[slot.number].task
                done = await computing
            finally:
                await _end(computing)
            self._ledger.prefilled(self._model, done.computed_tokens, done.seconds)
            tally.prefill_s += done.seconds
            if saving is not None:
                await self._keep(engine, slot, template, saving)
            await self._note(engine, slot, template)
        except AppError as error:
            self._refuse(tally, error.what.en)
        finally:
            tally.progress = None
            if tally.state == "prefilling":
                tally.state = "waiting"
            if saving is not None:
                await _end(saving)

    async def _keep(
        self, engine: EngineSlots, slot: Slot, template: Template, saving: "asyncio.Task[int]"
    ) -> None:
        """Take what was saved into the folder, once it has proven that it restores."""
        states, tokens = self._states, self._tokens[template.name]
        if states is None:
            return
        part = states.folder / self._part_name(template)
        try:
            saved = await saving
        except TROUBLE as error:
            log.warning("The state of %s cannot be saved: %s", template.name, error)
            self._unsavable.add(template.name)
            return
        if saved != len(tokens):
            await asyncio.to_thread(part.unlink, missing_ok=True)
            return
        path = await asyncio.to_thread(states.adopt, part, self._key(template), tokens)
        if path is None:
            return
        # One token more shows whether the engine goes on from what it restored: models whose
        # state cannot be cut back may not.
        await engine.restore(slot.number, path.name)
        tried = await engine.prefill((*tokens, tokens[-1]), slot.number)
        if tried.cached_tokens < HIT_SHARE * len(tokens):
            log.warning("A restored state of %s is of no use to its model.", template.name)
            self._unsavable.add(template.name)
            await asyncio.to_thread(path.unlink)
            await engine.prefill(tokens, slot.number)
            return
        await engine.restore(slot.number, path.name)
        wanted = {self._key(one) for one in self._templates if one.name in self._tokens}
        await asyncio.to_thread(states.trim, wanted)
        self._tally(template).on_disk = await asyncio.to_thread(path.exists)

    async def _note(self, engine: EngineSlots, slot: Slot, template: Template) -> None:
        now = next(one for one in await engine.slots() if one.number == slot.number)
        # A client may have taken it in this moment; a slot without any task says no number.
        if now.task is None or now.tokens == len(self._tokens[template.name]):
            self._held[slot.number], self._rested[slot.number] = template, now.task
        self._tally(template).state = "ready"

    async def _saved(self, template: Template) -> Path | None:
        if self._states is None or not self._is_kept(template):
            return None
        return await asyncio.to_thread(self._states.find, self._key(template))

    def _is_kept(self, template: Template) -> bool:
        return self._states is not None and template.keep and template.name not in self._unsavable

    def _key(self, template: Template) -> str:
        return state_key(self._setup, self._tokens[template.name])

    def _part_name(self, template: Template) -> str:  # another engine may write the same state
        return f"{self._key(template)}-{id(self):x}{PART_SUFFIX}"

    def _is_unused(self, slot: Slot) -> bool:
        """No client has used it since the engine started or we put something there."""
        return not slot.busy and slot.task == self._rested.get(slot.number)

    def _tally(self, template: Template) -> Tally:
        return self._ledger.of(template, self._model)

    def _refuse(self, tally: Tally, why: str) -> None:
        tally.state, tally.why = "refused", why
        log.warning("The template %s is not prefilled: %s", tally.name, why)


async def _first(*waiting: Coroutine[object, object, object]) -> None:
    """Returns when the first of them does."""
    tasks = [asyncio.ensure_future(one) for one in waiting]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await _end(*tasks)


async def _end(*tasks: "asyncio.Task[Any]") -> None:
    """Ends them, whatever came of them."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
