"""Engines that are known: how fast each combination of settings is, with cliffs, and its noise.

Every surface follows from a seed: which variables it has, how much each matters, where ordered ones
peak, how pairs of them act together, where memory runs out, what the forecast knows of it (with
errors), and how its machine disturbs measurements. Nothing here knows how the search works.
"""

import itertools
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from workhorse.text import same
from workhorse.tune.trial import Change, Pair
from workhorse.tune.variables import Choice, Space, Variable

Point = tuple[int, ...]  # the place of each variable's value


@dataclass(frozen=True)
class Noise:
    """How a machine disturbs one measurement after the other."""

    spread: float  # of one measurement, log-normal
    drift: float  # a random walk, each step
    wave: float  # a slow swing that both of a pair share most of
    disturbed: float  # the chance that other work slows one measurement
    slowed: float  # by up to this share then

    def pairs(self, ratio: float, draw: random.Random) -> Iterator[Pair]:
        """Pairs in turns: A B, B A, A B …"""
        level, time = 100.0, draw.random() * 100
        for first_is_candidate in itertools.cycle((True, False)):
            figures = []
            for step in range(2):
                level *= math.exp(draw.gauss(0, self.drift))
                time += 1
                candidate = first_is_candidate == (step == 0)
                figure = level * (ratio if candidate else 1.0)
                figure *= math.exp(draw.gauss(0, self.spread) + self.wave * math.sin(time / 9))
                if draw.random() < self.disturbed:
                    figure *= 1 - draw.uniform(0.05, self.slowed)
                figures.append(figure)
            if not first_is_candidate:
                figures.reverse()
            yield Pair(*figures)


def quiet(draw: random.Random) -> Noise:
    """A machine for this alone."""
    return Noise(draw.uniform(0.005, 0.015), 0.001, 0.002, 0.01, 0.2)


def shared(draw: random.Random) -> Noise:
    """A machine with neighbours: 1 to 5 % a measurement, drift, and now and then a blow."""
    return Noise(
        math.exp(draw.uniform(math.log(0.01), math.log(0.05))),
        draw.uniform(0.0, 0.01),
        draw.uniform(0.0, 0.03),
        draw.uniform(0.0, 0.08),
        0.5,
    )


@dataclass(frozen=True)
class Dial:
    """One variable: its values' own effect on the logarithm of speed, and on memory."""

    name: str
    values: tuple[str, ...]
    ordered: bool
    effects: tuple[float, ...]
    memory: tuple[float, ...]
    told: bool  # the forecast knows it


@dataclass
class Surface:
    """An engine whose speed at every point is known."""

    name: str
    dials: tuple[Dial, ...]
    together: dict[tuple[int, int], tuple[tuple[float, ...], ...]]  # of two dials, by their values
    memory_limit: float
    start: Point
    noise: Noise
    forecast_error: float
    seed: int
    speeds: dict[Point, float | None] = field(default_factory=dict)

    def speed(self, point: Point) -> float | None:
        """Tokens a second; None where the memory does not hold it."""
        if point not in self.speeds:
            used = sum(d.memory[at] for d, at in zip(self.dials, point, strict=True))
            effect = sum(d.effects[at] for d, at in zip(self.dials, point, strict=True))
            effect += sum(grid[point[a]][point[b]] for (a, b), grid in self.together.items())
            self.speeds[point] = None if used > self.memory_limit else 100 * math.exp(effect)
        return self.speeds[point]

    def points(self) -> Iterator[Point]:
        """Every combination."""
        return itertools.product(*(range(len(d.values)) for d in self.dials))

    @property
    def size(self) -> int:
        """How many combinations there are."""
        return math.prod(len(d.values) for d in self.dials)

    def best(self) -> float:
        """The highest speed of all combinations."""
        return max(speed for point in self.points() if (speed := self.speed(point)) is not None)

    def at(self, kept: tuple[Change, ...]) -> Point:
        """The point that these changes lead to."""
        point = list(self.start)
        for change in (part for made in kept for part in made.parts):
            place = next(n for n, d in enumerate(self.dials) if d.name == change.variable)
            point[place] = self.dials[place].values.index(change.value)
        return tuple(point)

    def space(self, kept: tuple[Change, ...]) -> Space:
        """The variables around a point, with what a forecast that errs would say."""
        here = self.at(kept)
        found = []
        for place, dial in enumerate(self.dials):
            choices = tuple(
                Choice(value, self.expected(here, place, at), n_bytes=self.n_bytes(here, place, at))
                for at, value in enumerate(dial.values)
            )
            variable = Variable(
                dial.name, dial.values[self.start[place]], dial.values[here[place]], choices,
                dial.ordered, same(""),
            )  # fmt: skip
            promise = max(
                (c.expected or 1.05 for c in choices if c.value != variable.now), default=1
            )
            found.append((promise, variable))
        found.sort(key=lambda pair: -pair[0])
        return Space(tuple(variable for _, variable in found))

    def n_bytes(self, here: Point, place: int, at: int) -> int:
        """The memory that it takes with this value: a budget knows that, but not the limit."""
        point = (*here[:place], at, *here[place + 1 :])
        return round(1000 * sum(d.memory[n] for d, n in zip(self.dials, point, strict=True)))

    def expected(self, here: Point, place: int, at: int) -> float | None:
        """What the forecast says of one value: the dial's own effect, off by its error."""
        dial = self.dials[place]
        if not dial.told:
            return None
        draw = random.Random(f"{self.seed} {place} {at}")
        effect = dial.effects[at] - dial.effects[here[place]]
        return math.exp(effect + draw.gauss(0, self.forecast_error) * (at != here[place]))


def peak(draw: random.Random, count: int, height: float) -> tuple[float, ...]:
    """One rise and one fall: how steep on either side, and where, is drawn."""
    top = draw.uniform(-0.3, count - 0.7)
    left, right, bend = draw.uniform(0.3, 1.5), draw.uniform(0.3, 1.5), draw.choice((1.0, 1.5, 2.0))
    span = max(1, count - 1)
    return tuple(
        -height * (left if at < top else right) * (abs(at - top) / span) ** bend * 2
        for at in range(count)
    )


def ordered(
    draw: random.Random,
    name: str,
    values: str,
    height: float,
    *,
    grows: float = 0.0,
    told: float = 0.5,
) -> Dial:
    """A variable with one peak; `grows`: memory that each step takes."""
    words = tuple(values.split())
    return Dial(
        name, words, True, peak(draw, len(words), height),
        tuple(grows * at for at in range(len(words))), draw.random() < told,
    )  # fmt: skip


def free(
    draw: random.Random,
    name: str,
    values: str,
    height: float,
    *,
    takes: str = "",
    told: float = 0.3,
) -> Dial:
    """A variable without order: each value has an effect of its own, half of them hardly any."""
    words = tuple(values.split())
    effects = tuple(
        draw.gauss(0, height) if draw.random() < 0.6 else draw.gauss(0, 0.003) for _ in words
    )
    memory = tuple(map(float, takes.split())) if takes else (0.0,) * len(words)
    return Dial(name, words, False, effects, memory, draw.random() < told)


def joined(
    draw: random.Random, dials: tuple[Dial, ...], share: float, strength: float
) -> dict[tuple[int, int], tuple[tuple[float, ...], ...]]:
    """How pairs of variables act together beyond what each does alone.

    Between ordered ones the peak of one moves with the other, as a smooth twist; else each pair of
    values has something of its own.
    """
    found = {}
    for a, b in itertools.combinations(range(len(dials)), 2):
        if draw.random() >= share:
            continue
        rows, columns = len(dials[a].values), len(dials[b].values)
        if dials[a].ordered and dials[b].ordered:
            twist = draw.gauss(0, strength)
            grid = tuple(
                tuple(
                    twist * (x / max(1, rows - 1) - 0.5) * (y / max(1, columns - 1) - 0.5) * 4
                    for y in range(columns)
                )
                for x in range(rows)
            )
        elif dials[a].ordered or dials[b].ordered:
            tilt = [draw.gauss(0, strength) for _ in range(columns if dials[a].ordered else rows)]
            grid = tuple(
                tuple(
                    tilt[y] * (x / max(1, rows - 1) - 0.5)
                    if dials[a].ordered
                    else tilt[x] * (y / max(1, columns - 1) - 0.5)
                    for y in range(columns)
                )
                for x in range(rows)
            )
        else:
            grid = tuple(
                tuple(draw.gauss(0, strength / 2) for _ in range(columns)) for _ in range(rows)
            )
        found[a, b] = grid
    return found


def put_together(
    name: str,
    draw: random.Random,
    seed: int,
    dials: list[Dial],
    *,
    noise: Noise,
    share: float = 0.3,
    strength: float = 0.04,
    room: float = 0.6,
) -> Surface:
    """A surface of these dials, the order shuffled, with a start that fits and is not the worst."""
    draw.shuffle(dials)
    chosen = tuple(dials)
    most = sum(max(d.memory) for d in chosen)
    surface = Surface(
        name, chosen, joined(draw, chosen, share, strength), most * room or 1.0, (), noise,
        draw.uniform(0.02, 0.08), seed,
    )  # fmt: skip
    fitting = [p for p in surface.points() if surface.speed(p) is not None]
    tries = [draw.choice(fitting) for _ in range(3)]
    surface.start = max(tries, key=lambda p: surface.speed(p) or 0.0)
    return surface


def two_sockets(seed: int, noise: Callable[[random.Random], Noise]) -> Surface:
    """A box with two CPUs and no card."""
    draw = random.Random(f"two sockets {seed}")
    dials = [
        ordered(draw, "threads", "2 4 7 10 12 13 14 28", 0.25),
        free(draw, "cpus", "0-13 0-27 0-55", 0.08),
        free(draw, "numa", "0 0-1 local", 0.06),
        free(draw, "load", "none huge mmap mlock", 0.1),
        free(draw, "spin", "bounded default", 0.04),
        free(draw, "flash-attention", "off on", 0.05),
        free(draw, "kv", "f16 q8_0", 0.03, takes="2 1"),
    ]
    return put_together("two sockets", draw, seed, dials, noise=noise(draw))


def beside_card(seed: int, noise: Callable[[random.Random], Noise]) -> Surface:
    """A model that the card does not hold whole: a cliff that moves with KV and batch."""
    draw = random.Random(f"beside card {seed}")
    layers = ordered(draw, "gpu-layers", "12 14 16 18 20 22 24 26 28", 0.1, grows=1.0)
    rising = tuple(0.06 * at * draw.uniform(0.6, 1.2) for at in range(9))
    dials = [
        Dial(layers.name, layers.values, True, tuple(sorted(rising)), layers.memory, True),
        ordered(draw, "threads", "2 4 6 8 10 12", 0.2),
        ordered(draw, "micro-batch", "64 128 256 512 1024", 0.08, grows=0.5, told=0.0),
        free(draw, "kv", "f16 q8_0", 0.02, takes="4 2"),
        free(draw, "flash-attention", "off on", 0.1, takes="1 0"),
    ]
    return put_together("beside card", draw, seed, dials, noise=noise(draw), room=0.7)


def many_users(seed: int, noise: Callable[[random.Random], Noise]) -> Surface:
    """All together, tok/s: slots, batches and KV share the memory."""
    draw = random.Random(f"many users {seed}")
    dials = [
        ordered(draw, "slots", "1 2 4 8 16 32", 0.6, grows=1.0),
        ordered(draw, "micro-batch", "32 64 128 256 512", 0.12, grows=0.4, told=0.0),
        ordered(draw, "threads", "2 4 8 12 16 24", 0.2),
        free(draw, "kv", "f16 q8_0 q4_0", 0.04, takes="3 1.6 1"),
        free(draw, "flash-attention", "off on", 0.06),
        free(draw, "engine", "native embedded other", 0.08),
    ]
    return put_together("many users", draw, seed, dials, noise=noise(draw))


def little(seed: int, noise: Callable[[random.Random], Noise]) -> Surface:
    """Few things to try: every trial weighs in the count."""
    draw = random.Random(f"little {seed}")
    dials = [
        ordered(draw, "threads", "1 2 3 4 6 8", 0.25),
        free(draw, "load", "none huge mmap", 0.12),
        free(draw, "spin", "bounded default", 0.05),
        free(draw, "kv", "f16 q8_0", 0.03),
    ]
    return put_together("little", draw, seed, dials, noise=noise(draw))


def anything(seed: int, noise: Callable[[random.Random], Noise]) -> Surface:
    """Variables, effects, bonds and room all drawn: stronger together than usual."""
    draw = random.Random(f"anything {seed}")
    dials = []
    for number in range(draw.randint(4, 6)):
        count = draw.randint(2, 7)
        values = " ".join(f"v{at}" for at in range(count))
        height = math.exp(draw.uniform(math.log(0.02), math.log(0.4)))
        name = f"dial-{number}"
        if count > 3 or draw.random() < 0.4:
            grows = draw.choice((0.0, 0.0, 0.5, 1.0))
            dials.append(ordered(draw, name, values, height, grows=grows))
        else:
            takes = " ".join(str(draw.choice((0, 0, 1, 2))) for _ in range(count))
            dials.append(free(draw, name, values, height / 2, takes=takes))
    return put_together(
        "anything", draw, seed, dials, noise=noise(draw), share=0.5, strength=0.06, room=0.75
    )


def flat(seed: int, noise: Callable[[random.Random], Noise]) -> Surface:
    """Nothing matters: whatever is accepted is noise."""
    draw = random.Random(f"flat {seed}")
    surface = two_sockets(seed, noise)
    level = [
        Dial(
            d.name, d.values, d.ordered, (0.0,) * len(d.values), (0.0,) * len(d.values), told=False
        )
        for d in surface.dials
    ]
    return put_together("flat", draw, seed, level, noise=surface.noise, share=0.0)


FAMILIES = (two_sockets, beside_card, many_users, little, anything)
