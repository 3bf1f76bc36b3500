"""The main job on one screen: listen, probe, check, plan, fetch, launch, verify, serve, measure."""

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from workhorse import __version__
from workhorse.bench.doubts import doubts
from workhorse.bench.load import Progress, measure
from workhorse.bench.scenario import STANDARD, Scenario, scenario_for
from workhorse.bench.stats import Summary, summarise
from workhorse.config import HOST, PORT, Places
from workhorse.engines.find import embedded_build
from workhorse.engines.llamacpp import launch
from workhorse.engines.llamacpp_log import explain, read_report
from workhorse.engines.openmp import ensure_openmp
from workhorse.engines.supply.builds import Builds
from workhorse.engines.supply.pick import Picked, named_engine, pick_engine
from workhorse.engines.verify import (
    GOLDEN_PROMPT,
    golden_request,
    judge_answer,
    judge_embedding,
    judge_log,
)
from workhorse.errors import EXIT_GOOD, EXIT_NO, AppError
from workhorse.knowledge.packaged_models import packaged_models
from workhorse.machine.probe import probe
from workhorse.models.embedded import DEFAULT_MODEL, embedded_model
from workhorse.models.gguf import read_gguf
from workhorse.models.read import local_folder, read_model, servable
from workhorse.plan.checks import check_cpu
from workhorse.plan.planner import make_plan, served_name
from workhorse.plan.rehearsed import Rehearsed, with_rehearsed
from workhorse.plan.speed import Experience, setup_for
from workhorse.plan.what_if import Parts, assumed_build, composed_machine
from workhorse.plan.wish import Wish
from workhorse.records import (
    Conditions,
    EngineBuild,
    Machine,
    Model,
    Plan,
    Reason,
    Run,
    Verdict,
)
from workhorse.run.ask import ask_engine
from workhorse.run.process import EngineProcess
from workhorse.run.supervisor import EngineUnavailable, Status, Supervisor
from workhorse.serve.activity import Activity
from workhorse.serve.app import Gateway, build_app
from workhorse.store import Store
from workhorse.text import Text

# A model may take long to read from an old disk: 70 GB at 100 MB/s are twelve minutes.
READY_TIMEOUT_S = 1800.0
LOG_LINES = 2000  # a load writes about 200
# Measuring starts when nobody has asked for this long.
QUIET_BEFORE_MEASURING_S = 2.0

Fetching = Callable[[int, int | None], None]


@dataclass(frozen=True, slots=True)
class Ask:
    """What the user asked of `up`; `None`: we decide."""

    model: str | Path | None = None  # as `read_model` takes it
    quant: str | None = None
    engine: Path | None = None
    wish: Wish = field(default_factory=Wish)
    host: str = HOST
    port: int = PORT
    skip_golden: bool = False
    measure: bool = True
    machine_root: Path | None = None
    parts: Parts | None = None  # of a machine that is not here


@dataclass(frozen=True, slots=True)
class Decision:
    """What is here, what is wanted, what was decided."""

    machine: Machine
    model: Model
    plan: Plan


class Teller(Protocol):
    """Who tells the user how far we are."""

    def stage(self, words: Text) -> None:
        """The next stage begins."""

    def fetching(self, done_bytes: int, total_bytes: int | None) -> None:
        """A download goes on."""

    def decided(self, decision: Decision) -> None:
        """The plan stands."""

    def verified(self, verdict: Verdict, *, golden: bool) -> None:
        """The engine runs as planned, or not."""

    def ready(self, plan: Plan, url: str, took_s: float) -> None:
        """The service answers."""

    def changed(self, status: Status) -> None:
        """The engine died, restarts, is ready again, or was given up."""

    def measuring(self, progress: Progress) -> None:
        """A measurement goes on."""

    def gave_way(self) -> None:
        """A client came: the measurement stopped for it."""

    def measured(self, plan: Plan, scenario: Scenario, summary: Summary, doubtful: Verdict) -> None:
        """What was predicted, measured, and the ceiling."""

    def not_measured(self, error: AppError) -> None:
        """The measurement could not be taken."""


@dataclass(frozen=True, slots=True)
class Ground:
    """What any model is planned on: the machine, the engine, what was learned here."""

    machine: Machine
    picked: Picked
    history: tuple[Experience, ...]
    rehearsed: tuple[Rehearsed, ...] = ()

    def decide(self, model: Model, wish: Wish) -> Decision:
        """The plan for one model."""
        plan = make_plan(self.machine, model, self.picked.build, wish, self.history)
        plan = with_rehearsed(plan, model, self.rehearsed, self.history)
        return Decision(self.machine, model, self.picked.explain(plan))


def decide(ask: Ask, where: Places, fetching: Fetching) -> Decision:
    """Probe, fetch what is missing, read the model and plan. Starts nothing; blocks."""
    # A typing error shows before any fetch.
    asked = read_model(ask.model, quant=ask.quant) if ask.model else None
    ground = look_around(ask, where)
    model = asked or read_gguf(embedded_model(where.data, fetching))
    return ground.decide(model, ask.wish)


def look_around(ask: Ask, where: Places) -> Ground:
    """The machine that is asked about, the engine for it, and what was measured on it."""
    builds = Builds(where.engines)
    named = named_engine(ask.engine, builds) if ask.engine else None
    if ask.parts is not None or ask.machine_root is not None:
        machine = composed_machine(ask.parts) if ask.parts else probe(ask.machine_root or Path("/"))
        return Ground(machine, named or assumed_engine(machine), ())
    folder = local_folder(ask.model) if ask.model else None
    machine = probe(disk_path=folder or where.models)
    picked = named or pick_engine(builds, machine)
    if picked.build.kind == "embedded":
        refuse_unfit_cpu(machine, picked.build)
        ensure_openmp()
        picked = replace(picked, build=embedded_build())  # again: it says where the library is
    history: tuple[Experience, ...] = ()
    rehearsed: tuple[Rehearsed, ...] = ()
    try:
        history = Store(where.store).experiences()
        rehearsed = Store(where.store).rehearsed()
    except AppError as error:  # a forecast without it is worth more than no service
        machine = replace(machine, doubts=(*machine.doubts, error.what))
    return Ground(machine, picked, history, rehearsed)


def assumed_engine(machine: Machine) -> Picked:
    """The engine for a machine that is not here: with code for its cards, else the embedded."""
    build = assumed_build(machine)
    if build is None:
        return Picked(embedded_build())
    because = Text(
        "Assumed, because the machine is not here: `workhorse engine build` makes such a one.",
        "该机器不在本地，故作此假定：可用 `workhorse engine build` 构建。",
    )
    return Picked(build, (Reason("engine", build.version, because),))


def refuse_unfit_cpu(machine: Machine, build: EngineBuild) -> None:
    """Raise what speaks against this CPU before anything is downloaded for it."""
    for finding in check_cpu(machine, build):
        raise AppError(finding.seen, finding.remedy, exit_code=EXIT_NO)


async def up(ask: Ask, where: Places, tell: Teller) -> int:
    """Turn this machine into a verified service, until cancelled; returns an exit code.

    The port is open from the start and stays open while the engine comes and goes.
    """
    began_s = time.monotonic()
    if ask.model:
        file = servable(ask.model, ask.quant)
        ask = replace(ask, model=file, quant=ask.quant if file == Path(ask.model) else None)
    activity, engine = Activity(), EngineToCome()
    name = served_name(str(ask.model or packaged_models()[DEFAULT_MODEL].file_name))
    gateway = Gateway(build_app(engine, model_name=name, activity=activity))
    port = await gateway.start(ask.host, ask.port)
    leaving = threading.Event()

    def fetching(done_bytes: int, total_bytes: int | None) -> None:
        if leaving.is_set():  # the thread has no other way to learn that nobody waits for it
            raise asyncio.CancelledError
        tell.fetching(done_bytes, total_bytes)

    try:
        tell.stage(Text("looking at this machine and planning", "检测本机并制定方案"))
        decision = await asyncio.to_thread(decide, ask, where, fetching)
        tell.decided(decision)
        if decision.plan.verdict.blocked:
            return EXIT_NO
        tell.stage(Text("starting the engine", "启动引擎"))
        supervisor = supervise(ask, decision.plan, where.logs / f"engine-{port}.log", tell)
        engine.supervisor = supervisor
        try:
            await supervisor.start()
            tell.ready(decision.plan, f"http://{ask.host}:{port}", time.monotonic() - began_s)
            supervisor.on_change(tell.changed)
            if ask.measure:
                await measure_when_quiet(decision, supervisor, activity, where, tell)
            await asyncio.Event().wait()  # until cancelled
        finally:
            # First the gateway: running answers may end before their engine does.
            await gateway.stop()
            await supervisor.stop()
    finally:
        leaving.set()
        await gateway.stop()
    return EXIT_GOOD


class EngineToCome:
    """The gateway's backend: the supervisor once there is one, `planning` before."""

    def __init__(self) -> None:
        self.supervisor: Supervisor | None = None

    @property
    def state(self) -> str:
        """The engine's state in one word."""
        return self.supervisor.status.state if self.supervisor else "planning"

    @property
    def restarts(self) -> int:
        """How often the engine was started again."""
        return self.supervisor.status.restarts if self.supervisor else 0

    async def address(self, wait_s: float) -> str:
        """Where the engine answers; see `Supervisor.address`."""
        if self.supervisor is None:
            raise EngineUnavailable(
                Text("The service is still being set up.", "服务仍在准备中。"),
                Text("Ask again in a few seconds.", "请几秒后重试。"),
                speaker="gateway",
            )
        return await self.supervisor.address(wait_s)


def supervise(ask: Ask, plan: Plan, log_path: Path, tell: Teller) -> Supervisor:
    """The engine's owner, which verifies it at each start before anybody is served."""

    async def verify(process: EngineProcess) -> None:
        verdict = await verify_engine(plan, process, golden=not ask.skip_golden)
        tell.verified(verdict, golden=not ask.skip_golden)
        if verdict.blocked:
            worst = next(f for f in verdict.findings if f.level == "blocker")
            raise AppError(worst.seen, worst.remedy, speaker="engine", exit_code=EXIT_NO)

    return Supervisor(
        lambda port: launch(plan, port),
        log_path,
        ready_timeout_s=READY_TIMEOUT_S,
        explain=explain,
        after_ready=verify,
    )


async def verify_engine(plan: Plan, process: EngineProcess, *, golden: bool) -> Verdict:
    """The engine's log against the plan, and its answer to the golden prompt.

    An embedding model is asked for one embedding instead.
    """
    findings = judge_log(plan, read_report(process.log_tail(LOG_LINES)))
    if plan.embeddings:
        answer = await ask_engine(process, "/v1/embeddings", {"input": GOLDEN_PROMPT})
        return Verdict((*findings, *judge_embedding(answer)))
    if golden:
        answer = await ask_engine(process, "/completion", golden_request())
        return Verdict((*findings, *judge_answer(answer)))
    return Verdict(findings)


async def measure_when_quiet(
    decision: Decision, supervisor: Supervisor, activity: Activity, where: Places, tell: Teller
) -> None:
    """Measure by the standard protocol once nobody asks; a client that comes ends the attempt.

    What goes wrong here is told and ends the measuring, never the service.
    """
    scenario = scenario_within(decision.plan)
    if scenario is None:
        return None
    try:
        while True:
            await activity.wait_idle(QUIET_BEFORE_MEASURING_S)
            url = await supervisor.address(READY_TIMEOUT_S)
            taking = asyncio.create_task(measure(url, scenario, on_progress=tell.measuring))
            client = asyncio.create_task(activity.arrived())
            try:
                await asyncio.wait({taking, client}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                client.cancel()
                taking.cancel()
                await asyncio.wait({taking})
            if not taking.cancelled():
                return conclude(decision, scenario, url, taking.result(), where, tell)
            tell.gave_way()
    except AppError as error:
        tell.not_measured(error)


def scenario_within(plan: Plan) -> Scenario | None:
    """The standard protocol, shortened where a slot is shorter; None for embedding models."""
    if plan.embeddings:
        return None
    if plan.context_tokens >= STANDARD.prompt_tokens + STANDARD.output_tokens:
        return STANDARD
    quarter = max(1, plan.context_tokens // 4)
    return scenario_for(prompt_tokens=2 * quarter, output_tokens=quarter)


def conclude(
    decision: Decision,
    scenario: Scenario,
    url: str,
    runs: tuple[Run, ...],
    where: Places,
    tell: Teller,
) -> None:
    """Tell what was measured against what was predicted, with its doubts, and keep both."""
    plan, model = decision.plan, decision.model
    now = datetime.now(UTC).isoformat(timespec="seconds")
    conditions = Conditions(now, decision.machine, plan, url, __version__)
    measurement = scenario.measurement(runs, conditions)
    summary = summarise(measurement)
    if summary.decode_tokens_per_s is None:
        raise every_run_failed(runs)
    tell.measured(plan, scenario, summary, doubts(measurement))
    predicted = plan.forecast.uncorrected_tokens_per_s
    # Another protocol reads at another depth: it says nothing of the forecast.
    if predicted is not None and scenario == STANDARD:
        measured = summary.decode_tokens_per_s.median
        setup = setup_for(
            plan.engine, plan.device, huge_pages=plan.huge_pages, threads=plan.threads
        )
        prefill, promised = summary.prefill_tokens_per_s, plan.forecast.decode_tokens_per_s
        experience = Experience(
            model.name,
            model.quantisation,
            setup,
            predicted,
            measured,
            None if prefill is None else prefill.median,
            None if promised is None else promised.low,
            None if promised is None else promised.high,
        )
        Store(where.store).add(experience, measurement, plan.forecast)


def every_run_failed(runs: tuple[Run, ...]) -> AppError:
    """No run of a measurement gave a figure."""
    first = next((run.error for run in runs if run.error), "—")
    return AppError(
        Text(f"The measurement failed: {first}", f"测速失败：{first}"),
        Text(
            "Run `workhorse bench` once the engine is well.", "引擎恢复后请运行 `workhorse bench`。"
        ),
    )
