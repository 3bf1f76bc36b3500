"""How far a confidence can be trusted, and that no text whatever breaks the reader."""

import random
import tomllib
from importlib.metadata import distributions
from pathlib import Path

from dressing import DRESSES, HEALTHY, dressed, embedded
from test_cases import CASES, PARAPHRASES, facts_of

from workhorse.diagnose.judge import SURE, diagnose, scan
from workhorse.knowledge.diagnoses import troubles

_UNRELATED = 200
# Packages that quote the same errors in their notices are no unrelated texts.
RELATED = (
    "workhorse",
    "llama",
    "vllm",
    "torch",
    "nvidia",
    "cuda",
    "gguf",
    "huggingface",
    "hf_xet",
    "modelscope",
)
_MUTATED = 5_000


def unrelated_texts() -> list[bytes]:
    """Sources and notices of installed packages, and healthy logs with their lines mixed."""
    dice = random.Random(9)
    files = [
        Path(str(found.locate_file(file)))
        for found in distributions()
        if not any(word in found.metadata["Name"].lower() for word in RELATED)
        for file in found.files or ()
        if file.suffix in (".py", ".md", ".rst", ".txt", ".pyi") or file.name == "METADATA"
    ]
    sized = [f for f in sorted(files) if f.is_file() and 500 < f.stat().st_size < 200_000]
    texts = [path.read_bytes() for path in dice.sample(sized, _UNRELATED - 40)]
    lines = [line for path in sorted(HEALTHY.iterdir()) for line in path.read_bytes().splitlines()]
    return [*texts, *(b"\n".join(dice.sample(lines, 300)) for _ in range(40))]


def test_confident_findings_are_right() -> None:
    right = wrong = 0
    for case in (tomllib.loads(path.read_text()) for path in CASES):
        for facts in (facts_of(case), None):
            findings = diagnose(scan([case["log"].encode()]), facts).findings
            if findings and (findings[0].confidence or 0) >= SURE:
                right += findings[0].code == case["code"]
                wrong += findings[0].code != case["code"]
    for number, case in enumerate(PARAPHRASES):
        log = dressed(embedded(case["lines"], case["in"]), DRESSES[number % len(DRESSES)])
        findings = diagnose(scan([log]), facts_of(case) or None).findings
        if findings and (findings[0].confidence or 0) >= SURE:
            right += findings[0].code == case["code"]
            wrong += findings[0].code != case["code"]
    texts = unrelated_texts()
    assert len(texts) == _UNRELATED
    alarms = []
    for text in texts:
        findings = diagnose(scan([text])).findings
        if findings and findings[0].level == "cause" and (findings[0].confidence or 0) >= SURE:
            alarms.append((findings[0].code, findings[0].evidence[0]))
    assert right > 100
    assert right / (right + wrong + len(alarms)) >= 0.95
    assert alarms == []


def test_a_text_that_says_nothing_known_says_so() -> None:
    (finding,) = diagnose(scan([b"starting\nthe frobnicator failed: error 17\n"])).findings
    assert (finding.code, finding.level, finding.sure) == ("diagnose.not_known", "note", "possible")
    assert "frobnicator" in finding.evidence[0]
    assert diagnose(scan([b"all is well\n"])).findings == ()
    assert diagnose(scan([])).findings == ()


def mutated(log: bytes, dice: random.Random) -> bytes:
    """The log cut, with bytes changed, lines doubled, swapped, joined or blown up."""
    lines = log.splitlines(keepends=True)[: dice.randint(1, 40)]
    for _ in range(dice.randint(1, 5)):
        place = dice.randrange(len(lines))
        line = lines[place]
        match dice.randrange(7):
            case 0:
                lines[place] = line[: dice.randrange(len(line) + 1)]
            case 1:
                at = dice.randrange(len(line) + 1)
                lines[place] = line[:at] + dice.randbytes(dice.randint(1, 12)) + line[at:]
            case 2:
                lines.insert(place, line)
            case 3:
                lines[place] = line.replace(b"\n", dice.choice([b"", b"\r", b"\0", b"\r\n"]))
            case 4:
                lines[place] = line * dice.randint(2, 60)
            case 5:
                lines[place] = bytes(dice.choice(b"0123456789.") if c in b"0123456789" else c
                                     for c in line)  # fmt: skip
            case 6:
                dice.shuffle(lines)
    return b"".join(lines)


def test_mutated_logs_never_break_the_reader() -> None:
    dice = random.Random(5)
    logs = [tomllib.loads(path.read_text())["log"].encode() for path in CASES]
    logs += [embedded_bytes(case["lines"]) for case in PARAPHRASES]
    known = {trouble.code for trouble in troubles()} | {"diagnose.not_known"}
    for _ in range(_MUTATED):
        log = mutated(dice.choice(logs), dice)
        size = dice.choice([7, 100, 1 << 20])
        chunks = (log[n : n + size] for n in range(0, len(log), size))
        for finding in diagnose(scan(chunks)).findings:
            assert finding.code in known


def embedded_bytes(lines: str) -> bytes:
    return b"starting up\n" + lines.encode() + b"\nended\n"


def test_chunks_of_any_size_tell_the_same() -> None:
    log = tomllib.loads(CASES[0].read_text())["log"].encode()
    whole = diagnose(scan([log]))
    assert diagnose(scan(bytes([byte]) for byte in log)) == whole
    assert diagnose(scan([log[:50], b"", log[50:]])) == whole


def test_an_endless_line_is_looked_at_where_the_words_are() -> None:
    log = b"x" * 3_000_000 + b" CUDA error: no kernel image is available " + b"y" * 3_000_000
    found = diagnose(scan(log[n : n + 65536] for n in range(0, len(log), 65536))).findings
    assert found[0].code == "engine.no_kernel_image"
