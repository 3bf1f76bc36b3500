"""Measuring the own service, while nobody asks it, and keeping forecast and measurement."""

import asyncio
from datetime import UTC, datetime

from workhorse import __version__
from workhorse.bench.doubts import doubts
from workhorse.bench.load import measure
from workhorse.bench.scenario import STANDARD, Scenario, scenario_for
from workhorse.bench.stats import Summary, summarise
from workhorse.config import Places
from workhorse.errors import AppError
from workhorse.plan.speed import Experience, setup_for
from workhorse.records import Conditions, Plan, Run
from workhorse.run.supervisor import Supervisor
from workhorse.serve.activity import Activity
from workhorse.store import Store
from workhorse.text import Text
from workhorse.up.decide import Decision
from workhorse.up.teller import Teller

# A model may take long to read from an old disk: 70 GB at 100 MB/s are twelve minutes.
READY_TIMEOUT_S = 1800.0
# Measuring starts when nobody has asked for this long.
QUIET_BEFORE_MEASURING_S = 2.0


async def measure_when_quiet(
    decision: Decision, supervisor: Supervisor, activity: Activity, where: Places, tell: Teller
) -> Summary | None:
    """Measure by the standard protocol once nobody asks; a client that comes ends the attempt.

    What goes wrong here is told and ends the measuring, never the service: None.
    """
    scenario = scenario_within(decision.plan)
    if scenario is None:
        return None
    try:
        while True:
            await activity.wait_idle(QUIET_BEFORE_MEASURING_S)
            address = await supervisor.address(READY_TIMEOUT_S)
            taking = asyncio.create_task(
                measure(address.url, scenario, on_progress=tell.measuring, api_key=address.key)
            )
            client = asyncio.create_task(activity.arrived())
            try:
                await asyncio.wait({taking, client}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                client.cancel()
                taking.cancel()
                await asyncio.wait({taking})
            if not taking.cancelled():
                return conclude(decision, scenario, address.url, taking.result(), where, tell)
            tell.gave_way()
    except AppError as error:
        tell.not_measured(error)
        return None


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
) -> Summary:
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
        untaught = why_not_learned(plan)
        if untaught is not None:
            tell.stage(untaught)
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
        Store(where.store).add(experience, measurement, plan.forecast, teaches=untaught is None)
    return summary


def why_not_learned(plan: Plan) -> Text | None:
    """Why the next forecast does not learn from what this plan was measured at; None: it does.

    Where tokens are guessed ahead, one read of the weights gives several: the decode measures how
    well they were guessed, and neither the memory nor the constants.
    """
    if plan.drafts is None:
        return None
    kind = plan.drafts.kind
    return Text(
        f"forecasts do not learn from this: with tokens guessed ahead ({kind}) decode is no "
        "measure of the memory",
        f"预测不会据此修正：提前草拟词元（{kind}）时，解码速度不反映内存带宽",
    )


def every_run_failed(runs: tuple[Run, ...]) -> AppError:
    """No run of a measurement gave a figure."""
    first = next((run.error for run in runs if run.error), "—")
    return AppError(
        Text(f"The measurement failed: {first}", f"测速失败：{first}"),
        Text(
            "Run `workhorse bench` once the engine is well.", "引擎恢复后请运行 `workhorse bench`。"
        ),
    )
