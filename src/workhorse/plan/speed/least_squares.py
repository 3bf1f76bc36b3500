"""Least squares with a guess for each unknown (ridge), small enough to need no library."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Solved:
    """The unknowns, each row's leverage, and how much of each unknown the rows decided."""

    values: tuple[float, ...]
    leverage: tuple[float, ...]
    evidence: tuple[float, ...]  # 0: the guess alone, 1: the rows alone


def ridge(
    table: Sequence[Sequence[float]],
    weights: Sequence[float],
    guesses: Sequence[float],
    stiffness: Sequence[float],
) -> Solved:
    """Unknowns, none negative, that bring each row's sum to 1 and stay near their guesses.

    Minimises the weighted squares of `row . unknowns - 1` plus `stiffness x (unknown - guess)^2`.
    An unknown that would be negative is held at zero.
    """
    n = len(guesses)
    normal = [[0.0] * n for _ in range(n)]
    right = [stiffness[i] * guesses[i] for i in range(n)]
    for row, weight in zip(table, weights, strict=True):
        for i, x in enumerate(row):
            if x:
                right[i] += weight * x
                for j, y in enumerate(row):
                    normal[i][j] += weight * x * y
    data = [normal[i][i] for i in range(n)]
    for i in range(n):
        normal[i][i] += stiffness[i]
    free = list(range(n))
    while True:
        inverse = inverted([[normal[i][j] for j in free] for i in free])
        values = [0.0] * n
        for place, i in enumerate(free):
            values[i] = sum(inverse[place][k] * right[j] for k, j in enumerate(free))
        below = [i for i in free if values[i] < 0]
        if not below:
            break
        free = [i for i in free if i not in below]
    leverage = tuple(
        min(0.9, weight * _square(inverse, [row[i] for i in free]))
        for row, weight in zip(table, weights, strict=True)
    )
    evidence = tuple(data[i] / (data[i] + stiffness[i]) for i in range(n))
    return Solved(tuple(values), leverage, evidence)


def _square(matrix: Sequence[Sequence[float]], row: Sequence[float]) -> float:
    return sum(
        x * sum(m * y for m, y in zip(line, row, strict=True))
        for x, line in zip(row, matrix, strict=True)
        if x
    )


def inverted(matrix: Sequence[Sequence[float]]) -> list[list[float]]:
    """The inverse of a symmetric positive matrix (Gauss and Jordan; no pivoting is needed)."""
    n = len(matrix)
    work = [list(row) + [float(i == j) for j in range(n)] for i, row in enumerate(matrix)]
    for i in range(n):
        pivot = work[i][i]
        work[i] = [x / pivot for x in work[i]]
        for j in range(n):
            if j != i and work[j][i]:
                factor = work[j][i]
                work[j] = [x - factor * y for x, y in zip(work[j], work[i], strict=True)]
    return [row[n:] for row in work]
