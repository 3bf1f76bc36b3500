"""A sign: one subject, looked at once. Its words are made only when an alarm is raised. Pure."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from workhorse.guard.limits import Limits
from workhorse.knowledge.alarms import alarm_wordings
from workhorse.records import CardReading, EngineReading, Finding, Level, Plan, Reading
from workhorse.text import Text

READY = "ready"


@dataclass(frozen=True, slots=True)
class Sign:
    """Whether one condition holds of one subject now; no sign at all: nothing is known of it.

    `at_once`: one such sign is enough. `holds_s`: it is about an event, that stays an alarm for
    this time (None: as long as the service runs).
    """

    code: str
    subject: str
    bad: bool
    finding: Callable[[], Finding]
    at_once: bool = False
    event: bool = False
    holds_s: float | None = None


@dataclass(frozen=True, slots=True)
class View:
    """What the judges of single subjects look at."""

    now: Reading
    before: Reading | None
    plans: Mapping[str, Plan]
    limits: Limits

    @property
    def passed_s(self) -> float | None:
        """Seconds since the reading before; None: there was none, or the clock was set."""
        if self.before is None:
            return None
        passed = self.now.at_unix_s - self.before.at_unix_s
        return passed if passed > 0 else None

    def earlier(self, engine: EngineReading) -> EngineReading | None:
        """The same process a reading ago."""
        for other in self.before.engines if self.before else ():
            if other.model_name == engine.model_name and other.pid == engine.pid:
                return other
        return None

    def earlier_card(self, card: CardReading) -> CardReading | None:
        """The same card a reading ago."""
        for other in self.before.cards if self.before else ():
            if (other.uuid, other.index) == (card.uuid, card.index):
                return other
        return None

    def cards_of(self, plan: Plan) -> tuple[CardReading, ...]:
        """The cards that a plan uses."""
        used = planned_cards(plan)
        return tuple(card for card in self.now.cards if card.index in used)


def one_name_each(names: Iterable[str]) -> tuple[str, ...]:
    """Names with a number where several engines serve one model: `a`, `a (2)`, `b`."""
    seen: dict[str, int] = {}
    found = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        found.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return tuple(found)


def planned_cards(plan: Plan) -> tuple[int, ...]:
    """The indexes of the cards that a plan uses."""
    return plan.gpu_indexes or (() if plan.gpu_index is None else (plan.gpu_index,))


def beside_in_memory(view: View, engine: EngineReading, plan: Plan) -> bool:
    """Whether another engine of the service reads the same main memory at this moment."""
    if planned_cards(plan):
        return False
    return any(
        other.generating > 0
        and other.model_name != engine.model_name
        and (theirs := view.plans.get(other.model_name)) is not None
        and not planned_cards(theirs)
        and same_memory(plan, theirs)
        for other in view.now.engines
    )


def same_memory(one: Plan, other: Plan) -> bool:
    """Whether two plans may have weights on the same memory node."""
    if one.memory_nodes is None or other.memory_nodes is None:
        return True
    return bool(set(one.memory_nodes) & set(other.memory_nodes))


def card_subject(card: CardReading) -> str:
    """How alarms name a card."""
    return f"GPU {card.index}"


def card_words(card: CardReading) -> Text:
    """A card as a sentence calls it."""
    return Text(f"GPU {card.index} ({card.name})", f"GPU {card.index}（{card.name}）")


def alarm_finding(
    code: str,
    seen: Text,
    *,
    evidence: Iterable[str] = (),
    share_lost: float | None = None,
    level: Level | None = None,
    sure: Literal["certain", "likely", "possible"] | None = None,
    cause: str | None = None,
    **values: object,
) -> Finding:
    """The finding `code` in the words of knowledge/alarms.toml.

    `cause` names the row whose reason, step and command speak in place of its own; `values` fill
    the places in the command.
    """
    own = alarm_wordings()[code]
    row = own if cause is None else alarm_wordings()[cause]
    return Finding(
        code=code,
        level=level or own.level,
        seen=seen,
        why=Text(row.why_en, row.why_zh),
        remedy=Text(row.step_en, row.step_zh),
        source=row.source if cause is None else f"{own.source}; {row.source}",
        command=row.command.format(**values) if row.command else None,
        evidence=tuple(evidence),
        share_lost=share_lost,
        sure=sure or row.sure,
    )
