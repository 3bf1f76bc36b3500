"""The declared templates of a service: which engine gets them, where their states are kept."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from workhorse.config import Places
from workhorse.errors import AppError
from workhorse.models.parts import PART_NAME
from workhorse.records import Plan
from workhorse.run.address import Address
from workhorse.serve.activity import Activity
from workhorse.serve.backend import Backend
from workhorse.serve.kept_states import KeptStates, fingerprint
from workhorse.serve.prefixes import Prefixes
from workhorse.serve.template_files import read_templates
from workhorse.serve.templates import Template, setup_of
from workhorse.serve.warm import Warmer
from workhorse.settings import Settings
from workhorse.units import GIB

SAVE_FLAG = "--slot-save-path"

log = logging.getLogger(__name__)


class Warmth:
    """One warmer an engine, for as long as the engine has its place."""

    def __init__(
        self, settings: Settings, config: Path | None, where: Places, activity: Activity
    ) -> None:
        self._folder = config.parent if config else Path()
        self.templates = self._planned = read_templates(settings.template, self._folder)
        self.prefixes = Prefixes(self.templates)
        self._states = KeptStates(where.states, round(settings.prefix_cache.disk_gib * GIB))
        self._activity = activity
        self._warmers: dict[Backend, Warmer] = {}
        self._made_for: dict[Backend, tuple[object, ...]] = {}  # what a warmer was made for
        self._plans: dict[Backend, Plan] = {}
        self._running: dict[Backend, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def plan_with(self, settings: Settings) -> None:
        """Plans are made for these settings from now on; AppError when a template is wrong."""
        self._planned = read_templates(settings.template, self._folder)

    def prepare(self, plan: Plan) -> Plan:
        """The plan with a folder for states, when it serves a template and its build can save."""
        mine = [one for one in self._planned if one.model in (None, plan.model_name)]
        if not any(one.keep for one in mine) or SAVE_FLAG not in plan.engine.knows:
            return plan
        try:
            self._states.prepare()
        except OSError as error:
            log.warning("Templates are not kept in %s: %s", self._states.folder, error.strerror)
            return plan
        return replace(plan, states_dir=str(self._states.folder))

    async def started(self, engine: Backend, plan: Plan, address: Address) -> None:
        """An engine answers at `address` and nobody has asked it yet: restore what is on disk."""
        self._plans[engine] = plan
        warmer = await self._begin(engine, plan)
        if warmer is not None:
            await warmer.started(address)

    @asynccontextmanager
    async def own_use(self, engine: Backend) -> AsyncIterator[None]:
        """While we ask the engine ourselves; begins once its templates are ready."""
        warmer = self._warmers.get(engine)
        if warmer is None:
            yield
            return
        await warmer.ready.wait()
        async with warmer.own_use():
            yield

    def apply(self, settings: Settings) -> None:
        """Take over the templates of new settings; what is wrong with them changes nothing."""
        try:
            self.plan_with(settings)
        except AppError as error:  # a file has gone since it was planned with
            log.warning("The templates stay as they were: %s", error)
            return
        self.templates = self._planned
        self.prefixes.ledger.declare(self.templates)
        for warmer in self._warmers.values():
            warmer.declare(self.templates)
        for engine, plan in self._plans.items():
            if engine not in self._running:  # it had no template so far
                self._running[engine] = asyncio.create_task(self._run(engine, plan))

    def left(self, engine: Backend) -> None:
        """An engine has lost its place: another one, or none, is asked from now on."""
        self._plans.pop(engine, None)
        self._end(engine)

    async def stop(self) -> None:
        """End all work; the states on disk stay."""
        for engine in tuple(self._running):
            self.left(engine)
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _end(self, engine: Backend) -> None:
        self._warmers.pop(engine, None)
        self._made_for.pop(engine, None)
        task = self._running.pop(engine, None)
        if task is not None:
            task.cancel()
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def _of(self, model: str) -> tuple[Template, ...]:
        return tuple(one for one in self.templates if one.model in (None, model))

    async def _run(self, engine: Backend, plan: Plan) -> None:
        warmer = await self._begin(engine, plan)
        if warmer is not None:
            await warmer.run()

    async def _begin(self, engine: Backend, plan: Plan) -> Warmer | None:
        """The engine's warmer, made when it has none for this plan; None: it serves no template.

        Another plan, or another file under the same name, makes other states: what an earlier one
        left on disk would be answered from as if it were this one's.
        """
        if plan.engine.engine != "llama.cpp" or plan.embeddings or not self._of(plan.model_name):
            return None
        told = await asyncio.to_thread(fingerprint, model_files(Path(plan.model_path)))
        states, prompt_cache = plan.states_dir is not None, plan.prompt_cache_bytes > 0
        setup = setup_of(plan, told)
        made_for = (plan.model_name, setup, states, prompt_cache)
        if engine in self._warmers:
            if self._made_for[engine] == made_for:
                return self._warmers[engine]
            self._end(engine)
        self._made_for[engine] = made_for
        warmer = self._warmers[engine] = Warmer(
            plan.model_name,
            self.templates,
            engine.address,
            self._activity,
            self.prefixes.ledger,
            setup=setup,
            states=self._states if states else None,
            prompt_cache=prompt_cache,
        )
        if engine not in self._running:
            self._running[engine] = asyncio.create_task(warmer.run(), name="templates")
        return warmer


def model_files(path: Path) -> tuple[Path, ...]:
    """All parts of a model by the name of its first."""
    part = PART_NAME.fullmatch(path.name)
    if part is None:
        return (path,)
    return tuple(sorted(path.parent.glob(f"{part['stem']}-?????-of-{part['parts']}.gguf")))
