"""Where a token's time goes, reckoned on worlds whose terms are known."""

import random
from dataclasses import replace
from math import fsum, isclose

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workhorse.bench.attribution import Known, attribute, clock_of, measured, timed, whole_rounds
from workhorse.bench.attribution_doubts import Seen, judge
from workhorse.records import CardSample, Estimate, Run, Sample, Term, Timed
from workhorse.records.attribution import Variant
from workhorse.text import Text, same

DEEP, SHALLOW = 868.0, 66.0
VARIANTS: tuple[Variant, ...] = ("whole", "direct", "plain sampling", "shallow", "together")


class World:
    """A service with known parts of a token's time, in seconds, and noise on every request."""

    def __init__(self, seed: int, noise: float = 0.0) -> None:
        self.chance = random.Random(seed)
        self.noise = noise
        self.memory, self.kv, self.attention = 8e-3, 0.5e-3, 1.2e-3
        self.sampling, self.rest, self.delivery = 0.2e-3, 3e-3, 0.1e-3
        self.gateway, self.pauses, self.own = 0.4e-3, 1.3e-3, 0.6e-3

    @property
    def truth(self) -> dict[str, float]:
        return {
            "memory": self.memory,
            "attention": self.attention,
            "sampling": self.sampling,
            "rest": self.rest,
            "delivery": self.delivery,
            "gateway": self.gateway,
            "pauses": self.pauses,
        }

    @property
    def known(self) -> Known:
        ceiling = 1 / self.memory
        return Known(Estimate(ceiling, ceiling, ceiling, "tok/s", "measured", same("x")), self.kv)

    def ask(self, variant: Variant) -> Timed:
        depth = SHALLOW if variant == "shallow" else DEEP
        context = (self.kv + self.attention) * depth / DEEP
        engine = self.memory - self.kv + context + self.rest + self.sampling + self.pauses
        if variant == "plain sampling":
            engine -= self.sampling
        if variant == "together":
            engine += self.own + self.sampling + context
        engine *= self.chance.gauss(1, self.noise)
        client = engine + self.delivery * self.chance.gauss(1, self.noise)
        if variant == "whole":
            client += self.gateway * self.chance.gauss(1, self.noise)
        return Timed(variant, client, self.pauses, engine, depth)

    def rounds(self, count: int, variants: tuple[Variant, ...] = VARIANTS) -> list[list[Timed]]:
        return [[self.ask(variant) for variant in variants] for _ in range(count)]


def by_code(terms: tuple[Term, ...]) -> dict[str, Term]:
    return {term.code: term for term in terms}


def test_every_term_is_found_where_nothing_disturbs() -> None:
    world = World(1)
    terms = attribute(world.rounds(3), world.known)
    assert [term.code for term in terms] == list(world.truth)
    for code, term in by_code(terms).items():
        assert isclose(term.seconds, world.truth[code], rel_tol=1e-9), code
    own, shared = by_code(terms)["rest"].bounds
    assert isclose(own.high_s, world.own + world.sampling, rel_tol=1e-6)
    assert isclose(shared.low_s, world.rest - own.high_s, rel_tol=1e-6)


seconds = st.floats(1e-5, 0.1)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries({v: st.tuples(seconds, seconds, st.floats(0, 1)) for v in VARIANTS}),
        min_size=2,
        max_size=8,
    ),
    st.sets(st.sampled_from(VARIANTS[1:])),
    st.booleans(),
    st.one_of(st.none(), st.floats(1, 1e4)),
)
def test_whatever_was_measured_the_terms_add_up_to_it(
    figures: list[dict[Variant, tuple[float, float, float]]],
    left_out: set[Variant],
    engine_tells: bool,
    ceiling: float | None,
) -> None:
    rounds = [
        [
            Timed(
                variant,
                client,
                paused * client,
                engine if engine_tells else None,
                SHALLOW if variant == "shallow" else DEEP,
            )
            for variant, (client, engine, paused) in one.items()
            if variant not in left_out
        ]
        for one in figures
    ]
    known = Known()
    if ceiling is not None:
        known = Known(Estimate(ceiling, ceiling, ceiling, "tok/s", "measured", same("x")), 1e-4)
    terms = attribute(rounds, known)
    total, low, high = measured(whole_rounds(rounds))
    assert isclose(fsum(term.seconds for term in terms), total, rel_tol=1e-12, abs_tol=1e-15)
    assert low <= total <= high
    for term in terms:
        assert term.low_s <= term.seconds + 1e-12
        assert term.seconds - 1e-12 <= term.high_s
        for bound in term.bounds:
            assert 0 <= bound.low_s <= bound.high_s
    codes = {f.code for f in judge(terms, (total, low, high), Seen(len(rounds))).findings}
    said = {"bench-explain-below-zero", "bench-explain-ceiling"} & codes
    assert bool(said) == any(term.seconds < 0 for term in terms)


def test_the_intervals_hold_the_truth_as_often_as_they_promise() -> None:
    held: dict[str, int] = {}
    worlds = 200
    for seed in range(worlds):
        world = World(seed, noise=0.02)
        for code, term in by_code(attribute(world.rounds(5), world.known)).items():
            held[code] = held.get(code, 0) + (
                term.low_s - 1e-12 <= world.truth[code] <= term.high_s + 1e-12
            )
    # 95 % of 200 with the spread of a binomial: fewer than 180 would come once in 10,000 runs.
    assert all(count >= 180 for count in held.values()), held


def test_without_the_engines_port_the_gateway_is_joined_with_delivery() -> None:
    world = World(3)
    known = replace(world.known, has_gateway=True)
    terms = by_code(attribute(world.rounds(2, ("whole", "shallow")), known))
    assert set(terms) == {"memory", "attention", "rest", "delivery", "pauses"}
    assert isclose(terms["delivery"].seconds, world.delivery + world.gateway, rel_tol=1e-9)
    assert "gateway" in terms["delivery"].what.en
    assert "sampling" in terms["rest"].how.en


def test_a_service_that_tells_nothing_still_has_a_bar() -> None:
    rounds = [[replace(one, engine_token_s=None) for one in World(4).rounds(1)[0][:1]]] * 2
    terms = by_code(attribute(rounds, Known()))
    assert set(terms) == {"rest", "pauses"}
    for word in ("reading memory", "attention", "gateway"):
        assert word in terms["rest"].how.en


def test_faster_than_the_ceiling_is_said() -> None:
    world = World(5)
    slow = Estimate(50.0, 50.0, 50.0, "tok/s", "measured", same("x"))
    rounds = world.rounds(3)
    terms = attribute(rounds, Known(slow))
    assert by_code(terms)["rest"].seconds < 0
    verdict = judge(terms, measured(whole_rounds(rounds)), Seen(3))
    assert "bench-explain-ceiling" in {finding.code for finding in verdict.findings}


@pytest.mark.parametrize("count", [0, 1])
def test_one_round_is_too_few(count: int) -> None:
    with pytest.raises(ValueError, match="too few"):
        attribute(World(6).rounds(count), Known())


def test_rounds_with_a_failed_request_are_left_out() -> None:
    world = World(7)
    rounds = [*world.rounds(3), world.rounds(1)[0][1:]]
    assert len(whole_rounds(rounds)) == 3


def run(*arrivals_s: float, **changes: object) -> Run:
    plain = Run(0, 768, 0, len(arrivals_s), arrivals_s, 9.0)
    return replace(plain, **changes)  # type: ignore[arg-type]


def test_a_pause_is_told_from_tokens_that_come_in_pairs() -> None:
    pairs = timed("whole", run(*(second // 2 * 0.02 for second in range(40))))
    assert pairs is not None
    assert pairs.paused_s == 0
    steady = [0.01 * n for n in range(20)]
    late = [*steady, *(second + 0.5 for second in (0.2 + 0.01 * n for n in range(20)))]
    found = timed("whole", run(*late, engine_decode_s=0.8))
    assert found is not None
    assert isclose(found.paused_s * 39, 0.5, rel_tol=0.05)
    assert found.engine_token_s == 0.8 / 39
    assert found.depth_tokens == 768 + 20


def test_what_was_caught_up_is_no_pause() -> None:
    """One piece is half a second late, the next nine come with it, and the last is on time."""
    late = [0.01 * n if n < 10 or n > 60 else max(0.01 * n, 0.6) for n in range(80)]
    found = timed("whole", run(*late))
    assert found is not None
    assert found.paused_s == 0


def test_a_pause_behind_the_engine_is_not_taken_from_its_own_time() -> None:
    held_up = Timed("whole", 0.030, 0.010, 0.020, DEEP)
    own = Timed("whole", 0.030, 0.010, 0.0299, DEEP)
    assert isclose(by_code(attribute([[held_up]] * 2, Known()))["rest"].seconds, 0.020)
    assert isclose(by_code(attribute([[own]] * 2, Known()))["rest"].seconds, 0.0199)


@pytest.mark.parametrize(
    "broken",
    [run(), run(1.0), run(1.0, 1.0), run(1.0, 2.0, error="gone"), run(1.0, 2.0, output_tokens=0)],
)
def test_what_tells_no_time_is_nothing(broken: Run) -> None:
    assert timed("whole", broken) is None


def test_doubts_name_what_was_seen() -> None:
    terms = attribute(World(8).rounds(3), World(8).known)
    seen = Seen(3, failed=1, shared_rounds=2, other_cpus=0.5, cpus=2, drafted=True)
    found = {f.code: f for f in judge(terms, (0.01, 0.008, 0.012), seen).findings}
    for code in ("spread", "drafts", "shared", "busy-host", "errors"):
        assert f"bench-explain-{code}" in found
    assert found["bench-explain-largest"].seen.en.startswith("The largest loss that is sure: rest")
    assert judge(terms, (0.0132, 0.0131, 0.0133), Seen(3)).findings[-1].remedy != Text("", "")


def test_a_clock_below_its_most_bounds_a_part_of_the_rest() -> None:
    world = World(9)
    samples = [Sample(0.0, cpu_mhz=3000.0), Sample(1.0, cpu_mhz=2000.0)]
    clock = clock_of(samples)
    assert clock is not None
    assert (clock.mean_mhz, clock.most_mhz) == (2500.0, 3000.0)
    assert clock_of(samples, 4000.0) == replace(clock, most_mhz=4000.0)
    assert clock_of([Sample(0.0)]) is None
    busy = CardSample(0, sm_clock_mhz=1000, busy_share=0.9)
    idle = CardSample(1, sm_clock_mhz=100, busy_share=0.0)
    card = clock_of([Sample(0.0, cards=(busy, idle), cpu_mhz=9.0)])
    assert card is not None
    assert card.mean_mhz == 1000
    terms = attribute(world.rounds(3), replace(world.known, clock=clock))
    rest = by_code(terms)["rest"]
    assert isclose(rest.bounds[-1].high_s, rest.high_s / 6, rel_tol=1e-9)
    assert "2500 of 3000 MHz" in rest.bounds[-1].how.en


def test_a_card_that_is_held_back_is_a_doubt() -> None:
    held = CardSample(0, sm_clock_mhz=900, busy_share=1.0, throttled_by=("sw_thermal_slowdown",))
    seen = Seen(3, samples=tuple(Sample(float(n), cards=(held,)) for n in range(3)))
    terms = attribute(World(8).rounds(3), World(8).known)
    codes = {finding.code for finding in judge(terms, (0.01, 0.0099, 0.0101), seen).findings}
    assert "bench-throttled" in codes
