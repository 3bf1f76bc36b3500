"""What queueing theory says of a fleet without simulating it: Erlang's C and its correction. Pure.

The models know equal servers (here: slots) whose speed is always the same, an endless line and
patient clients. Slots are not so: they slow each other down, and prompts stop streams. So a slot
counts with its speed at full load, and what comes out stands beside the simulation, not for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log

from workhorse.fleet.replica_speeds import Speeds

TAIL = 0.05  # what lies beyond the 95th percentile


@dataclass(frozen=True, slots=True)
class Moments:
    """Mean and variance of a length in tokens."""

    mean: float
    variance: float


@dataclass(frozen=True, slots=True)
class Line:
    """The line in front of `servers` slots; waits are infinite where the line never ends."""

    servers: int
    service_s: float  # of one request in its slot, on average over the slots
    service_variation: float  # squared coefficient of variation of that time
    utilisation: float  # 1 and more: requests come faster than they can be answered
    wait_share: float  # of the requests
    mean_wait_s: float  # M/M/c
    p95_wait_s: float  # M/M/c
    mean_wait_general_s: float  # M/G/c, Allen and Cunneen's approximation
    p95_wait_general_s: float  # M/G/c, the same scale on M/M/c's tail


def erlang_c(servers: int, offered: float) -> float:
    """The share of requests that wait in M/M/c; `offered` is the load in Erlangs (A. K. Erlang)."""
    if offered >= servers:
        return 1.0
    blocked = 1.0  # Erlang B by its recursion, which stays between 0 and 1
    for server in range(1, servers + 1):
        blocked = offered * blocked / (server + offered * blocked)
    return blocked / (1 - offered / servers * (1 - blocked))


def line(servers: int, requests_per_s: float, service_s: float, variation: float) -> Line:
    """The line of M/M/c with mean service `service_s`, and what M/G/c makes of it.

    `variation`: the squared coefficient of variation of the service time, 1 for M/M/c itself.
    Allen, Probability, Statistics and Queueing Theory, 2nd ed., 1990: W(M/G/c) is about
    W(M/M/c) × (1 + c²) / 2; exact for one server (Pollaczek and Khinchine).
    """
    offered = requests_per_s * service_s
    utilisation = offered / servers
    if utilisation >= 1:
        return Line(servers, service_s, variation, utilisation, 1.0, inf, inf, inf, inf)
    waits = erlang_c(servers, offered)
    # Who waits in M/M/c waits an exponential time with this mean.
    those_s = service_s / (servers - offered)
    tail_s = those_s * log(waits / TAIL) if waits > TAIL else 0.0
    scale = (1 + variation) / 2
    return Line(
        servers,
        service_s,
        variation,
        utilisation,
        waits,
        waits * those_s,
        tail_s,
        waits * those_s * scale,
        tail_s * scale,
    )


def fleet_line(
    replicas: Sequence[tuple[Speeds, int]], requests_per_s: float, prompt: Moments, output: Moments
) -> Line:
    """The line in front of all slots of these replicas (each with how many there are of it)."""
    slots = sum(speeds.slots * count for speeds, count in replicas)
    rates = [
        speeds.slots * count / service(speeds, prompt, output).mean for speeds, count in replicas
    ]
    work = [service(speeds, prompt, output) for speeds, _ in replicas]
    rate = sum(rates)
    service_s = slots / rate
    # A request takes this or that kind of slot as often as that kind is free: by its rate.
    square = sum(
        share / rate * (one.variance + one.mean**2) for share, one in zip(rates, work, strict=True)
    )
    mean = sum(share / rate * one.mean for share, one in zip(rates, work, strict=True))
    return line(slots, requests_per_s, service_s, max(0.0, square / mean**2 - 1))


def service(speeds: Speeds, prompt: Moments, output: Moments) -> Moments:
    """Time of one request in its slot, in seconds, while all slots of its replica are at work.

    Where a prompt stops the streams beside it, each slot loses the time of all prompts.
    """
    prompts = speeds.slots if speeds.prompt_batch_tokens is not None else 1
    read_s = prompts / speeds.prefill_tokens_per_s
    step_s = speeds.step_s[-1]
    return Moments(
        prompt.mean * read_s + max(0.0, output.mean - 1) * step_s,
        prompt.variance * read_s**2 + output.variance * step_s**2,
    )
