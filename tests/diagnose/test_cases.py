"""Public failures as logs, and other wordings of known troubles: the cause at first rank."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from dressing import DRESSES, dressed, embedded

from workhorse.diagnose.judge import diagnose, scan
from workhorse.records import Finding

HERE = Path(__file__).parent
CASES = sorted((HERE / "cases").glob("*.toml"))
PARAPHRASES: list[dict[str, Any]] = tomllib.loads((HERE / "paraphrases.toml").read_text())["case"]


def facts_of(case: dict[str, Any]) -> dict[str, frozenset[str]]:
    return {fact: frozenset(values) for fact, values in case.get("facts", {}).items()}


def first(log: bytes, facts: dict[str, frozenset[str]] | None) -> Finding:
    verdict = diagnose(scan([log]), facts)
    assert verdict.findings, "nothing was found"
    return verdict.findings[0]


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_a_public_failure(path: Path) -> None:
    case = tomllib.loads(path.read_text())
    assert case["log"].count("\n") >= 15
    assert case["source"]
    assert first(case["log"].encode(), None).code == case["code"]
    found = first(case["log"].encode(), facts_of(case))
    assert found.code == case["code"]
    assert found.evidence
    assert found.check is not None


def test_all_public_failures_are_there() -> None:
    assert len(CASES) == 42


@pytest.mark.parametrize(
    "case", PARAPHRASES, ids=[f"{n}-{case['code']}" for n, case in enumerate(PARAPHRASES)]
)
def test_another_wording(case: dict[str, Any]) -> None:
    log = embedded(case["lines"], case["in"])
    told = {dress: first(dressed(log, dress), facts_of(case) or None).code for dress in DRESSES}
    assert told == dict.fromkeys(DRESSES, case["code"])
