"""The values of many parts become one, and what the document does not say is found."""

from typing import Any

import pytest

from workhorse.batch.join_values import full_lists, join_values, keep_what_is_said, plain

TEXTS = {"type": "array", "items": {"type": "string"}, "maxItems": 3}


@pytest.mark.parametrize(
    ("parts", "joined"),
    [
        ([{"a": ["x", "y"]}, {"a": ["Y", " x ", "z"]}], {"a": ["x", "y", "z"]}),
        ([{"a": ["ＡＢ公司"]}, {"a": ["AB公司"]}], {"a": ["ＡＢ公司"]}),
        ([{"a": [{"n": "X", "v": 1}]}, {"a": [{"v": 1, "n": "x"}]}], {"a": [{"n": "X", "v": 1}]}),
        ([{"a": None, "b": ""}, {"a": 5, "b": "told"}], {"a": 5, "b": "told"}),
        ([{"a": {"b": []}}, {"a": {"b": ["c"]}}], {"a": {"b": ["c"]}}),
        ([{"a": False}, {"a": False}], {"a": False}),
        ([["x"], ["x", "y"]], ["x", "y"]),
        ([{"a": []}], {"a": []}),
    ],
)
def test_lists_come_together_without_doubles(parts: list[Any], joined: Any) -> None:
    found = join_values(parts)
    assert found.value == joined
    assert found.conflicts == []


def test_what_parts_say_differently_is_told() -> None:
    found = join_values([{"bill": {"sum": 5}}, {"bill": {"sum": None}}, {"bill": {"sum": 7}}])
    assert found.value == {"bill": {"sum": 5}}
    assert found.conflicts == ["`bill.sum`: 5, 7"]


def test_only_what_the_document_says_is_kept() -> None:
    document = "Ada Lovelace wrote to the “Royal\nSociety” in 1843.\n阿达住在伦敦。"
    schema = {
        "properties": {
            "people": TEXTS,
            "kind": {"enum": ["letter", "bill"]},
            "title": {"type": ["string", "null"]},
            "year": {"type": "integer"},
            "rows": {"items": {"properties": {"place": {"type": "string"}}}},
        }
    }
    value = {
        "people": ["ada  lovelace", "Bob", '"Royal Society"'],
        "kind": "letter",
        "title": "A Note",
        "year": 1843,
        "rows": [{"place": "伦敦"}, {"place": "Paris"}],
    }
    kept, invented = keep_what_is_said(value, schema, plain(document))
    assert kept == {
        "people": ["ada  lovelace", '"Royal Society"'],
        "kind": "letter",
        "title": None,
        "year": 1843,
        "rows": [{"place": "伦敦"}, {"place": ""}],
    }
    assert invented == ["Bob", "A Note", "Paris"]


def test_a_list_that_is_full_may_lack_something() -> None:
    schema = {"properties": {"a": {"$ref": "#/$defs/t"}, "b": TEXTS}, "$defs": {"t": TEXTS}}
    value = {"a": ["1", "2", "3"], "b": ["1", "1", "1"]}  # the second says one thing over and over
    assert list(full_lists(value, schema)) == ["a"]


def test_references_in_a_circle_end() -> None:
    schema = {"properties": {"a": {"$ref": "#/properties/a"}}}
    assert keep_what_is_said({"a": ["x"]}, schema, "x") == ({"a": ["x"]}, [])
