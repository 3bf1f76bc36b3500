"""The rules of what runs with what: well-formed, and each met by the facts that it names."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from rule_cases import meeting, missing
from workhorse.knowledge import compat, rows
from workhorse.knowledge.compat import Rule, rules
from workhorse.knowledge.gpus import Generation, generations

FOLDER = Path(compat.__file__).parent / "compat"
CHINESE = re.compile(r"[\u4e00-\u9fff]")
GOOD: dict[str, Any] = {
    "id": "x.y",
    "when": {"capability": "<5.0"},
    "effect": "fails",
    "cause_en": "c",
    "cause_zh": "因",
    "remedy_en": "r",
    "remedy_zh": "法",
    "source": "s",
    "date": "2026-11",
    "confidence": "documented",
}


def ids(rule: Rule) -> str:
    return rule.id


def load(monkeypatch: pytest.MonkeyPatch, row: dict[str, Any]) -> tuple[Rule, ...]:
    monkeypatch.setattr(rows, "table", lambda name: {"rule": [row]})
    return rows.rows("compat/x", "rule", Rule)


def test_every_table_is_read() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(compat.TABLES)


def test_every_row_of_every_table_is_a_rule() -> None:
    written = [
        row["id"]
        for path in FOLDER.glob("*.toml")
        for row in tomllib.loads(path.read_text(encoding="utf-8"))["rule"]
    ]
    assert sorted(written) == sorted(rule.id for rule in rules())


@pytest.mark.parametrize("rule", rules(), ids=ids)
def test_a_rule_applies_where_it_says_and_nowhere_else(rule: Rule) -> None:
    facts = meeting(rule)
    assert rule.applies(facts) is True
    assert rule.unknown(facts) == frozenset()
    for key in rule.when:
        assert rule.applies(missing(rule, key)) is False, key
        fact = "cpu_flags" if key == "cpu_lacks" else key
        without = {name: value for name, value in facts.items() if name != fact}
        assert rule.applies(without) is None, key
        assert rule.unknown(without) == {key}


@pytest.mark.parametrize("rule", rules(), ids=ids)
def test_a_rule_says_it_in_both_languages_with_source_and_date(rule: Rule) -> None:
    for text in (rule.cause, rule.remedy, rule.use):
        if text is not None:
            assert text.en and text.zh
            assert not CHINESE.search(text.en)
    assert CHINESE.search(rule.cause_zh) and CHINESE.search(rule.remedy_zh)
    assert re.fullmatch(r"20\d\d-\d\d", rule.date)
    assert len(rule.source) > 8
    assert not re.search(r"scratch|/tmp|h5_", rule.source)


def test_an_unreadable_fact_is_unknown() -> None:
    rule = next(rule for rule in rules() if rule.id == "driver.before-turing")
    facts = meeting(rule)
    assert rule.applies({**facts, "driver": "N/A"}) is None
    assert rule.applies({**facts, "driver": ""}) is None
    # What is known to be otherwise decides, whatever else is not known.
    assert rule.applies({"capability": "8.0"}) is False


def test_a_well_formed_rule_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    (rule,) = load(monkeypatch, GOOD)
    assert rule.applies({"capability": "3.7"}) is True


@pytest.mark.parametrize(
    "change",
    [
        {"surprise": 1},
        {"source": ""},
        {"date": ""},
        {"effect": "explodes"},
        {"confidence": "sure"},
        {"when": {}},
        {"when": {"colour": "red"}},
        {"when": {"capability": "<=5.0"}},
        {"when": {"capability": "about 5"}},
        {"when": {"capability": ">=5.0,<5.0"}},
        {"when": {"capability": ">=7.5,<5.0"}},
        {"when": {"capability": "<5.0,<6.0"}},
        {"when": {"capability": ["<5.0"]}},
        {"when": {"software": ""}},
        {"when": {"software": []}},
        {"when": {"software": ["vllm", ""]}},
        {"when": {"cpu_lacks": ["avx2"]}},
        {"when": {"cpu_lacks": ""}},
        {"use_en": "AWQ"},
    ],
    ids=str,
)
def test_a_malformed_rule_is_refused(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    with pytest.raises(ValueError):
        load(monkeypatch, GOOD | change)


@pytest.mark.parametrize("column", ["source", "date", "confidence", "remedy_zh", "when"])
def test_a_rule_without_a_column_is_refused(monkeypatch: pytest.MonkeyPatch, column: str) -> None:
    with pytest.raises(ValueError):
        load(monkeypatch, {key: value for key, value in GOOD.items() if key != column})


def test_two_rules_with_one_id_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "table", lambda name: {"rule": [GOOD]})
    with pytest.raises(ValueError, match=r"x\.y"):
        rules.__wrapped__()


def failing(subject: str, facts: dict[str, str]) -> list[str]:
    return [
        rule.id
        for rule in rules()
        if rule.id.startswith(f"{subject}.") and rule.effect == "fails" and rule.applies(facts)
    ]


@pytest.mark.parametrize("generation", generations(), ids=lambda each: f"{each.capability_from}")
def test_the_rules_agree_with_what_is_known_of_the_generations(generation: Generation) -> None:
    major, minor = generation.capability_from
    card = {"capability": f"{major}.{minor}"}
    if generation.driver_last is not None:
        last, beyond = str(generation.driver_last), str(generation.driver_last + 100)
        assert failing("driver", card | {"driver": f"{last}.99"}) == []
        assert failing("driver", card | {"driver": beyond})
    if generation.toolkit_last is not None and generation.capability_from >= (3, 0):
        family = int(generation.toolkit_last.split(".")[0])
        assert failing("toolkit", card | {"toolkit": f"{generation.toolkit_last}.1"}) == []
        assert failing("toolkit", card | {"toolkit": f"{family + 1}.0"})
    if generation.kernel_module != "either" and generation.capability_from >= (3, 0):
        other = {"proprietary": "open", "open": "proprietary"}[generation.kernel_module]
        assert failing("driver", card | {"driver_module": other})
        assert failing("driver", card | {"driver_module": generation.kernel_module}) == []
