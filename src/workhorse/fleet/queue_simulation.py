"""Requests through replicas on paper: when each is let through, begins and ends. Pure.

An event simulation with the rules of the gateway's admission (`serve/admission.py`): a request goes
to the replica with a free slot where it should be done first, waits in the order of `FairOrder`
when there is none, and is refused when the line is full. Between two events each replica works at
constant speeds, so nothing is stepped through: a fleet costs about 20 µs a request, however many
replicas it has.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from workhorse.fleet.replica_speeds import Speeds
from workhorse.serve.admission import CROWD_SHARE, LONG_PREFILL_S, LONGEST_WAIT_S, QUEUE_LENGTH
from workhorse.serve.fair_order import LONGEST_YIELD_S, STRETCH

Floats: TypeAlias = NDArray[np.float64]

# Two moments nearer than this are one: sums of floats do not meet exactly, and after a day of
# seconds the next float is 1.5e-11 away.
SAME_S = 1e-7


@dataclass(frozen=True, slots=True)
class Group:
    """So many equal replicas."""

    speeds: Speeds
    replicas: int


@dataclass(frozen=True, slots=True)
class Requests:
    """What is asked: one entry a request, in the order in which they are asked.

    `arrivals_s` ascend. Fewer arrivals than lengths: each of these is a user who asks the next of
    the remaining requests `think_s` after the end of the one before.
    """

    arrivals_s: Floats
    prompt_tokens: Floats  # that have to be computed
    output_tokens: Floats
    think_s: Floats | None = None  # before each request; None: nobody asks again


@dataclass(frozen=True, slots=True)
class Rules:
    """What the admission is told; None: no limit."""

    queue_length: int | None = QUEUE_LENGTH
    longest_wait_s: float | None = LONGEST_WAIT_S


@dataclass(frozen=True, slots=True)
class Passed:
    """What became of each request; NaN in the times of one that was refused or never asked."""

    arrived_s: Floats
    granted_s: Floats
    first_token_s: Floats
    ended_s: Floats
    group: NDArray[np.int64]  # -1: refused or never asked
    refused: NDArray[np.bool_]


class _Replica:
    """One replica: the prompts that it reads, the streams that it writes, and how far each is.

    Equal shares make two clocks enough for all: tokens that each stream has written, and tokens
    that each prompt was read, since the replica had none.
    """

    __slots__ = (
        "group", "long_prompts", "next_s", "place", "prompts", "read", "read_rate", "since_s",
        "speeds", "streams", "written", "written_rate",
    )  # fmt: skip

    def __init__(self, speeds: Speeds, group: "_Group") -> None:
        self.speeds = speeds
        self.group = group
        self.prompts: list[tuple[float, int]] = []  # heap of (read by then, request)
        self.streams: list[tuple[float, int]] = []  # heap of (written by then, request)
        self.read = self.read_rate = self.written = self.written_rate = 0.0
        self.since_s = 0.0
        self.next_s = float("inf")
        self.long_prompts = 0
        self.place = 0

    def advance(self, now_s: float) -> None:
        """Work on at the present speeds until `now_s`."""
        passed_s = now_s - self.since_s
        self.written += self.written_rate * passed_s
        self.read += self.read_rate * passed_s
        self.since_s = now_s

    def pace(self) -> float:
        """Take the speeds for what there is to do now; when the next prompt or stream ends."""
        prompts, streams, speeds = len(self.prompts), len(self.streams), self.speeds
        step_s = speeds.step_s[streams - 1] if streams else 0.0
        batch = speeds.prompt_batch_tokens
        next_s = float("inf")
        if prompts:
            rate = speeds.prefill_tokens_per_s
            if batch is not None:
                step_s += batch / rate
                rate = batch / (step_s * prompts)
            self.read_rate = rate
            next_s = self.since_s + max(0.0, self.prompts[0][0] - self.read) / rate
        else:
            self.read = self.read_rate = 0.0
        if streams:
            self.written_rate = 1 / step_s
            end_s = self.since_s + max(0.0, self.streams[0][0] - self.written) * step_s
            next_s = min(next_s, end_s)
        else:
            self.written = self.written_rate = 0.0
        self.next_s = next_s
        return next_s


class _Group:
    """Equal replicas by how many slots are taken and how many of their prompts are long."""

    def __init__(self, group: Group, longest_prompt_tokens: float, output_tokens: float) -> None:
        speeds = group.speeds
        self.speeds = speeds
        self.prefill_tokens_per_s = speeds.prefill_tokens_per_s
        self.output_s = output_tokens / speeds.stream_tokens_per_s
        self.free_slots = group.replicas * speeds.slots
        has_long = longest_prompt_tokens / speeds.prefill_tokens_per_s > LONG_PREFILL_S
        self.long_most = speeds.slots // 2 if has_long and speeds.slots > 1 else 0
        self.rows = [
            [list[_Replica]() for _ in range(self.long_most + 1)] for _ in range(speeds.slots + 1)
        ]
        first = self.rows[0][0]
        for _ in range(group.replicas):
            replica = _Replica(speeds, self)
            replica.place = len(first)
            first.append(replica)

    def least_busy(self, *, long: bool) -> tuple[_Replica, int] | None:
        """The replica with the fewest requests that may take one more, and how many it has."""
        most = self.long_most if long and self.long_most else self.long_most + 1
        for busy in range(self.speeds.slots):
            for same in self.rows[busy][:most] if most > 1 else self.rows[busy][:1]:
                if same:
                    return same[-1], busy
        return None

    def move(self, replica: _Replica, busy: int, long_prompts: int, by: int, long_by: int) -> None:
        """So many of its slots and of its long prompts were taken; now there are others."""
        row = self.rows[busy][long_prompts]
        last = row.pop()
        if last is not replica:
            row[replica.place] = last
            last.place = replica.place
        row = self.rows[busy + by][long_prompts + long_by]
        replica.place = len(row)
        replica.long_prompts = long_prompts + long_by
        row.append(replica)
        self.free_slots -= by


class _Floor:
    """Everything at one moment, and what happens next."""

    def __init__(self, groups: Sequence[Group], requests: Requests, rules: Rules) -> None:
        count = len(requests.output_tokens)
        self.prompts: list[float] = requests.prompt_tokens.tolist()
        self.outputs: list[float] = requests.output_tokens.tolist()
        longest = max(self.prompts, default=0.0)
        expected = float(requests.output_tokens.mean()) if count else 0.0
        self.groups = [_Group(one, longest, expected) for one in groups]
        self.numbers = {id(one): number for number, one in enumerate(self.groups)}
        self.slots = sum(one.replicas * one.speeds.slots for one in groups)
        self.rules = rules
        self.line: list[tuple[float, int, float]] = []  # heap of (due, request, cost)
        self.line_cost_s = 0.0
        self.events: list[tuple[float, int, _Replica]] = []
        self.count = 0
        unknown = [float("nan")] * count
        self.arrived, self.granted = unknown.copy(), unknown.copy()
        self.first, self.ended = unknown.copy(), unknown.copy()
        self.group = [-1] * count
        self.refused = [False] * count
        self.asked = len(requests.arrivals_s)
        self.think: list[float] | None = (
            None if requests.think_s is None else requests.think_s.tolist()
        )
        self.returns: list[tuple[float, int]] = []  # heap of (asks then, request)
        self.is_long: set[int] = set()

    # what happens

    def run(self, arrivals_s: Sequence[float]) -> None:
        """Everything until nothing happens any more."""
        now_s, position = 0.0, 0
        events, returns = self.events, self.returns
        end = float("inf")
        while True:
            arrival_s = arrivals_s[position] if position < len(arrivals_s) else end
            return_s = returns[0][0] if returns else end
            event_s = events[0][0] if events else end
            if event_s <= arrival_s and event_s <= return_s:
                if event_s == end:
                    return
                _, _, replica = heappop(events)
                if replica.next_s == event_s:
                    now_s = event_s
                    self.step(replica, now_s)
            elif arrival_s <= return_s:
                now_s = arrival_s
                self.arrive(position, now_s)
                position += 1
            else:
                now_s, request = heappop(returns)
                self.arrive(request, now_s)

    def arrive(self, request: int, now_s: float) -> None:
        """A new request: into a slot, into the line, or away."""
        self.arrived[request] = now_s
        replica, busy, cost_s = self.choose(request)
        if replica is not None:
            self.grant(request, replica, busy, now_s)
            return
        rules = self.rules
        if rules.queue_length is not None and len(self.line) >= rules.queue_length:
            self.refuse(request, now_s)
            return
        # The admission looks at what each slot still has to do; on average it is this.
        wait_s = (self.line_cost_s + cost_s) / self.slots
        if rules.longest_wait_s is not None and wait_s > rules.longest_wait_s:
            self.refuse(request, now_s)
            return
        heappush(self.line, (now_s + min(STRETCH * cost_s, LONGEST_YIELD_S), request, cost_s))
        self.line_cost_s += cost_s

    def choose(self, request: int) -> tuple[_Replica | None, int, float]:
        """Where it should be done first, how busy that replica is, and what it costs at least."""
        best, best_busy, best_s, least_s = None, 0, float("inf"), float("inf")
        prompt = max(1.0, self.prompts[request])
        for group in self.groups:
            prefill_s = prompt / group.prefill_tokens_per_s
            cost_s = prefill_s + group.output_s
            least_s = min(least_s, cost_s)
            if group.free_slots:
                found = group.least_busy(long=prefill_s > LONG_PREFILL_S)
                if found is not None:
                    done_s = cost_s * (1 + CROWD_SHARE * found[1])
                    if done_s < best_s:
                        (best, best_busy), best_s = found, done_s
        return best, best_busy, least_s

    def grant(self, request: int, replica: _Replica, busy: int, now_s: float) -> None:
        """The request takes a slot and begins at once."""
        group = replica.group
        prompt = self.prompts[request]
        long = bool(group.long_most) and prompt / group.prefill_tokens_per_s > LONG_PREFILL_S
        group.move(replica, busy, replica.long_prompts, 1, int(long))
        if long:
            self.is_long.add(request)
        self.granted[request] = now_s
        self.group[request] = self.numbers[id(group)]
        replica.advance(now_s)
        heappush(replica.prompts, (replica.read + prompt, request))
        self.plan(replica)

    def step(self, replica: _Replica, now_s: float) -> None:
        """A prompt of this replica is read, or a stream is written to its end."""
        replica.advance(now_s)
        ended = False
        read = replica.read + replica.read_rate * SAME_S
        while replica.prompts and replica.prompts[0][0] <= read:
            self.begin(heappop(replica.prompts)[1], replica, now_s)
        written = replica.written + replica.written_rate * SAME_S
        while replica.streams and replica.streams[0][0] <= written:
            self.end(heappop(replica.streams)[1], replica, now_s)
            ended = True
        self.plan(replica)
        if self.line and (ended or self.is_long):
            self.pump(now_s)

    def begin(self, request: int, replica: _Replica, now_s: float) -> None:
        """Its first token is here."""
        self.first[request] = now_s
        if request in self.is_long:
            self.is_long.remove(request)
            busy = len(replica.prompts) + 1 + len(replica.streams)
            replica.group.move(replica, busy, replica.long_prompts, 0, -1)
        rest = max(0.0, self.outputs[request] - 1)
        heappush(replica.streams, (replica.written + rest, request))

    def end(self, request: int, replica: _Replica, now_s: float) -> None:
        """Its last token is here: the slot is free, and its user begins to think."""
        busy = len(replica.prompts) + len(replica.streams) + 1
        replica.group.move(replica, busy, replica.long_prompts, -1, 0)
        self.ended[request] = now_s
        self.again(now_s)

    def refuse(self, request: int, now_s: float) -> None:
        """There is no room for it."""
        self.refused[request] = True
        self.again(now_s)

    def again(self, now_s: float) -> None:
        """A user who has an answer will ask the next of the requests."""
        if self.think is not None and self.asked < len(self.outputs):
            heappush(self.returns, (now_s + self.think[self.asked], self.asked))
            self.asked += 1

    def pump(self, now_s: float) -> None:
        """Let through who can be, in the order of the line."""
        passed: list[tuple[float, int, float]] = []
        while self.line and any(group.free_slots for group in self.groups):
            waiter = heappop(self.line)
            replica, busy, _ = self.choose(waiter[1])
            if replica is None:  # its long prompt waits for others': who is behind it may go
                passed.append(waiter)
                continue
            self.line_cost_s -= waiter[2]
            self.grant(waiter[1], replica, busy, now_s)
        for waiter in passed:
            heappush(self.line, waiter)

    def plan(self, replica: _Replica) -> None:
        """Write down when the replica's next prompt or stream ends."""
        next_s = replica.pace()
        if next_s != float("inf"):
            self.count += 1
            heappush(self.events, (next_s, self.count, replica))


def simulate(groups: Sequence[Group], requests: Requests, rules: Rules = Rules()) -> Passed:
    """What becomes of these requests in this fleet, by the rules of the admission."""
    floor = _Floor(groups, requests, rules)
    floor.run(requests.arrivals_s.tolist())
    return Passed(
        np.array(floor.arrived),
        np.array(floor.granted),
        np.array(floor.first),
        np.array(floor.ended),
        np.array(floor.group),
        np.array(floor.refused),
    )
