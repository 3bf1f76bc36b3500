"""Tuning from the first trial to the plan that is kept: the loop on one screen."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from workhorse import __version__
from workhorse.bench.load import load_session
from workhorse.config import Places
from workhorse.errors import AppError
from workhorse.machine.files import DirectoryFiles
from workhorse.machine.load import Ticks, others_cpus, read_ticks
from workhorse.records import Plan
from workhorse.text import Text
from workhorse.tune.apply import apply
from workhorse.tune.experiment import USUAL_PAIRS, Arena, Rules, Seen
from workhorse.tune.fingerprint import build_key, fingerprint, model_key
from workhorse.tune.given import Given, Refusal
from workhorse.tune.history import Circumstances, History, Tuning, one_at_a_time
from workhorse.tune.kept import Kept, KeptPlans
from workhorse.tune.load import scenario_for_goal
from workhorse.tune.noise import Rule, fair_pairs, figures, judge, rule_for
from workhorse.tune.proof import Failure
from workhorse.tune.resume import (
    here_and_now,
    now,
    refuse_beside_service,
    standing,
    unknown_variables,
)
from workhorse.tune.search import Finished, Limits, is_second_look, kept_after, next_change
from workhorse.tune.side import CLOCK
from workhorse.tune.space import space_of
from workhorse.tune.tell import Teller, Tuned
from workhorse.tune.trial import Change, Outcome, Pair, Trial
from workhorse.tune.variables import Space
from workhorse.units import show_duration

# The last measurement decides nothing by looking often: so many pairs, all of them.
FINAL_PAIRS = 10
# Of the time, what it may take; it is kept back from the trials.
FINAL_SHARE, FINAL_LONGEST_S = 0.25, 120.0
# A trial without a decision ends: a difference so small is not worth the time of others. One of
# the looks of `noise.py`, some two minutes; fewer where the budget is short.
PAIRS_MAX = 64

HERE = DirectoryFiles(Path("/"))


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be tuned, and how long it may take."""

    given: Given
    budget_s: float | None = None  # None: until nothing is left
    only: tuple[str, ...] = ()  # variables; (): all
    golden: bool = True
    patience_s: float | None = None  # before an engine counts as hanging; None: by forecast


async def tune(wanted: Wanted, where: Places, tell: Teller) -> Tuned:
    """Find the best plan for this model here, prove it, keep it; goes on where the last one ended.

    AppError beside a running service or another tuning, when the plan itself does not work, or
    when a trial cannot be written down. Whatever ends it, no engine stays.
    """
    began_s = CLOCK()
    with one_at_a_time(where.tuning_lock):
        refuse_beside_service(where.run)
        history = History(where.tuning)
        stands = standing(wanted.given, history)
        given = here_and_now(stands.tuning, wanted.given)
        if stands.note is not None:
            tell.note(stands.note)
        tell.begun(given.goal, wanted.budget_s, stands.trials)
        rules = Rules(
            given.goal,
            given.machine,
            where.logs,
            wanted.golden,
            given.constraints.kl_divergence,
            wanted.patience_s,
            given.known_divergence,
        )
        async with load_session() as client:
            arena = Arena(rules, client, tell.pair, history.likely(stands.tuning))
            work = Work(
                replace(wanted, given=given),
                stands.tuning,
                history,
                arena,
                tell,
                began_s,
                where.run,
                list(stands.trials),
            )
            try:
                finished = await work.search()
                tuned = await work.conclude(finished)
            finally:
                await arena.close()
        history.keep_result(stands.tuning, tuned)
        if tuned.kept:
            KeptPlans(where.tuning).put(work.kept(tuned))
    return tuned


@dataclass(slots=True)
class Work:
    """One run of a tuning, from where it stands."""

    wanted: Wanted
    tuning: Tuning
    history: History
    arena: Arena
    tell: Teller
    began_s: float
    run_folder: Path  # of services of this installation
    trials: list[Trial] = field(default_factory=list)

    @property
    def given(self) -> Given:
        """What is tuned."""
        return self.wanted.given

    @property
    def spent_s(self) -> float:
        """How long this run has taken."""
        return CLOCK() - self.began_s

    @property
    def search_s(self) -> float | None:
        """What the trials may take: the budget without the last measurement."""
        budget_s = self.wanted.budget_s
        if budget_s is None:
            return None
        return budget_s - min(FINAL_SHARE * budget_s, FINAL_LONGEST_S)

    @property
    def deadline_s(self) -> float | None:
        """When the trials end, by the clock."""
        return None if self.search_s is None else self.began_s + self.search_s

    async def search(self) -> Finished:
        """Try one change after the other until nothing is left, or no time."""
        self.check_only()
        limits = Limits(budget_s=self.search_s)
        await self.arena.crown(self.plan_with(kept_after(self.trials)))
        self.warn_of_time()
        while True:
            kept = kept_after(self.trials)
            around = self.around(kept)
            step = next_change(around, self.trials, limits, spent_s=self.spent_s)
            if isinstance(step, Finished):
                if step.reason in ("tried", "forecast") and not self.wanted.only:
                    self.history.finish(self.tuning, now())
                return step
            refuse_beside_service(self.run_folder)  # one that was started meanwhile
            expected, ahead = expected_of(around, step), self.ahead(around, step)
            self.tell.trying(len(self.trials) + 1, step, expected, ahead)
            trial = await self.attempt(step, kept, expected, self.pairs_max(len(ahead) + 1))
            if trial is None:
                return out_of_time(kept)
            self.trials.append(trial)
            await self.arena.settle(accepted=trial.outcome == "accepted")
            self.tell.tried(trial, self.spent_s)

    def warn_of_time(self) -> None:
        """Say beforehand when the budget may not suffice for a single trial."""
        if self.search_s is None:
            return
        trial_s, left_s = self.arena.trial_s(), max(0.0, self.search_s - self.spent_s)
        if left_s >= trial_s:
            return
        # A run has some ten trials, and the rest of the budget is for the last measurement.
        minutes = math.ceil((10 * trial_s + self.spent_s) / (1 - FINAL_SHARE) / 60)
        left, needed = show_duration(left_s), show_duration(trial_s)
        self.tell.note(
            Text(
                f"A trial takes about {needed} here and {left} are left for trials: none may be "
                f"decided. Better --budget {minutes}m.",
                f"本机每次试验约需 {needed}，可用于试验的时间只剩 {left}，可能得不出任何结论。"
                f"建议 --budget {minutes}m。",
            )
        )

    def around(self, kept: Sequence[Change]) -> Space:
        """What can be tried around the incumbent, of what was asked for."""
        every, only = space_of(self.given, kept), self.wanted.only
        if not only:
            return every
        return replace(every, variables=tuple(v for v in every.variables if v.name in only))

    def check_only(self) -> None:
        """AppError when a variable that was asked for cannot be tried from the start plan."""
        known = sorted(variable.name for variable in space_of(self.given, ()).variables)
        if missing := [name for name in self.wanted.only if name not in known]:
            raise unknown_variables(missing, known)

    def ahead(self, around: Space, step: Change) -> tuple[str, ...]:
        """The variables that were not looked at yet, in order."""
        tried = {trial.change.variable for trial in self.trials} | {step.variable}
        return tuple(v.name for v in around.variables if v.name not in tried)

    def plan_with(self, changes: Sequence[Change]) -> Plan:
        """The start plan with changes that were accepted; AppError when it cannot be had now."""
        plan = apply(self.given, changes)
        if isinstance(plan, Refusal):
            raise AppError(
                plan.because,
                Text("Free memory, then tune again.", "请释放内存后重新调优。"),
            )
        return plan

    async def attempt(
        self, change: Change, kept: tuple[Change, ...], expected: float | None, pairs_max: int
    ) -> Trial | None:
        """Try one change and write down what came of it; None: the time was up before it told."""
        number = len(self.trials) + 1
        variables = {part.variable for part in change.parts}
        rule = rule_for(number, pairs_max=pairs_max)
        second = is_second_look(self.trials, change)
        plan = apply(self.given, (*kept, change))
        began_s, before = CLOCK(), read_ticks(HERE)
        if isinstance(plan, Refusal):
            seen = Seen(failure=Failure("refused", plan.because))
        else:
            seen = await self.arena.challenge(
                variables, plan, lambda pairs: self.enough(pairs, rule), self.deadline_s
            )
        outcome, why = outcome_of(seen, rule)
        if outcome is None:
            await self.arena.settle(accepted=False)
            return None
        ratio, interval = shown(seen.pairs)
        took_s = round(CLOCK() - began_s, 2)
        trial = Trial(
            number,
            change,
            kept,
            seen.pairs,
            outcome,
            ratio,
            interval,
            expected,
            took_s,
            why,
            second,
        )
        tried = None if isinstance(plan, Refusal) else plan
        others = self.other_cpus(before)
        conditions = Circumstances(now(), __version__, tried, others, seen.divergence)
        self.history.add(self.tuning, trial, conditions)
        if seen.divergence is not None:
            self.history.keep_likely(self.tuning, self.arena.reference)
        return trial

    def pairs_max(self, waiting: int) -> int:
        """How many pairs the next trial may take while so many variables wait."""
        if self.search_s is None:
            return PAIRS_MAX
        each = [trial.took_s / len(trial.pairs) for trial in self.trials if trial.pairs]
        pair_s = median(each) if each else self.arena.trial_s() / USUAL_PAIRS
        return fair_pairs(self.search_s - self.spent_s, waiting, pair_s, most=PAIRS_MAX)

    def enough(self, pairs: Sequence[Pair], rule: Rule) -> bool:
        """Whether a trial has told, or its time is up."""
        self_s = self.search_s
        late = self_s is not None and self.spent_s > self_s
        return late or judge(pairs, rule) is not None or len(pairs) >= rule.pairs_max

    def other_cpus(self, before: Ticks | None) -> float | None:
        """CPUs' worth of work of other processes since then."""
        pids = tuple(self.arena.pids)
        return others_cpus(before, read_ticks(HERE, pids), self.given.machine.limits.cpus)

    async def conclude(self, finished: Finished) -> Tuned:
        """Measure the best against the start once more: the trials chose it by its luck, too."""
        pairs: tuple[Pair, ...] = ()
        because: Text | None = None
        if finished.kept:
            self.tell.confirming(finished.kept)
            await self.arena.crown(self.given.plan)
            best = self.plan_with(finished.kept)
            # Not (): what has the same arithmetic has to answer alike, and this may not have it.
            changed = {part.variable for change in finished.kept for part in change.parts}
            seen = await self.arena.challenge(
                changed, best, lambda found: len(found) >= FINAL_PAIRS
            )
            pairs, because = seen.pairs, why_not_kept(seen)
        ratio, interval = shown(pairs)
        engine = self.plan_with(finished.kept).engine
        return Tuned(
            model=self.given.plan.model_name,
            engine=engine.version,
            goal=self.given.goal,
            began_at=self.tuning.began_at,
            changes=finished.kept,
            trials=tuple(self.trials),
            finished=finished,
            pairs=pairs,
            ratio=ratio,
            interval=interval,
            start_tokens_per_s=median(p.incumbent for p in pairs) if pairs else None,
            best_tokens_per_s=median(p.candidate for p in pairs) if pairs else None,
            kept=bool(pairs) and because is None,
            took_s=round(self.spent_s, 1),
            not_kept_because=because,
        )

    def kept(self, tuned: Tuned) -> Kept:
        """What the next `up` uses."""
        given, best = self.given, self.plan_with(tuned.changes)
        other = given.file_at(best.model_path)
        # Back at the start's own file: its path may be written otherwise the next time.
        changes = [c for c in tuned.changes if c.variable != "quant" or other is not None]
        speeds = sorted(pair.candidate for pair in tuned.pairs)
        load = scenario_for_goal(given.plan, given.goal, max(given.plan.slots, best.slots))
        return Kept(
            kept_at=now(),
            machine=fingerprint(given.machine),
            model=model_key(given.model),
            goal=given.goal,
            build=build_key(best.engine),
            changes=tuple(changes),
            ratio=tuned.ratio or 1.0,
            interval=tuned.interval,
            tokens_per_s=median(speeds),
            low_tokens_per_s=speeds[0],
            high_tokens_per_s=speeds[-1],
            prompt_tokens=load.prompt_tokens,
            streams=load.streams,
            file=None if other is None else model_key(other),
        )


def expected_of(around: Space, change: Change) -> float | None:
    """The forecast's ratio for a change; None where it cannot tell."""
    for variable in around.variables:
        for choice in variable.choices:
            if (variable.name, choice.value) == (change.variable, change.value):
                return choice.expected
    return None


def shown(pairs: Sequence[Pair]) -> tuple[float | None, tuple[float, float] | None]:
    """The ratio of candidate over incumbent and its interval; None where pairs do not tell."""
    return figures(pairs) if pairs else (None, None)


def outcome_of(seen: Seen, rule: Rule) -> tuple[Outcome | None, Text]:
    """What a trial was, and why; None: its time was up before it told."""
    if seen.failure is not None:
        return seen.failure.outcome, seen.failure.why
    judged = judge(seen.pairs, rule)
    count = len(seen.pairs)
    if judged == "better":
        return "accepted", Text(
            f"Better beyond noise in {count} rounds.", f"{count} 轮中的提升超出噪声。"
        )
    if judged == "worse":
        return "worse", Text(f"Slower in {count} rounds.", f"{count} 轮中更慢。")
    if judged == "no difference" or count >= rule.pairs_max:
        words = Text(
            f"No gain beyond noise in {count} rounds.", f"{count} 轮中没有超出噪声的提升。"
        )
        return "no difference", words
    return None, Text("The time was up.", "时间已到。")


def why_not_kept(seen: Seen) -> Text | None:
    """Why the best is not used although the trials accepted it; None: it is."""
    if seen.failure is not None:
        return Text(
            f"Not kept: it failed in the last measurement. {seen.failure.why.en}",
            f"未保留：最后的测量失败。{seen.failure.why.zh}",
        )
    _, interval = shown(seen.pairs)
    if interval is None or interval[0] <= 1:
        return Text(
            "Not kept: the last measurement against the start does not confirm the gain.",
            "未保留：与原方案的最后对比没有证实提升。",
        )
    return None


def out_of_time(kept: tuple[Change, ...]) -> Finished:
    """The search ended in the middle of a trial."""
    words = Text("The time is used up; tune again to go on.", "时间已用完；再次调优会继续。")
    return Finished("budget", words, kept)
