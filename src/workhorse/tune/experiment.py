"""One trial: a candidate's engine beside the incumbent's, measured in turns; whatever comes of it.

Both engines are loaded at a time where memory allows, and the one that waits is held by the kernel;
where it does not, they are started and stopped alternately. Whatever a candidate does, crash, take
all memory or hang, is a result. Both processes are owned here.
"""

import asyncio
import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import aiohttp

from workhorse.engines.verify import GOLDEN_TOKENS
from workhorse.errors import AppError
from workhorse.records import Machine, Plan
from workhorse.text import Text
from workhorse.tune.failures import (
    CandidateFailed,
    OutOfTime,
    failure_of,
    kernel_kills,
    too_far,
    unsound,
)
from workhorse.tune.load import (
    OWN_PROMPT_S,
    PROMPT_S,
    both_fit,
    patience_s,
    round_s,
    scenario_for_goal,
)
from workhorse.tune.proof import Failure, other_words, prove
from workhorse.tune.quality import Likely, divergence
from workhorse.tune.side import CLOCK, Load, Overdue, Side
from workhorse.tune.trial import Goal, Pair

# A model may take long to read from an old disk: 70 GB at 100 MB/s are twelve minutes.
READY_TIMEOUT_S = 1800.0
# A candidate reads the same file, from memory: what takes it so many times as long hangs.
READY_TIMES, LEAST_READY_S = 10.0, 60.0
# Rounds at each start where engines take turns on the memory: a start costs more than a round.
ROUNDS_A_START = 3
# A candidate that is so many times slower than the incumbent need not be waited for.
SLOW_TIMES, LEAST_SLOW_S = 8.0, 10.0
# Of so many rounds a gain of a tenth needs to be shown at the noise of a usual machine
# (docs/measured/2026-11-30-tune-simulated.md: 15 to 24 pairs).
USUAL_PAIRS = 20
# What may change which tokens are likely, and is compared where a limit was set.
CHANGES_QUALITY = frozenset({"kv", "quant"})

Enough = Callable[[Sequence[Pair]], bool]


@dataclass(frozen=True, slots=True)
class Rules:
    """What every trial of a tuning has in common."""

    goal: Goal
    machine: Machine  # as it was before any engine ran
    logs: Path
    golden: bool = True  # judge the first answer: not for random weights
    kl_divergence: float | None = None
    patience_s: float | None = None  # before an engine counts as hanging; None: by forecast
    # A plan's KL divergence where it was measured before; None: it has to be measured here.
    known_divergence: Callable[[Plan], float | None] = lambda _: None


@dataclass(frozen=True, slots=True)
class Seen:
    """What was measured, and why no more of it; the failure is the candidate's."""

    pairs: tuple[Pair, ...] = ()
    failure: Failure | None = None
    divergence: float | None = None


class Arena:
    """The owner of the incumbent's engine and of one candidate's."""

    def __init__(
        self,
        rules: Rules,
        client: aiohttp.ClientSession,
        on_pair: Callable[[Sequence[Pair]], None],
        reference: Sequence[Likely] = (),
    ) -> None:
        self.rules = rules
        self.reference = tuple(reference)  # next tokens of the plan's own weights and KV
        self._client, self._on_pair = client, on_pair
        self._incumbent: Side | None = None
        self._candidate: Side | None = None
        self._words = ""  # what the incumbent answered first
        self._candidate_words = ""
        self._seen_tokens_per_s: float | None = None  # decode on this machine as busy as it is
        self._start_s = 0.0  # of the incumbent: until it had answered
        self._deadline_s: float | None = None
        self._usual_s: dict[str, float] = {}  # what the incumbent's steps took at most

    @property
    def incumbent(self) -> Side:
        """The side to beat; `crown` makes one."""
        if self._incumbent is None:
            raise RuntimeError("nothing is tried before there is an incumbent")
        return self._incumbent

    @property
    def pids(self) -> tuple[int, ...]:
        """The engines' processes."""
        sides = (side for side in (self._incumbent, self._candidate) if side is not None)
        return tuple(s.process.pid for s in sides if s.process is not None and s.process.pid)

    async def crown(self, plan: Plan) -> None:
        """Start a plan as the incumbent, in the place of all that runs.

        AppError when it does not start, or what it says is not sound.
        """
        await self.close()
        self._incumbent = side = Side(plan, self._log())
        start_s = CLOCK()
        await side.start(READY_TIMEOUT_S)
        began_s = CLOCK()
        proof = await prove(side, golden=self.rules.golden)
        # The prompt is in that time, too: about a half of it.
        self._seen_tokens_per_s = 2 * GOLDEN_TOKENS / (CLOCK() - began_s)
        if proof.failure is not None:
            raise unsound(proof.failure)
        self._words = proof.words
        self._start_s = CLOCK() - start_s

    def trial_s(self) -> float:
        """About how long a trial takes that shows a fair gain, by the incumbent's start."""
        plan, seen = self.incumbent.plan, self._seen_tokens_per_s
        scenario = scenario_for_goal(plan, self.rules.goal, plan.slots, seen)
        one_s = round_s(plan, scenario, seen)
        starts = 1 if self._together(plan) else 2 * -(-USUAL_PAIRS // ROUNDS_A_START)
        return starts * self._start_s + 2 * USUAL_PAIRS * one_s

    async def challenge(
        self,
        variables: Collection[str],
        plan: Plan,
        enough: Enough,
        deadline_s: float | None = None,
    ) -> Seen:
        """Measure a plan beside the incumbent until `enough` says so; `settle` ends the trial.

        `variables` were changed: they decide what both plans have to have in common. At
        `deadline_s` by the clock it ends with the pairs that there are.

        AppError when the incumbent itself fails, twice, or this machine does.
        """
        known, limit = self.rules.known_divergence(plan), self.rules.kl_divergence
        judged = not CHANGES_QUALITY.isdisjoint(variables)
        if judged and limit is not None and known is not None and known > limit:
            return Seen(failure=too_far(known, limit), divergence=known)
        kills = kernel_kills()
        self._candidate = candidate = Side(plan, self._log())
        self._deadline_s, self._usual_s = deadline_s, {}
        together = self._together(plan)
        seen = Seen()
        try:
            await self._yield_to(candidate, together=together)
            failure, distance = await self._admit(variables, candidate)
            seen = Seen(failure=failure, divergence=distance)
            if failure is None:
                pairs: list[Pair] = []
                try:
                    await self._rounds(candidate, enough, pairs, together=together)
                finally:
                    seen = Seen(tuple(pairs), None, distance)
        except OutOfTime:
            pass
        except CandidateFailed as failed:
            killed = kernel_kills() > kills
            failure = failure_of(candidate, failed.error, killed=killed)
            seen = Seen(seen.pairs, failure, seen.divergence)
        return seen

    async def settle(self, *, accepted: bool) -> None:
        """End the trial: the candidate takes the incumbent's place, or goes."""
        candidate, self._candidate = self._candidate, None
        if candidate is None:
            return
        loser = candidate
        if accepted:
            loser, self._incumbent = self.incumbent, candidate
            self._words = self._candidate_words  # its rounding may differ
        await loser.stop()

    async def close(self) -> None:
        """End both engines; safe at any time and more than once."""
        sides = [side for side in (self._candidate, self._incumbent) if side is not None]
        self._candidate = self._incumbent = None
        # Cancelled, each of them kills its engine; one that does not end must not keep the other.
        ends = await asyncio.gather(*(side.stop() for side in sides), return_exceptions=True)
        for error in ends:
            if error is not None:
                raise error

    # one trial

    async def _admit(
        self, variables: Collection[str], candidate: Side
    ) -> tuple[Failure | None, float | None]:
        """What speaks against measuring the candidate, and how far its next tokens are off."""
        try:
            proof = await prove(candidate, golden=self.rules.golden)
        except AppError as error:
            raise CandidateFailed(error) from error
        self._candidate_words = proof.words
        failure = proof.failure or other_words(variables, proof.words, self._words)
        limit = self.rules.kl_divergence
        if failure is not None or limit is None or CHANGES_QUALITY.isdisjoint(variables):
            return failure, None
        return await self._judge_quality(candidate, limit)

    async def _judge_quality(
        self, candidate: Side, limit: float
    ) -> tuple[Failure | None, float | None]:
        """The reference is taken in any case: later trials are compared with the first weights."""
        known = self.rules.known_divergence(candidate.plan)
        try:
            theirs = () if known is not None else await candidate.likely(self._client)
        except AppError as error:
            raise CandidateFailed(error) from error
        if not self.reference:
            await self._visit(self.incumbent, candidate, together=self._together(candidate.plan))
            self.reference = await self.incumbent.likely(self._client)
        distance = divergence(self.reference, theirs) if known is None else known
        if distance is None:
            why = Text(
                "The engine does not tell probabilities: its quality cannot be compared.",
                "引擎不提供概率，无法比较质量。",
            )
            return Failure("refused", why), None
        return (too_far(distance, limit) if distance > limit else None), distance

    async def _rounds(
        self, candidate: Side, enough: Enough, pairs: list[Pair], *, together: bool
    ) -> None:
        load = self._load(candidate)
        count = 1 if together else ROUNDS_A_START
        first, second = self.incumbent, candidate  # its times bound those of the candidate
        while not enough(pairs):
            speeds = {}
            for side, other in ((first, second), (second, first)):
                speeds[side is candidate] = await self._speeds(
                    side, other, load, count, together=together
                )
            pairs += map(Pair, speeds[True], speeds[False])
            self._on_pair(pairs)
            if self.rules.goal == "decode":
                self._seen_tokens_per_s = median(pair.incumbent for pair in pairs)
            first, second = second, first

    async def _speeds(
        self, side: Side, other: Side, load: Load, count: int, *, together: bool
    ) -> list[float]:
        """Some rounds of one side; the incumbent gets a second try after a new start."""
        for again in (True, False):
            try:
                await self._visit(side, other, together=together)
                began_s = CLOCK()
                await side.prepare(self._client, load, self._limit_s("prepare", side, load))
                prepared_s = CLOCK()
                self._note("prepare", side, prepared_s - began_s)
                limit_s = self._limit_s("measure", side, load)
                speeds = [await side.measure(limit_s) for _ in range(count)]
                self._note("measure", side, (CLOCK() - prepared_s) / count)
                return speeds
            except AppError as error:
                if isinstance(error, Overdue) and self._late:
                    raise OutOfTime from error
                if side is not self._incumbent:
                    raise CandidateFailed(error) from error
                if not again:
                    raise
                await side.stop()
        raise AssertionError("the second try returns or raises")

    @property
    def _late(self) -> bool:
        return self._deadline_s is not None and CLOCK() > self._deadline_s

    def _note(self, step: str, side: Side, took_s: float) -> None:
        if side is self._incumbent:
            self._usual_s[step] = max(took_s, self._usual_s.get(step, 0.0))

    def _limit_s(self, step: str, side: Side, load: Load) -> float:
        """How long a step may take: by the incumbent's time, and to the deadline at most."""
        limit_s = load.patience_s
        if side is not self._incumbent and step in self._usual_s:
            limit_s = min(limit_s, max(LEAST_SLOW_S, SLOW_TIMES * self._usual_s[step]))
        if self._deadline_s is not None:
            limit_s = min(limit_s, max(0.0, self._deadline_s - CLOCK()))
        return limit_s

    async def _visit(self, side: Side, other: Side, *, together: bool) -> None:
        """Give the machine to one side."""
        if together:
            other.hold()
        else:
            await other.stop()
        side.release()
        if not side.lives:
            await side.start(self._ready_s(side))

    async def _yield_to(self, candidate: Side, *, together: bool) -> None:
        try:
            await self._visit(candidate, self.incumbent, together=together)
        except AppError as error:
            if self.incumbent.lives and not together:
                raise  # it did not end: nothing was tried yet
            raise CandidateFailed(error) from error

    def _load(self, candidate: Side) -> Load:
        streams = max(candidate.plan.slots, self.incumbent.plan.slots)
        seen = self._seen_tokens_per_s
        drafts = candidate.plan.drafts is not None or self.incumbent.plan.drafts is not None
        scenario = scenario_for_goal(
            self.incumbent.plan,
            self.rules.goal,
            streams,
            seen,
            prompt_s=OWN_PROMPT_S if drafts else PROMPT_S,
        )
        limit_s = self.rules.patience_s or patience_s(self.incumbent.plan, scenario)
        return Load(self.rules.goal, scenario, secrets.randbits(32), limit_s, drafts)

    def _together(self, plan: Plan) -> bool:
        pooled = plan.pool is not None or self.incumbent.plan.pool is not None
        return not pooled and both_fit(self.rules.machine, self.incumbent.plan, plan)

    def _ready_s(self, side: Side) -> float:
        if side is self._incumbent:
            return READY_TIMEOUT_S
        usual_s = READY_TIMES * self.incumbent.ready_after_s
        return self.rules.patience_s or max(LEAST_READY_S, usual_s)

    def _log(self) -> Path:
        """A log's name that neither engine writes to."""
        taken = {side.log_path for side in (self._incumbent, self._candidate) if side}
        names = (self.rules.logs / f"tune-{letter}.log" for letter in "abc")
        return next(path for path in names if path not in taken)
