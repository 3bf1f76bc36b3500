"""Which of the troubles seen is the cause, which are its consequences, and how sure that is."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from workhorse.diagnose.facts import Facts, applies
from workhorse.diagnose.scan import LATE, Line, Seen
from workhorse.knowledge.diagnoses import Trouble

# A program that says both, the second last, was not hindered by what it met before.
RETRY = (r"\bretry(?:ing)?\b", r"\bbackoff\b", r"\btrying again\b", r"\bfalling back to\b")
READY = (
    r"server is listening on http",
    r"Application startup complete",
    r"llama runner started in",
    r"The server is fired up and ready",
)
# What one more sign is worth, and a fact that speaks for or against; certain is never 1.
NEAR, FACT, CERTAIN = 0.06, 0.1, 0.98
# How sure a trouble at the start is as a cause, where the program served after it.
OVERCOME = 0.4


@dataclass(frozen=True, slots=True)
class Suspect:
    """One trouble that the log shows: how sure, by which lines, and what follows from it."""

    trouble: Trouble
    confidence: float
    lines: tuple[Line, ...]
    facts: tuple[tuple[str, str], ...] = ()  # those that spoke for it, with their values
    consequences: tuple["Suspect", ...] = ()

    @property
    def first_line(self) -> int:
        """Where the log first shows it."""
        return min((line.number for line in self.lines), default=0)


def rank(
    known: Sequence[Trouble],
    seen: dict[str, Seen],
    facts: Facts,
    behaves: Iterable[Suspect] = (),
) -> tuple[Suspect, ...]:
    """The troubles seen, the likeliest first, each with its consequences folded under it.

    `behaves` are those that were found in figures and not in single lines.
    """
    found = [s for t in known if (s := suspect(t, seen, facts)) is not None]
    figures = [s for b in behaves if (s := _weighed(b, facts)) is not None]
    by_code = {s.trouble.code: s for s in (*found, *figures)}
    explained = _explained(by_code)
    roots = sorted((s for code, s in by_code.items() if code not in explained), key=_order)
    folded: list[Suspect] = []
    told: set[str] = set()
    for root in roots:
        below = _consequences(root, by_code, {root.trouble.code, *told})
        told.update(s.trouble.code for s in below)
        folded.append(replace(root, consequences=below))
    # A crash that no row names is the consequence of the likeliest cause.
    rest = tuple(by_code[code] for code in explained if code not in told)
    if folded and rest:
        folded[0] = replace(folded[0], consequences=(*folded[0].consequences, *rest))
    return tuple(folded)


def suspect(trouble: Trouble, seen: dict[str, Seen], facts: Facts) -> Suspect | None:
    """The trouble with its evidence; None when nothing shows it or something rules it out.

    What other runs of the program said than the last one with the trouble is no sign of it.
    """
    shown = [seen[e] for e in trouble.lines if e in seen]
    if not shown:
        return None
    run = max(max(s.runs) for s in shown)

    def holds(expression: str) -> bool:
        """Seen in the run that has the trouble, or before the first (what the shell showed)."""
        return expression in seen and bool(seen[expression].runs & {run, 0})

    lines = [line for s in shown for line in s.samples]
    near = [line for e in trouble.near if holds(e) for line in seen[e].samples[:1]]
    if any(holds(e) for e in trouble.never):
        return None
    if trouble.needs_near and not near:
        return None
    lines.sort(key=_number)
    unique = {line.number: line for line in (*lines, *sorted(near, key=_number))}
    confidence = trouble.sure + NEAR * min(len(near), 2)
    if trouble.at_start and _overcome(max(s.last_byte for s in shown), run, seen):
        confidence = OVERCOME
    return _weighed(Suspect(trouble, confidence, tuple(unique.values())), facts)


def _overcome(byte: int, run: int, seen: dict[str, Seen]) -> bool:
    """Whether that run of the program tried again after that byte, and said that it serves."""

    def later(expressions: Iterable[str]) -> bool:
        return any(
            byte < seen[e].last_byte < LATE
            for e in expressions
            if e in seen and run in seen[e].runs
        )

    return later(RETRY) and later(READY)


def _number(line: Line) -> int:
    return line.number


def _weighed(found: Suspect, facts: Facts) -> Suspect | None:
    """The suspect after its facts have spoken; None when one rules it out."""
    confidence = found.confidence
    spoke: list[tuple[str, str]] = []
    for rule in found.trouble.facts:
        if not applies(rule, facts):
            continue
        words = rule.fact, ", ".join(sorted(facts[rule.fact]))
        match rule.makes:
            case "impossible":
                return None
            case "certain":
                confidence = max(confidence, CERTAIN)
                spoke.append(words)
            case "likelier":
                confidence += FACT
                spoke.append(words)
            case "unlikelier":
                confidence -= 2 * FACT
    if found.trouble.needs_fact and not spoke:
        return None
    return replace(found, confidence=max(0.05, min(confidence, CERTAIN)), facts=tuple(spoke))


def _explained(by_code: dict[str, Suspect]) -> list[str]:
    """The codes that something else explains; two that explain each other both stay."""
    named = {
        consequence
        for code, found in by_code.items()
        for consequence in found.trouble.explains
        if consequence != code
        and consequence in by_code
        and code not in by_code[consequence].trouble.explains
    }
    causes = [s for s in by_code.values() if s.trouble.level == "cause"]
    # A crash is no cause beside one; of crashes alone the surest stays.
    best = max((s for s in causes if s.trouble.code not in named), key=_sureness, default=None)
    return [
        code
        for code, s in by_code.items()
        if code in named or (s.trouble.generic and s is not best)
    ]


def _sureness(found: Suspect) -> tuple[bool, float]:
    return not found.trouble.generic, found.confidence


def _consequences(
    root: Suspect, by_code: dict[str, Suspect], passed: set[str]
) -> tuple[Suspect, ...]:
    below = [c for c in root.trouble.explains if c in by_code and c not in passed]
    passed.update(below)
    nested = [(by_code[c], *_consequences(by_code[c], by_code, passed)) for c in below]
    return tuple(found for branch in nested for found in branch)


def _order(found: Suspect) -> tuple[bool, float, int]:
    return found.trouble.level != "cause", -found.confidence, found.first_line
