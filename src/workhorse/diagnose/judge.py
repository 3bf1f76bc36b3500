"""A log in, a Verdict out: the cause first, with its evidence, the fix and how to check it."""

from collections.abc import Iterable, Sequence
from functools import cache

from workhorse.diagnose.behaviour import PIECE, SERIES, behaving
from workhorse.diagnose.facts import NAMES, TELLING, Facts, facts_of_log, together, with_conclusions
from workhorse.diagnose.rank import READY, RETRY, Suspect, rank
from workhorse.diagnose.scan import Line, Scanner, Search
from workhorse.knowledge.diagnoses import Trouble, troubles
from workhorse.records import Finding, Verdict
from workhorse.text import Text

# Below this a cause is named as possible only, and never alone decides.
LIKELY, SURE = 0.6, 0.9
_SHOWN_MAX = 5
# Lines that tell a fact, and figures of a series (tokens a second), that are kept.
_VALUES_MAX, _FIGURES_MAX = 64, 5_000
# Lines that speak of a failure whose cause nobody has written down yet.
COMPLAINT = (
    r"\berror\b",
    r"\bfailed\b",
    r"\bfatal\b",
    r"\btraceback \(most recent",
    r"\bassert(?:ion)?\b",
    r"\bcannot\b",
    r"\bexception\b",
)
# Where a program begins anew, in a log that holds several runs of it.
STARTS = (
    r"llama_server: initializing",
    r"\bbuild: \d+ \([0-9a-f]{7,}",
    r"vLLM API server version",
    r"Listening on \S+ \(version",
    r"server_args=ServerArgs",
    r"input backend=(?:turbomind|pytorch)",
    r"Welcome to KoboldCpp",
    r"systemd\[1\]: Start(?:ed|ing) .{0,60}(?:llama|ollama|llm|lmdeploy|sglang)",
)


@cache
def _search() -> Search:
    wanted = [e for t in troubles() for e in (*t.lines, *t.near, *t.never)]
    series = {**dict.fromkeys(TELLING, _VALUES_MAX), **dict.fromkeys(SERIES, _FIGURES_MAX)}
    talk = [PIECE, *(e for t in troubles() if t.in_answers for e in t.lines)]
    return Search((*wanted, *COMPLAINT, *RETRY, *READY), series, STARTS, talk)


def scan(chunks: Iterable[bytes]) -> Scanner:
    """The log searched for everything that is known."""
    scanner = Scanner(_search())
    scanner.read(chunks)
    return scanner


def diagnose(scanner: Scanner, machine_facts: Facts | None = None) -> Verdict:
    """What the log means: causes and behaviours, the likeliest first.

    `machine_facts` are those of the machine that the log may come from, None when none is at
    hand. What the log itself tells counts where the machine says nothing; a log that names
    another kind of card comes from elsewhere, and then the machine's facts do not count.
    """
    facts = with_conclusions(together(facts_of_log(scanner), machine_facts or {}))
    known = {trouble.code: trouble for trouble in troubles()}
    ranked = rank(tuple(known.values()), scanner.seen, facts, behaving(known, scanner.seen))
    findings = [_finding(found) for found in ranked[:_SHOWN_MAX]]
    if not findings and (complaints := _complaints(scanner)):
        findings = [not_known(complaints)]
    return Verdict(tuple(findings))


def diagnose_lines(lines: Sequence[str], machine_facts: Facts | None = None) -> Verdict:
    """The same for a log that is in memory already."""
    return diagnose(scan([("\n".join(lines) + "\n").encode()]), machine_facts)


def not_known(complaints: Sequence[Line]) -> Finding:
    """Nothing known fits: the complaints themselves, and what to collect."""
    return Finding(
        code="diagnose.not_known",
        level="note",
        seen=Text(
            "The log complains, but no known cause fits.", "日志中有报错，但没有匹配的已知原因。"
        ),
        why=Text(
            "Nothing is said here that is not known: the lines below are the log's own.",
            "未知的原因不作猜测；下面是日志原文。",
        ),
        remedy=Text(
            "Collect what is needed to find it: the whole log from the start on, what was typed,"
            " and this machine: workhorse probe --save DIR.",
            "请收集定位所需的信息：从启动开始的完整日志、所用的命令，以及本机信息："
            "workhorse probe --save DIR。",
        ),
        source="workhorse diagnose",
        command="workhorse probe --save workhorse-capture",
        evidence=tuple(line.shown() for line in complaints),
        sure="possible",
    )


def _complaints(scanner: Scanner) -> list[Line]:
    found = {
        line.number: line
        for expression in COMPLAINT
        if expression in scanner.seen
        for line in scanner.seen[expression].samples
    }
    return [found[number] for number in sorted(found)][:_SHOWN_MAX]


def _finding(found: Suspect) -> Finding:
    trouble = found.trouble
    return Finding(
        code=trouble.code,
        # A cause that is only possible must not stand there like one that is known.
        level="cause" if trouble.level == "cause" and found.confidence >= LIKELY else "warning",
        seen=Text(trouble.en, trouble.zh),
        why=_why(found),
        remedy=Text(trouble.en_step, trouble.zh_step),
        source=f"{trouble.source}, {trouble.date}",
        command="\n".join(trouble.commands) or None,
        evidence=tuple(line.shown() for line in found.lines[:_SHOWN_MAX]),
        sure=(
            "certain"
            if found.confidence >= SURE
            else "likely"
            if found.confidence >= LIKELY
            else "possible"
        ),
        confidence=round(found.confidence, 2),
        check=Text(trouble.en_check, trouble.zh_check),
        consequences=tuple(_consequence(c.trouble) for c in found.consequences),
    )


def _why(found: Suspect) -> Text:
    if not found.facts:
        return Text("The log says so.", "依据：日志内容。")
    en = "; ".join(f"{NAMES[fact].en} {values}" for fact, values in found.facts)
    zh = "；".join(f"{NAMES[fact].zh} {values}" for fact, values in found.facts)
    return Text(f"The log says so, and it fits: {en}.", f"依据：日志内容，且与事实相符：{zh}。")


def _consequence(trouble: Trouble) -> Text:
    return Text(trouble.en, trouble.zh)
