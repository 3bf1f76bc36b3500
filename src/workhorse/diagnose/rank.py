"""Which of the troubles seen is the cause, which are its consequences, and how sure that is."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from workhorse.diagnose.facts import Facts, applies
from workhorse.diagnose.scan import Line, Seen
from workhorse.knowledge.diagnoses import Trouble

# What one more sign is worth, and a fact that speaks for or against; certain is never 1.
NEAR, FACT, CERTAIN = 0.06, 0.1, 0.98


@dataclass(frozen=True, slots=True)
class Suspect:
    """One trouble that the log shows: how sure, by which lines, and what follows from it."""

    trouble: Trouble
    confidence: float
    lines: tuple[Line, ...]
    facts: tuple[str, ...] = ()  # those that spoke for it
    consequences: tuple["Suspect", ...] = ()

    @property
    def first_line(self) -> int:
        """Where the log first shows it."""
        return min((line.number for line in self.lines), default=0)


def rank(
    known: Sequence[Trouble], seen: dict[str, Seen], facts: Facts, behaves: Iterable[Suspect] = ()
) -> tuple[Suspect, ...]:
    """The troubles seen, the likeliest first, each with its consequences folded under it.

    `behaves` are those that were found in figures and not in single lines.
    """
    found = [s for t in known if (s := suspect(t, seen, facts)) is not None]
    by_code = {s.trouble.code: s for s in (*found, *behaves)}
    roots = _roots(by_code)
    folded = [_with_consequences(by_code[code], by_code, {code}) for code in roots]
    return tuple(sorted(folded, key=_order))


def suspect(trouble: Trouble, seen: dict[str, Seen], facts: Facts) -> Suspect | None:
    """The trouble with its evidence; None when nothing shows it or something rules it out."""
    lines = [line for e in trouble.lines if e in seen for line in seen[e].samples]
    near = [line for e in trouble.near if e in seen for line in seen[e].samples[:1]]
    if not lines or any(e in seen for e in trouble.never) or (trouble.needs_near and not near):
        return None
    confidence = trouble.sure + NEAR * min(len(near), 2)
    spoke = []
    for rule in trouble.facts:
        if not applies(rule, facts):
            continue
        spoke.append(f"{rule.fact} {', '.join(sorted(facts[rule.fact]))}")
        match rule.makes:
            case "impossible":
                return None
            case "certain":
                confidence = max(confidence, CERTAIN)
            case "likelier":
                confidence += FACT
            case "unlikelier":
                confidence -= 2 * FACT
                spoke.pop()
    shown = sorted((*lines, *near), key=lambda line: line.number)
    unique = {line.number: line for line in shown}
    return Suspect(
        trouble, max(0.05, min(confidence, CERTAIN)), tuple(unique.values()), tuple(spoke)
    )


def _roots(by_code: dict[str, Suspect]) -> list[str]:
    """The codes that nothing else seen explains; two that explain each other both stay."""
    explained = {
        consequence
        for code, found in by_code.items()
        for consequence in found.trouble.explains
        if consequence != code
        and consequence in by_code
        and code not in by_code[consequence].trouble.explains
    }
    return [code for code in by_code if code not in explained]


def _with_consequences(root: Suspect, by_code: dict[str, Suspect], passed: set[str]) -> Suspect:
    below = [c for c in root.trouble.explains if c in by_code and c not in passed]
    passed.update(below)
    nested = [_with_consequences(by_code[code], by_code, passed) for code in below]
    flat = [s for n in nested for s in (n, *n.consequences)]
    return Suspect(root.trouble, root.confidence, root.lines, root.facts, tuple(flat))


def _order(found: Suspect) -> tuple[bool, float, int]:
    return found.trouble.level != "cause", -found.confidence, found.first_line
