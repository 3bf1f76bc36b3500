"""The simulated queue against what queueing theory knows exactly, and the real admission."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from workhorse.fleet.queue_simulation import Group, Passed, Requests, Rules, simulate
from workhorse.fleet.replica_speeds import Speeds
from workhorse.serve.admission import Admission
from workhorse.serve.decisions import Bid, Grant, Lane, Standing

ENDLESS = Rules(queue_length=None, longest_wait_s=None)
STEP_S = 0.01
WORK_TOKENS = 100.0  # of one answer on average: a service time of one second
COUNT = 20_000


def servers(count: int) -> list[Group]:
    """Equal servers of theory: one slot each, no prompts."""
    return [Group(Speeds(1, 1e9, (STEP_S,)), count)]


def poisson(rate: float, outputs: np.ndarray, seed: int) -> Requests:
    chance = np.random.default_rng(seed)
    arrivals = np.cumsum(chance.exponential(1 / rate, len(outputs)))
    return Requests(arrivals, np.zeros(len(outputs)), 1 + outputs)  # the first token takes no step


def exponential(seed: int, count: int = COUNT) -> np.ndarray:
    return np.random.default_rng(1000 + seed).exponential(WORK_TOKENS, count)


def waits(passed: Passed) -> np.ndarray:
    return (passed.granted_s - passed.arrived_s)[len(passed.granted_s) // 10 :]


def mean_wait(
    groups: Sequence[Group], rate: float, lengths: str, seeds: int
) -> tuple[float, float]:
    """Mean wait over seeds, and four standard errors of it: a fair one is not beyond in a lifetime
    of runs, and the seeds are fixed besides."""
    found = []
    for seed in range(seeds):
        outputs = exponential(seed) if lengths == "exponential" else np.full(COUNT, WORK_TOKENS)
        found.append(waits(simulate(groups, poisson(rate, outputs, seed), ENDLESS)).mean())
    return float(np.mean(found)), 4 * float(np.std(found, ddof=1)) / math.sqrt(seeds)


def erlang_c(servers: int, offered: float) -> float:
    """By its definition, sums of factorials: not as the product reckons it."""
    below = sum(offered**k / math.factorial(k) for k in range(servers))
    last = offered**servers / math.factorial(servers) * servers / (servers - offered)
    return last / (below + last)


@pytest.mark.parametrize(("count", "load"), [(1, 0.5), (1, 0.8), (4, 0.8), (16, 0.9)])
def test_waits_are_those_of_m_m_c(count: int, load: float) -> None:
    offered = load * count
    mean, doubt = mean_wait(servers(count), offered, "exponential", 5)
    expected = erlang_c(count, offered) / (count - offered)  # of a service time of one second
    assert mean == pytest.approx(expected, abs=doubt + 0.02 * expected)


def test_waits_of_equal_answers_are_those_of_m_d_1() -> None:
    load = 0.7
    mean, doubt = mean_wait(servers(1), load, "equal", 5)
    expected = load / (2 * (1 - load))  # Pollaczek and Khinchine
    assert mean == pytest.approx(expected, abs=doubt + 0.02 * expected)


def test_streams_that_slow_each_other_down_are_a_birth_and_death_process() -> None:
    # With n streams each writes 1 / step(n): the chain leaves n at n / step(n), and its stationary
    # probabilities follow from detailed balance. Its mean answer time is by Little's law.
    slots, rate = 4, 1.6
    step_s = tuple(STEP_S * (0.7 + 0.3 * n) for n in range(1, slots + 1))
    group = Group(Speeds(slots, 1e9, step_s), 1)
    leaves = [n / (step_s[min(n, slots) - 1] * WORK_TOKENS) for n in range(1, slots + 1)]
    leaves += [leaves[-1]] * 400  # who waits changes nothing
    weights = [1.0]
    for leave in leaves:
        weights.append(weights[-1] * rate / leave)
    inside = sum(n * w for n, w in enumerate(weights)) / sum(weights)
    times = []
    for seed in range(5):
        passed = simulate([group], poisson(rate, exponential(seed), seed), ENDLESS)
        times.append((passed.ended_s - passed.arrived_s)[COUNT // 10 :].mean())
    doubt = 4 * np.std(times, ddof=1) / math.sqrt(len(times))
    assert np.mean(times) == pytest.approx(inside / rate, abs=doubt + 0.02 * inside / rate)


def test_users_who_wait_for_their_answers_are_the_repairman_of_theory() -> None:
    # M/M/c//N: N users think for an exponential time and are served by c equal servers.
    users, count, think_s = 12, 3, 5.0
    weights = [1.0]
    for busy in range(users):
        weights.append(weights[-1] * (users - busy) / think_s / min(busy + 1, count))
    total = sum(weights)
    rate = sum(w / total * min(n, count) for n, w in enumerate(weights))
    chance = np.random.default_rng(7)
    requests = Requests(
        np.sort(chance.random(users)) * think_s,
        np.zeros(COUNT),
        1 + chance.exponential(WORK_TOKENS, COUNT),
        chance.exponential(think_s, COUNT),
    )
    passed = simulate(servers(count), requests, ENDLESS)
    half = slice(COUNT // 10, COUNT // 2)
    arrived = passed.arrived_s[half]
    seen = (half.stop - half.start) / (arrived.max() - arrived.min())
    assert seen == pytest.approx(rate, rel=0.03)
    # Little's law over the whole cycle: all users are somewhere.
    cycle_s = (passed.ended_s - passed.arrived_s)[half].mean() + think_s
    assert seen * cycle_s == pytest.approx(users, rel=0.03)


def test_a_prompt_stops_the_streams_beside_it() -> None:
    # One stream of 101 tokens at 10 ms; a prompt of 256 tokens comes at 0.5 s and takes 256 ms in
    # batches of 64 (64 ms each), with one token of the stream between two of them.
    speeds = Speeds(2, 1000.0, (0.01, 0.01), prompt_batch_tokens=64)
    requests = Requests(np.array([0.0, 0.5]), np.array([0.0, 256.0]), np.array([101.0, 1.0]))
    passed = simulate([Group(speeds, 1)], requests, ENDLESS)
    read_s = 4 * (0.064 + 0.01)
    assert passed.first_token_s[1] == pytest.approx(0.5 + read_s)
    assert passed.ended_s[0] == pytest.approx(0.5 + read_s + (50 - 4) * 0.01)
    alone = simulate([Group(Speeds(2, 1000.0, (0.01, 0.01)), 1)], requests, ENDLESS)
    assert alone.first_token_s[1] == pytest.approx(0.756)
    assert alone.ended_s[0] == pytest.approx(1.0)


def test_who_finds_the_line_full_is_refused() -> None:
    requests = Requests(np.array([0.0, 0.1, 0.2, 0.3]), np.zeros(4), np.full(4, 101.0))
    passed = simulate(servers(1), requests, Rules(queue_length=2, longest_wait_s=None))
    assert passed.refused.tolist() == [False, False, False, True]
    assert passed.granted_s[:3].tolist() == pytest.approx([0.0, 1.0, 2.0])
    assert np.isnan(passed.ended_s[3])
    patient = simulate(servers(1), requests, Rules(queue_length=None, longest_wait_s=1.5))
    assert patient.refused.tolist() == [False, False, True, True]


def test_the_same_requests_pass_the_real_admission_at_the_same_moments() -> None:
    groups = [
        Group(Speeds(3, 900.0, (0.010, 0.012, 0.014), 256), 1),
        Group(Speeds(2, 400.0, (0.021, 0.027), 128), 1),
        Group(Speeds(4, 70.0, (0.050, 0.061, 0.072, 0.083), 32), 1),  # long prompts: over 10 s
    ]
    chance = np.random.default_rng(5)
    count = 400
    requests = Requests(
        np.cumsum(chance.exponential(0.9, count)),
        chance.lognormal(6, 0.8, count),
        1 + chance.exponential(200, count),
    )
    passed = simulate(groups, requests, Rules(queue_length=128, longest_wait_s=None))
    assert passed.refused.any() or (passed.granted_s > passed.arrived_s).mean() > 0.2
    seen = replayed(groups, requests, passed)
    granted = ~passed.refused
    assert [seen[ticket][1] for ticket in np.flatnonzero(granted)] == passed.group[granted].tolist()
    assert [seen[ticket][0] for ticket in np.flatnonzero(granted)] == pytest.approx(
        passed.granted_s[granted].tolist()
    )


def replayed(
    groups: Sequence[Group], requests: Requests, passed: Passed
) -> dict[int, tuple[float, int]]:
    """When and where to the real admission lets each through, if engines do as simulated."""
    admission = Admission(queue_length=128, longest_wait_s=math.inf)
    lanes = [
        Lane(
            number,
            "m",
            group.speeds.slots,
            prefill_tokens_per_s=group.speeds.prefill_tokens_per_s,
            decode_tokens_per_s=1 / group.speeds.step_s[0],
            total_tokens_per_s=group.speeds.slots / group.speeds.step_s[-1],
        )
        for number, group in enumerate(groups)
    ]
    admission.set_engines(lanes, 0.0)
    expected = float(requests.output_tokens.mean())
    events = [(at, 2, ticket) for ticket, at in enumerate(passed.arrived_s)]
    events += [(at, 0, t) for t, at in enumerate(passed.first_token_s) if not math.isnan(at)]
    events += [(at, 1, t) for t, at in enumerate(passed.ended_s) if not math.isnan(at)]
    granted: dict[int, tuple[float, int]] = {}
    for at_s, what, ticket in sorted(events):
        if what == 0:
            told = admission.prefilled(ticket, at_s)
        elif what == 1:
            told = admission.leave(ticket, at_s)
        else:
            bid = Bid("m", float(requests.prompt_tokens[ticket]), expected)
            answer = admission.arrive(ticket, bid, at_s)
            assert isinstance(answer, Grant | Standing) == (not passed.refused[ticket])
            told = [answer] if isinstance(answer, Grant) else []
        granted |= {grant.ticket: (at_s, grant.engine) for grant in told}
    return granted


def test_the_fastest_replica_ends_after_days_too() -> None:
    # A moment a million seconds from now is known to 1e-10 s: a thousand tokens at this speed.
    requests = Requests(np.array([1e6, 1e6 + 1]), np.full(2, 5000.0), np.full(2, 3.0))
    passed = simulate([Group(Speeds(2, 1e13, (1e-12, 1e-12), 512), 1)], requests, ENDLESS)
    assert passed.ended_s.tolist() == pytest.approx([1e6, 1e6 + 1])
