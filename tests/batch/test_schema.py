"""An answer is held to its schema; small faults of its JSON are mended and told, never more."""

from typing import Any

import pytest

from workhorse.batch.schema import Shape, check_schema, enforceable
from workhorse.batch.task import NotValid
from workhorse.errors import AppError

PEOPLE: dict[str, Any] = {
    "type": "object",
    "required": ["people"],
    "additionalProperties": False,
    "properties": {"people": {"type": "array", "items": {"type": "string"}}},
}


@pytest.mark.parametrize(
    ("said", "repaired"),
    [
        ('{"people": ["Ada", "Bo"]}', False),
        ('  {"people":["Ada","Bo"]}\n', False),
        ('<think>\nWho? {"people": 1}\n</think>\n{"people": ["Ada", "Bo"]}', False),
        ('Sure! Here it is:\n```json\n{"people": ["Ada", "Bo"]}\n```\nAnything else?', True),
        ('The people are {"people": ["Ada", "Bo"]}. I hope that helps [1].', True),
        ('{"people": ["Ada", "Bo",]}', True),
        ("{'people': ['Ada', 'Bo']}", True),
        ('{people: ["Ada", "Bo"]', True),
    ],
)
def test_what_can_be_read_without_guessing_is_read(said: str, repaired: bool) -> None:
    assert Shape(PEOPLE, "x").read(said) == ({"people": ["Ada", "Bo"]}, repaired)


@pytest.mark.parametrize(
    ("said", "part"),
    [
        ("Ada and Bo.", "no JSON"),
        ("", "no JSON"),
        ('{"people": ["Ada", 5]}', "$.people[1]"),
        ('{"people": ["Ada"], "more": 1}', "more"),
        ('{"people": ["Ada", "B', "no JSON"),  # broken off: its end would be guessed
        ('{"people": [NaN]}', "$.people[0]"),
        ("[" * 5000, "no JSON"),
        # Two objects: one would be lost.
        ('{"people": ["Ada"]}\n{"people": ["Bo"]}', "no JSON"),
        ('[{"people": ["Ada"]}, {"people": ["Bo"]}]', "$:"),
        ('Example: {"people": []}. Answer: {"people": ["Bo"]}', "no JSON"),
        ('["Ada"]', "$:"),
    ],
)
def test_what_is_not_valid_is_refused_with_its_place(said: str, part: str) -> None:
    with pytest.raises(NotValid) as refused:
        Shape(PEOPLE, "x").read(said)
    assert part in refused.value.seen


@pytest.mark.parametrize(
    ("schema", "part"),
    [
        ({"type": "objct"}, "$.type"),
        ({"properties": []}, "$.properties"),
        ({"$ref": "https://example.invalid/schema"}, "https://example.invalid/schema"),
        ({"$ref": "#/$defs/none"}, "/$defs/none"),
        ({"type": "string", "pattern": "(a"}, "(a"),
        ({"minItems": "2"}, "$.minItems"),
    ],
)
def test_what_is_no_schema_is_told_with_its_place(schema: dict[str, Any], part: str) -> None:
    with pytest.raises(AppError) as refused:
        check_schema(schema, "`schema`")
    assert part in refused.value.what.en
    assert part in refused.value.what.zh


def test_a_schema_nested_without_end_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(2000):
        schema = {"properties": {"a": schema}}
    with pytest.raises(AppError, match="deep"):
        check_schema(schema, "`schema`")


def test_the_engine_gets_what_grammars_enforce() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A bill",
        "type": "object",
        "required": ["date", "sum"],
        "properties": {
            "date": {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}$", "format": "date"},
            "sum": {"type": "number", "minimum": 0},
            "code": {"type": "string", "pattern": r"^\d+$", "maxLength": 100_000},
            "title": {"type": "array", "items": {"$ref": "#/$defs/t"}, "uniqueItems": True},
        },
        "$defs": {"t": {"enum": ["a", "b"], "description": "either"}},
    }
    assert enforceable(schema) == {
        "type": "object",
        "required": ["date", "sum"],
        "properties": {
            "date": {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}$"},
            "sum": {"type": "number"},
            "code": {"type": "string"},
            "title": {"type": "array", "items": {"$ref": "#/$defs/t"}},
        },
        "$defs": {"t": {"enum": ["a", "b"]}},
    }
    shape = Shape(schema, "a bill")
    told = shape.response_format["json_schema"]
    assert told["name"] == "a_bill"
    with pytest.raises(NotValid, match="sum"):  # what the engine was not told is checked here
        shape.read('{"date": "2026-11", "sum": -1}')
