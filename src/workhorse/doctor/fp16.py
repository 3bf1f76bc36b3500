"""Whether a model is known to leave the range of FP16 on cards that have no BF16."""

from collections.abc import Sequence

from workhorse.doctor.card_kinds import CardKind
from workhorse.doctor.rule_words import sureness, symptom_after
from workhorse.knowledge.fp16_overflow import Fp16Overflow, overflows_of
from workhorse.records import EngineFound, Finding, Model
from workhorse.text import Text


def fp16_findings(
    engines: Sequence[EngineFound], kinds: Sequence[CardKind], model: Model | None
) -> list[Finding]:
    """The reports about this model on these cards, for llama.cpp and the engines that are here."""
    if model is None:
        return []
    here = {"any", "llama.cpp", *(engine.name for engine in engines)}
    if "pytorch" in here:
        here.add("transformers")
    return [
        _finding(report, kind, model)
        for report in overflows_of(model.architecture, model.name)
        if report.engine in here
        for kind in kinds
        if kind.capability is not None and report.on(kind.capability)
    ]


def _finding(report: Fp16Overflow, kind: CardKind, model: Model) -> Finding:
    engine = Text("every engine", "所有引擎") if report.engine == "any" else None
    where = engine or Text(report.engine, report.engine)
    return Finding(
        code=f"fp16.{report.id}",
        level="note" if report.handled else "warning",
        seen=Text(
            f"{model.name} ({model.architecture}) on {kind.label.en}, {where.en}: known to overflow"
            " in FP16.",
            f"{model.name}（{model.architecture}）在 {kind.label.zh} 上（{where.zh}）：已知在 FP16"
            " 下会溢出。",
        ),
        why=symptom_after(report.cause, report.symptom),
        remedy=report.remedy,
        source=report.source,
        evidence=(f"architecture {model.architecture}", f"name {model.name}"),
        sure=sureness(report.confidence),
    )
