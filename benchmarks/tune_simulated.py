"""How the tuner does on engines whose every speed is known: what it finds, what it mistakes.

    python benchmarks/tune_simulated.py OUT.json [--seeds 200]

No engine is started. Surfaces and noise come from seeds (`tests/tune/response_surfaces.py`). Prints
the tables of docs/measured/2026-11-30-tune-simulated.md and writes every run to OUT.json.
"""

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean, median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "tune"))

from response_surfaces import (  # type: ignore[import-not-found]
    FAMILIES,
    Noise,
    Surface,
    anything,
    flat,
    little,
    quiet,
    shared,
)
from simulated_runs import Run, decided, tune  # type: ignore[import-not-found]

from workhorse.tune.noise import Rule, rule_for
from workhorse.tune.search import Limits
from workhorse.tune.trial import Pair

# Neither these families nor any seed from here on was looked at while the search was written.
HELD_BACK_FAMILIES, HELD_BACK_FROM = (little, anything), 1000
NOISES = (quiet, shared)
GAINS = (-0.2, -0.03, 0.0, 0.01, 0.02, 0.03, 0.05, 0.1, 0.3)
SPREADS = (0.01, 0.02, 0.03, 0.05)
PAIRS_MAX = (32, 64, 128)
ERROR = 0.05


def main() -> None:
    """Every table, one after the other."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("out", type=Path)
    asked.add_argument("--seeds", type=int, default=200)
    args = asked.parse_args()
    began_s = time.process_time()
    found: dict[str, object] = {}
    for name, part in (
        ("flat", what_is_mistaken(args.seeds)),
        ("found", what_is_found(args.seeds // 2)),
        ("power", what_is_shown(args.seeds // 4)),
        ("error", how_often_wrong(args.seeds * 5)),
    ):
        found[name] = list(part)
        found["cpu_s"] = round(time.process_time() - began_s, 1)
        args.out.write_text(json.dumps(found, indent=1) + "\n")


def what_is_found(seeds: int) -> Iterator[dict[str, object]]:
    """Of each family and noise: how near to the best, with how many trials."""
    print("\n| family | machine | seeds | combinations | start | found: median, 5 % | ≥ 97 % | "
          "trials: median, most | of all: median, most | pairs | losses accepted |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for family in FAMILIES:
        for noise in NOISES:
            runs = [tune(family(HELD_BACK_FROM + seed, noise), Limits()) for seed in range(seeds)]
            best = sorted(run.of_best for run in runs)
            shares = [run.of_all for run in runs]
            held = family in HELD_BACK_FAMILIES
            row: dict[str, object] = {
                "family": family.__name__, "machine": noise.__name__, "held_back_family": held,
                "of_best": [round(run.of_best, 4) for run in runs],
                "trials": [len(run.trials) for run in runs],
                "combinations": [run.surface.size for run in runs],
                "pairs": [run.pairs for run in runs],
                "start": [round(start(run.surface), 4) for run in runs],
                "losses_accepted": sum(losses(run) for run in runs),
            }  # fmt: skip
            print(
                f"| {family.__name__.replace('_', ' ')}{' *' if held else ''} | {noise.__name__} "
                f"| {seeds} | {median(run.surface.size for run in runs):.0f} "
                f"| {median(start(run.surface) for run in runs):.2f} "
                f"| {median(best):.3f}, {best[seeds // 20]:.3f} "
                f"| {sum(x >= 0.97 for x in best) / seeds:.0%} "
                f"| {median(len(run.trials) for run in runs):.0f}, "
                f"{max(len(run.trials) for run in runs)} "
                f"| {median(shares):.1%}, {max(shares):.1%} "
                f"| {median(run.pairs for run in runs):.0f} | {row['losses_accepted']} |",
                flush=True,
            )
            yield row


def start(surface: Surface) -> float:
    """Where a run begins, as a share of the best."""
    return float((surface.speed(surface.start) or 0.0) / surface.best())


def losses(run: Run) -> int:
    """How many accepted changes truly gained nothing."""
    made = 0
    for trial in run.trials:
        if trial.outcome == "accepted":
            before = run.surface.speed(run.surface.at(trial.kept))
            after = run.surface.speed(run.surface.at((*trial.kept, trial.change)))
            made += (after or 0.0) <= (before or 0.0)
    return made


def what_is_mistaken(seeds: int) -> Iterator[dict[str, object]]:
    """Where nothing matters: runs that accept anything."""
    print("\n| flat surface | seeds | trials | pairs | runs that accepted anything |")
    print("|---|---|---|---|---|")
    for noise in NOISES:
        runs = [tune(flat(HELD_BACK_FROM + seed, noise), Limits()) for seed in range(seeds)]
        wrong = sum(bool(run.finished.kept) for run in runs)
        trials, pairs = sum(len(r.trials) for r in runs), sum(r.pairs for r in runs)
        print(f"| {noise.__name__} | {seeds} | {trials} | {pairs} | {wrong} |", flush=True)
        yield {"machine": noise.__name__, "seeds": seeds, "trials": trials, "pairs": pairs,
               "accepted": wrong}  # fmt: skip


KINDS: dict[str, Callable[[random.Random], float]] = {
    "normal": lambda draw: draw.gauss(0, 0.02),
    "uniform": lambda draw: draw.uniform(-0.04, 0.04),
    "double exponential": lambda draw: draw.choice((-1, 1)) * draw.expovariate(50),
    "Cauchy": lambda draw: 0.02 * math.tan(math.pi * (draw.random() - 0.5)),
    "two steps of a clock": lambda draw: draw.choice((-0.02, 0.02)),
    "one in ten disturbed": lambda draw: (
        draw.gauss(0, 0.02) + draw.choice((-1, 1)) * (draw.random() < 0.1) * draw.uniform(0.1, 0.7)
    ),
}


def pairs_without_gain(kind: str, draw: random.Random) -> Iterator[Pair]:
    """Pairs of equals under one kind of noise."""
    while True:
        yield Pair(100 * math.exp(max(-20.0, min(20.0, KINDS[kind](draw)))), 100.0)


def how_often_wrong(seeds: int) -> Iterator[dict[str, object]]:
    """How often a trial takes noise for a gain, allowed so much that it can be seen."""
    print("\n| noise of a pair, no gain | trials | allowed | judged better |")
    print("|---|---|---|---|")
    rule = Rule(error=ERROR)
    machines = {f"shared machine, {spread:.0%}": spread for spread in SPREADS}
    for kind in (*KINDS, *machines):
        wrong = 0
        for seed in range(seeds):
            draw = random.Random(f"{kind} {seed}")
            if kind in machines:
                pairs = Noise(machines[kind], 0.01, 0.03, 0.08, 0.5).pairs(1.0, draw)
            else:
                pairs = pairs_without_gain(kind, draw)
            wrong += decided(pairs, rule)[1] == "better"
        print(f"| {kind} | {seeds} | {ERROR:.0%} | {wrong / seeds:.2%} |", flush=True)
        yield {"kind": kind, "trials": seeds, "allowed": ERROR, "better": wrong}


def what_is_shown(seeds: int) -> Iterator[dict[str, object]]:
    """How often a true gain is accepted, and after how many pairs a trial ends."""
    rules = [(most, rule_for(8, pairs_max=most)) for most in PAIRS_MAX]
    print("\n| spread | pairs at most | " + " | ".join(f"{gain:+.0%}" for gain in GAINS) + " |")
    print("|---|---|" + "---|" * len(GAINS))
    for spread in SPREADS:
        for most, rule in rules:
            cells = []
            for gain in GAINS:
                noise = Noise(spread, 0.003, 0.01, 0.03, 0.5)
                ends = [
                    decided(noise.pairs(1 + gain, random.Random(seed)), rule)
                    for seed in range(seeds)
                ]
                better = sum(said == "better" for _, said in ends) / seeds
                pairs = fmean(len(seen) for seen, _ in ends)
                cells.append(f"{better:.0%} ({pairs:.0f})")
                yield {"spread": spread, "pairs_max": most, "gain": gain, "better": better,
                       "pairs": round(pairs, 1)}  # fmt: skip
            print(f"| {spread:.0%} | {most} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
