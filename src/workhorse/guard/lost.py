"""Engines that are out of service for good. Pure."""

from collections.abc import Iterator

from workhorse.guard.sign import READY, Sign, View, alarm_finding, planned_cards
from workhorse.records import EngineReading, Plan
from workhorse.text import Text

# States from which an engine does not come back by itself.
LOST = "out_of_service"  # ended for good by its owner
OUT_OF_SERVICE = ("given_up", LOST)


def look(view: View, engine: EngineReading) -> Iterator[Sign]:
    """Whether the engine is lost, on which card, and how many of its model serve on."""
    others = sum(
        one.state == READY
        for one in view.now.engines
        if one is not engine and model_of(one) == model_of(engine)
    )
    yield Sign(
        "live.engine-lost",
        engine.model_name,
        engine.state in OUT_OF_SERVICE,
        lambda: alarm_finding(
            "live.engine-lost",
            words(engine, view.plans.get(engine.model_name), others),
            evidence=(f"{engine.state} after {engine.restarts} restarts",),
            level="warning" if others else "blocker",
        ),
        at_once=True,
    )


def model_of(engine: EngineReading) -> str:
    """The model under whatever name the engine goes by here."""
    return engine.model_name.removesuffix(f" ({engine.on})") if engine.on else engine.model_name


def words(engine: EngineReading, plan: Plan | None, others: int) -> Text:
    """What is lost, and what is left."""
    cards = () if plan is None else planned_cards(plan)
    name, on, on_zh = engine.model_name, "", ""
    if plan is not None and cards:
        listed = "+".join(map(str, cards))
        on, on_zh = f" on GPU {listed} ({plan.device})", f"（GPU {listed}，{plan.device}）"
    left = Text("Nothing else serves this model.", "没有其他引擎提供该模型。")
    if others:
        verb = "engine serves" if others == 1 else "engines serve"
        left = Text(f"{others} other {verb} on.", f"另有 {others} 个引擎继续服务。")
    return Text(
        f"The engine {name}{on} is out of service. {left.en}",
        f"引擎 {name}{on_zh}已停止服务。{left.zh}",
    )
