"""What a measurement took of energy, from its samples. Pure."""

from collections.abc import Sequence
from itertools import pairwise

from workhorse.records import Measurement, Sample

# Counters are read some times in a run, not at its very ends: with fewer samples inside, what is
# counted is mostly what is not the run.
SAMPLES_MIN = 3


def energy_j(measurement: Measurement) -> float | None:
    """Joules of all cards and processor packages that report; None where none does.

    Idle cards count too: they are in the machine. Taken over the time of the samples and scaled
    to that of the requests.
    """
    samples = [one for one in measurement.conditions.samples if one.at_s >= 0]
    took_s = last_end_s(measurement)
    if len(samples) < SAMPLES_MIN or took_s is None:
        return None
    sampled_s = samples[-1].at_s - samples[0].at_s
    found = [*cards_j(samples), *cpu_j(samples)]
    if not found or sampled_s <= 0:
        return None
    return sum(found) * min(1.0, took_s / sampled_s)


def last_end_s(measurement: Measurement) -> float | None:
    """When the last request ended, since the measurement began."""
    ends_s = [run.sent_s + run.end_s for run in measurement.runs if run.sent_s is not None]
    return max(ends_s, default=None)


def cards_j(samples: Sequence[Sample]) -> list[float]:
    """Each card's energy: by its own counter, else its power over the time."""
    found: list[float] = []
    for index in sorted({card.index for one in samples for card in one.cards}):
        seen = [(one.at_s, card) for one in samples for card in one.cards if card.index == index]
        counted = [card.energy_j for _, card in seen if card.energy_j is not None]
        powers = [(at_s, card.power_w) for at_s, card in seen if card.power_w is not None]
        if len(counted) >= 2 and counted[-1] > counted[0]:
            found.append(counted[-1] - counted[0])
        elif len(powers) >= 2:
            found.append(
                sum((b_s - a_s) * (a_w + b_w) / 2 for (a_s, a_w), (b_s, b_w) in pairwise(powers))
            )
    return found


def cpu_j(samples: Sequence[Sample]) -> list[float]:
    """The processor packages' energy by their counters; nothing where they cannot be read."""
    counted = [one.cpu_energy_j for one in samples if one.cpu_energy_j is not None]
    return [counted[-1] - counted[0]] if len(counted) >= 2 and counted[-1] > counted[0] else []
