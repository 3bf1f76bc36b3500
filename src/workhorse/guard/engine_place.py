"""Where an engine computes: layers that are not on the card, CPUs that were taken away. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from workhorse.guard.sign import READY, Sign, View, alarm_finding
from workhorse.knowledge.alarms import alarm_limit
from workhorse.records import EngineReading, Finding, Plan
from workhorse.text import Text
from workhorse.units import show_bytes, show_share

WEIGHT_ITEMS = ("weights", "tables")


@dataclass(frozen=True, slots=True)
class Misplaced:
    """What shows that it does not compute where it should."""

    seen: Text
    evidence: str
    planned: str = ""


def look(view: View, engine: EngineReading, plan: Plan) -> Iterator[Sign]:
    """Signs of one ready engine."""
    if engine.state != READY:
        return
    if plan.gpu_layers:
        found = misplaced(view, engine, plan)
        yield Sign(
            "live.layers-on-cpu",
            engine.model_name,
            found is not None,
            lambda: _layers_finding(engine, plan, found),
        )
    if engine.allowed_cpus is not None and plan.cpus:
        changed = changed_cpus(engine, plan)
        yield Sign(
            "live.wrong-cpus",
            engine.model_name,
            changed is not None,
            lambda: _cpus_finding(engine, changed),
        )


def misplaced(view: View, engine: EngineReading, plan: Plan) -> Misplaced | None:
    """Why layers that the plan put on cards are certainly or likely not there; None: they are."""
    loaded = engine.loaded_gpu_layers
    if plan.gpu_layers and loaded is not None and loaded < plan.gpu_layers:
        return Misplaced(
            Text(
                f"its log says {loaded} of {plan.layers} layers on GPUs, planned {plan.gpu_layers}",
                f"日志显示 {plan.layers} 层中有 {loaded} 层在显卡上，计划 {plan.gpu_layers} 层",
            ),
            f"offloaded {loaded}/{plan.layers}, planned {plan.gpu_layers}",
        )
    for card in view.cards_of(plan):
        planned = _planned_bytes(plan, f"GPU {card.index}")
        least = planned * alarm_limit("vram_planned_share")
        if card.own_bytes is not None and planned and card.own_bytes < least:
            own, shown = show_bytes(card.own_bytes), show_bytes(planned)
            return Misplaced(
                Text(
                    f"it holds {own} of GPU {card.index}, planned {shown} of weights",
                    f"它在 GPU {card.index} 上只占 {own}，计划权重 {shown}",
                ),
                f"GPU {card.index}: own {card.own_bytes}, planned weights {planned}",
            )
    return _idle_cards(view, engine, plan)


def _idle_cards(view: View, engine: EngineReading, plan: Plan) -> Misplaced | None:
    """Every card idle while the engine's CPUs compute an answer."""
    busy = [card.busy_share for card in view.cards_of(plan)]
    known = [share for share in busy if share is not None]
    cpu = engine.cpu_share
    if not known or len(known) < len(busy) or cpu is None or not engine.generating:
        return None
    if plan.gpu_layers < plan.layers:
        return None  # layers that the plan leaves to the CPU keep it hot
    if max(known) >= alarm_limit("gpu_idle_share") or cpu < alarm_limit("cpu_hot_share"):
        return None
    shown, hot = show_share(max(known)), show_share(cpu)
    return Misplaced(
        Text(
            f"the cards are {shown} busy and its CPUs {hot} while it answers",
            f"生成回答时显卡占用 {shown}，而 CPU 占用 {hot}",
        ),
        f"GPU busy {max(known):.2f}, CPU share {cpu:.2f}, generating {engine.generating}",
    )


def _planned_bytes(plan: Plan, device: str) -> int:
    return sum(b.n_bytes for b in plan.budget if b.device == device and b.item in WEIGHT_ITEMS)


def _layers_finding(engine: EngineReading, plan: Plan, found: Misplaced | None) -> Finding:
    told = found or Misplaced(Text("", ""), "")
    return alarm_finding(
        "live.layers-on-cpu",
        Text(
            f"{engine.model_name} does not compute on the cards: {told.seen.en}.",
            f"{engine.model_name} 没有在显卡上计算：{told.seen.zh}。",
        ),
        evidence=(told.evidence, f"planned: {plan.gpu_layers} of {plan.layers} layers on GPUs"),
    )


def changed_cpus(engine: EngineReading, plan: Plan) -> Misplaced | None:
    """The engine's CPUs against the plan's; None: as planned, or not known."""
    allowed = engine.allowed_cpus
    if allowed is None or not plan.cpus or set(allowed) == set(plan.cpus):
        return None
    now, planned = listed(allowed), listed(plan.cpus)
    return Misplaced(
        Text(f"it may use CPU {now}, planned {planned}", f"它只能使用 CPU {now}，计划 {planned}"),
        f"Cpus_allowed_list {now}, planned {planned}",
        planned,
    )


def _cpus_finding(engine: EngineReading, found: Misplaced | None) -> Finding:
    told = found or Misplaced(Text("", ""), "")
    return alarm_finding(
        "live.wrong-cpus",
        Text(
            f"The CPUs of {engine.model_name} were changed: {told.seen.en}.",
            f"{engine.model_name} 的 CPU 被修改：{told.seen.zh}。",
        ),
        evidence=(told.evidence, f"pid {engine.pid}"),
        cpus=told.planned,
        pid=engine.pid or "PID",
    )


def listed(cpus: tuple[int, ...]) -> str:
    """CPUs as the kernel lists them: `0-3,8`."""
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
