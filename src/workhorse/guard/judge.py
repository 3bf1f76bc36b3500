"""Readings over time against baseline and plan: which alarms there are, and what is news. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from workhorse.guard import cards, engine_place, engine_weights, kernel_events, lost, room
from workhorse.guard.baseline import Baseline
from workhorse.guard.decode_speed import DecodeSpeed
from workhorse.guard.garbage import GarbageJudge
from workhorse.guard.hysteresis import Condition
from workhorse.guard.hysteresis import News as Kind
from workhorse.guard.limits import Limits
from workhorse.guard.sign import Sign, View, beside_in_memory, planned_cards
from workhorse.records import Alarm, CardReading, Finding, Plan, Reading

Key = tuple[str, str]  # code and subject
# What sick hardware can say in months is bounded; more subjects than this are a fault of ours.
CONDITIONS_MAX = 1000
# An engine that was replaced, or that nobody asks, tells nothing of what was wrong with it.
SILENT_S = 1800.0
DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class News:
    """An alarm that was raised, or that is over; each is told once."""

    kind: Kind
    alarm: Alarm


@dataclass(slots=True)
class _Watched:
    condition: Condition
    finding: Finding
    event: bool = False
    looked_s: float = 0.0
    ends_s: float | None = None  # of an event; None: it stays


class Judge:
    """Takes readings in the order of their time; the same readings give the same alarms."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        # Cards that must serve no more, by the latest reading: each is told when it happens, so
        # that an engine that was started there again since then is not ended for another card.
        self.condemned: frozenset[int] = frozenset()
        self._watched: dict[Key, _Watched] = {}
        self._before: Reading | None = None
        self._first: dict[int, CardReading] = {}
        self._alone: dict[int, int] = {}  # readings in which others answered, and it did not
        self._day: dict[int, tuple[float, CardReading]] = {}
        self._speeds: dict[str, tuple[Plan, DecodeSpeed]] = {}
        self._garbage: dict[str, GarbageJudge] = {}

    @property
    def alarms(self) -> tuple[Alarm, ...]:
        """What is wrong now, oldest first."""
        found = (self._alarm(key, one) for key, one in self._watched.items() if one.condition.open)
        return tuple(sorted(found, key=lambda alarm: alarm.since_unix_s))

    def baseline(self, name: str, plan: Plan) -> Baseline:
        """What is expected of an engine by its plan; with a new plan it begins anew."""
        return self._speed(name, plan).baseline

    def add(self, reading: Reading, plans: Mapping[str, Plan]) -> tuple[News, ...]:
        """Judge one reading; what is news by it. `plans`: of each model that is served."""
        view = View(reading, self._before, plans, self.limits)
        at_s = reading.at_unix_s
        for sign in self._signs(view):
            self._count(sign, at_s)
        self._end_silent(at_s)
        self._forget_gone(reading, at_s)
        told = kernel_events.condemned(view, self._first.values())
        self.condemned = frozenset((*told, *self._gone(view)))
        self._before = reading
        return tuple(
            News(kind, self._alarm(key, one))
            for key, one in self._watched.items()
            if (kind := one.condition.news(at_s)) is not None
        )

    def _signs(self, view: View) -> Iterator[Sign]:
        yield from kernel_events.look(view)
        yield from kernel_events.killed(view)
        yield from self._card_signs(view)
        yield from room.look(view)
        for engine in view.now.engines:
            yield from lost.look(view, engine)
            yield from room.look_queue(engine)
            yield from self._garbage.setdefault(engine.model_name, GarbageJudge()).look(engine)
            plan = view.plans.get(engine.model_name)
            if plan is None:
                continue
            yield from engine_place.look(view, engine, plan)
            yield from engine_weights.look(view, engine, plan)
            # Last: it learns only when nothing above is suspected.
            if beside_in_memory(view, engine, plan):
                continue  # it was measured alone: both are slower now, and neither is sick
            suspected = self.suspects(engine.model_name, plan)
            yield from self._speed(engine.model_name, plan).look(
                view, engine, plan, suspected=suspected
            )

    def _card_signs(self, view: View) -> Iterator[Sign]:
        used = {index for plan in view.plans.values() for index in planned_cards(plan)}
        for card in view.now.cards:
            if card.index in used:
                self._first.setdefault(card.index, card)
                yield from cards.look(view, card, self._as_the_day_began(card, view.now))
        for index, first in self._first.items():
            if index in used:
                yield kernel_events.silent(view, first)

    def _gone(self, view: View) -> tuple[int, ...]:
        """Cards that have just been silent for long enough while others answered.

        When none answers it is the driver's library, such as after its package was renewed:
        engines that hold the driver open go on computing, and those readings count for nothing.
        """
        if not view.now.cards:
            return ()
        found = []
        for index, first in self._first.items():
            silent = kernel_events.silent(view, first).bad
            self._alone[index] = self._alone.get(index, 0) + 1 if silent else 0
            if self._alone[index] == self.limits.raise_after:
                found.append(index)
        return tuple(found)

    def _as_the_day_began(self, card: CardReading, now: Reading) -> CardReading:
        """The card at the beginning of this day of watching: sound memory errs now and then."""
        began_s, then = self._day.get(card.index, (now.at_unix_s, card))
        if not 0 <= now.at_unix_s - began_s < DAY_S:
            began_s, then = now.at_unix_s, card
        self._day[card.index] = (began_s, then)
        return then

    def _speed(self, name: str, plan: Plan) -> DecodeSpeed:
        known = self._speeds.get(name)
        if known is None or known[0] != plan:
            known = self._speeds[name] = (plan, DecodeSpeed(Baseline(plan.forecast)))
        return known[1]

    def suspects(self, model_name: str, plan: Plan, *, but: str = "") -> bool:
        """May something be wrong with an engine or what it runs on, `but` for this code?"""
        subjects = {model_name, "RAM", *(f"GPU {index}" for index in planned_cards(plan))}
        return any(
            one.condition.suspected
            for (code, subject), one in self._watched.items()
            if subject in subjects and code != but
        )

    def _count(self, sign: Sign, at_s: float) -> None:
        key = (sign.code, sign.subject)
        one = self._watched.get(key)
        if one is None:
            if not sign.bad or len(self._watched) >= CONDITIONS_MAX:
                return
            condition = Condition(self.limits, at_once=sign.at_once)
            one = self._watched[key] = _Watched(condition, sign.finding(), event=sign.event)
        was_open, one.looked_s = one.condition.open, at_s
        if sign.event:
            if sign.bad:
                one.condition.look(True, at_s)
                one.ends_s = None if sign.holds_s is None else at_s + sign.holds_s
        else:
            one.condition.look(sign.bad, at_s)
        # The words are those of the moment in which it became an alarm.
        if one.condition.open and not was_open:
            one.finding = sign.finding()

    def _end_silent(self, at_s: float) -> None:
        """Events end after their time; what nothing tells any more is not known to be so."""
        for one in self._watched.values():
            ends_s = one.ends_s if one.event else one.looked_s + SILENT_S
            if ends_s is not None and at_s >= ends_s:
                one.condition.close(at_s)

    def _forget_gone(self, reading: Reading, at_s: float) -> None:
        """What was wrong with an engine is over when it is served no more."""
        before = self._before.engines if self._before else ()
        gone = {one.model_name for one in before} - {one.model_name for one in reading.engines}
        for (_, subject), one in self._watched.items():
            if subject in gone:
                one.condition.close(at_s)
        for name in gone:
            self._speeds.pop(name, None)
            self._garbage.pop(name, None)

    def _alarm(self, key: Key, one: _Watched) -> Alarm:
        condition = one.condition
        return Alarm(one.finding, condition.since_s, condition.over_s, key[1], condition.times)
