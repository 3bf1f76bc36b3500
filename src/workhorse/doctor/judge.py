"""The doctor's verdict on a whole machine, and on a model that shall run on it. Pure."""

from collections.abc import Callable

from workhorse.doctor.card_memory import judge_card_memory
from workhorse.doctor.card_modes import judge_card_modes
from workhorse.doctor.cards import judge_cards
from workhorse.doctor.events import judge_events
from workhorse.doctor.folding import fold, gather
from workhorse.doctor.gpu_access import judge_gpu_access
from workhorse.doctor.kernel import judge_kernel
from workhorse.doctor.links import judge_links
from workhorse.doctor.memory import judge_memory
from workhorse.doctor.opinion import Opinion
from workhorse.doctor.peers import judge_peers
from workhorse.doctor.processor import judge_processor
from workhorse.doctor.room import judge_room
from workhorse.doctor.software import judge_software
from workhorse.plan.planner import make_plan
from workhorse.plan.wish import Wish
from workhorse.records import EngineBuild, Finding, Level, Machine, Model, Verdict
from workhorse.text import Text
from workhorse.units import show_rate

# What could not be looked at stands behind everything else, under codes that begin so.
UNCHECKED = "unchecked."
_ORDER: dict[Level, int] = {"blocker": 0, "cause": 2, "warning": 2, "note": 3, "good": 4}
_NOTHING = Text("Nothing to do.", "无需处理。")


def access(machine: Machine) -> Opinion:
    """Whether programs reach the cards at all."""
    driver = machine.driver.version if machine.driver else None
    good = None
    if machine.gpus:
        count = len(machine.gpus)
        good = Text(
            f"NVIDIA driver {driver or '?'}: {count} card{'s' if count > 1 else ''} answer"
            f"{'' if count > 1 else 's'}.",
            f"NVIDIA 驱动 {driver or '?'}：{count} 张显卡可用。",
        )
    return Opinion(judge_gpu_access(machine), good)


def software(machine: Machine, model: Model | None) -> Opinion:
    """Whether driver, toolkits and engines suit the cards and each other."""
    toolkits, engines = machine.software.toolkits, machine.software.engines
    names = [f"CUDA {t.version}" for t in toolkits if t.version]
    names += [f"{e.name} {e.version or ''}".strip() for e in engines]
    listed = ", ".join(dict.fromkeys(names))
    good = Text(f"Software: {listed}.", f"软件：{listed}。") if listed else None
    return Opinion(judge_software(machine, model), good)


# Of two findings that cost the same, the one of the earlier subject is told first.
SUBJECTS: tuple[tuple[str, Callable[[Machine], Opinion]], ...] = (
    ("access", access),
    ("processor", judge_processor),
    ("card-memory", judge_card_memory),
    ("card-modes", judge_card_modes),
    ("cards", judge_cards),
    ("links", judge_links),
    ("events", judge_events),
    ("peers", judge_peers),
    ("memory", judge_memory),
    ("room", judge_room),
    ("kernel", judge_kernel),
)


def judge(
    machine: Machine, model: Model | None = None, build: EngineBuild | None = None
) -> Verdict:
    """All that is known to be wrong, dearest first; then what is well, and what was not looked at.

    With a model and an engine build also whether that model can run on this machine. A finding
    whose consequences were found as well carries them as evidence (see `folding`).
    """
    opinions = [(subject, look(machine)) for subject, look in SUBJECTS]
    opinions.append(("software", software(machine, model)))
    if model is not None and build is not None:
        opinions.append(("model", judge_model(machine, model, build)))
    wrong = gather(fold(f for _, opinion in opinions for f in opinion.findings))
    good = [
        well(subject, opinion.good)
        for subject, opinion in opinions
        if opinion.good is not None and all(f.level in ("note", "good") for f in opinion.findings)
    ]
    unchecked = [
        not_looked_at(subject, text) for subject, opinion in opinions for text in opinion.unchecked
    ]
    unchecked += [not_looked_at("doubt", doubt) for doubt in machine.doubts]
    return Verdict((*sorted(wrong, key=cost), *good, *dict.fromkeys(unchecked)))


def cost(finding: Finding) -> tuple[int, float]:
    """Sorts what costs the user most to the front: what blocks, what loses speed, then the rest."""
    if finding.level != "blocker" and finding.share_lost:
        return 1, -finding.share_lost
    return _ORDER[finding.level], -(finding.share_lost or 0.0)


def judge_model(machine: Machine, model: Model, build: EngineBuild) -> Opinion:
    """Whether the model fits, and what the plan for it has to say."""
    plan = make_plan(machine, model, build, Wish())
    # The plan repeats the machine's doubts, which stand in the doctor's own list.
    findings = tuple(f for f in plan.verdict.findings if f.code != "probe.doubt")
    decode = plan.forecast.decode_tokens_per_s
    speed = show_rate(decode.value) if decode is not None else None
    told, told_zh = (f", about {speed}", f"，约 {speed}") if speed else ("", "")
    good = Text(
        f"{model.name} fits: {plan.device}, {plan.slots} × {plan.context_tokens} tokens{told}.",
        f"{model.name} 放得下：{plan.device}，"
        f"{plan.slots} × {plan.context_tokens} token{told_zh}。",
    )
    return Opinion(findings, good)


def well(subject: str, text: Text) -> Finding:
    """One line for a subject that was looked at and found well."""
    return Finding(
        code=f"good.{subject}",
        level="good",
        seen=text,
        why=Text("Looked at and found well.", "已检查，状况良好。"),
        remedy=_NOTHING,
        source="probe",
    )


def not_looked_at(subject: str, text: Text) -> Finding:
    """One line for what is not known, and of which nothing is claimed."""
    return Finding(
        code=f"{UNCHECKED}{subject}",
        level="note",
        seen=text,
        why=Text("Not known, so nothing is claimed of it.", "情况未知，因此不作判断。"),
        remedy=_NOTHING,
        source="probe",
        sure="possible",
    )
