"""One cause, not five findings: what follows from a finding is told with it."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from workhorse.records import Finding, Level
from workhorse.text import Text

# A PCI address as evidence gives it.
_CARD = re.compile(r"\b[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b", re.IGNORECASE)
_WORSE: dict[Level, int] = {"good": 0, "note": 1, "warning": 2, "cause": 3, "blocker": 4}


@dataclass(frozen=True, slots=True)
class Fold:
    """`follows` (a pattern of codes) is a consequence of `root`; `card`: only on the same card."""

    root: str
    follows: str
    card: bool = False


FOLDS = (
    Fold(r"cpu\.(no-avx2|avx2-hidden)", r"cpu\.instructions_missing|system\.cpu_lacks-\w+"),
    # A card that is gone, and the driver's last words about it.
    Fold(r"gpu\.lost", r"(xid|nvrm)\..+|link\.(replays|bus-errors)", card=True),
    Fold(r"(xid|nvrm)\.(bus|hardware|79)", r"gpu\.(not-shown|unknown|silent)", card=True),
    # The kernel's own words on a driver that does not drive the card, and what follows from them.
    Fold(r"driver\.(fermi|kepler|before-turing|open-module|closed-module)", r"nvrm\.support"),
    Fold(r"nvrm\.support", r"(gpu\.(no-driver|not-shown|unknown)|nvrm\.hardware)", card=True),
    Fold(r"gpu\.library-mismatch", r"nvrm\.driver"),
    Fold(r"nvrm\.support", r"gpu\.none-found|nvrm\.consequence"),
    # A bad contact loses lanes, sends packets again and is slow.
    Fold(r"xid\.(11|32|79)|nvrm\.bus", r"link\.(replays|width-lost)", card=True),
    Fold(r"link\.(width-lost|speed-lost)", r"link\.(slow|replays)", card=True),
    Fold(r"link\.slow", r"link\.(slot-narrower|width-below-card)", card=True),
    # A socket without modules is slow to read, unequal and far away.
    Fold(r"memory\.node-empty", r"memory\.(sockets-unequal|slower-than-rated|cross-node)"),
    Fold(r"memory\.channels-empty", r"memory\.(sockets-unequal|mixed-sizes)"),
    Fold(r"system\.busy", r"memory\.slower-than-rated"),
    Fold(r"memory\.(small|taken)", r"kernel\.killed|memory\.swap-used"),
    Fold(r"gpu\.(too-hot|power-brake|hw-slowdown)", r"gpu\.power-limit", card=True),
)


def fold(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The findings without those that follow from another one.

    The root names them as its consequences and takes over their evidence, and the worst level
    and loss among them: what blocked still blocks.
    """
    left = list(findings)
    for rule in FOLDS:
        for root in [f for f in left if re.fullmatch(rule.root, f.code)]:
            follow = [
                f
                for f in left
                if f is not root
                and re.fullmatch(rule.follows, f.code)
                and (not rule.card or frozenset() != cards_of(f) <= cards_of(root))
            ]
            if follow:
                kept = [f for f in left if f not in follow]
                left = [joined(root, follow) if f is root else f for f in kept]
    return tuple(left)


def gather(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings that differ in nothing but the card they are about, as one that names them all."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for one in findings:
        groups.setdefault((one.code, one.level, one.why, one.remedy, one.sure), []).append(one)
    return tuple(together(group) for group in groups.values())


def together(group: list[Finding]) -> Finding:
    """One finding of several equal ones, with the commands of all of them."""
    if len(group) == 1:
        return group[0]
    losses = [f.share_lost for f in group if f.share_lost is not None]
    commands = dict.fromkeys(f.command for f in group if f.command)
    return replace(
        group[0],
        command="; ".join(commands) or None,
        seen=Text(" ".join(f.seen.en for f in group), "".join(f.seen.zh for f in group)),
        evidence=tuple(dict.fromkeys(line for f in group for line in f.evidence)),
        share_lost=max(losses, default=None),
        consequences=tuple(text for f in group for text in f.consequences),
    )


def cards_of(finding: Finding) -> frozenset[str]:
    """The cards that a finding is about, by the addresses in its evidence."""
    return frozenset(
        match.group().lower()[-12:] for line in finding.evidence for match in _CARD.finditer(line)
    )


def joined(root: Finding, follow: list[Finding]) -> Finding:
    """The root with what follows from it."""
    level = max((root.level, *(f.level for f in follow)), key=_WORSE.__getitem__)
    losses = [f.share_lost for f in (root, *follow) if f.share_lost is not None]
    lines = (line for f in (root, *follow) for line in f.evidence)
    told = (text for f in follow for text in (f.seen, *f.consequences))
    return replace(
        root,
        level=level,
        share_lost=max(losses, default=None),
        evidence=tuple(dict.fromkeys(lines)),
        consequences=(*root.consequences, *told),
    )
