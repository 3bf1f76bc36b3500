"""What several parts of a document gave, as one value; what of it the document really says."""

import json
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Spellings of the same marks that models swap when they copy.
_SAME = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "‐": "-", "‑": "-", "–": "-"})


@dataclass(slots=True)
class Joined:
    """One value of many parts, and where the parts said different things of the same field."""

    value: Any
    conflicts: list[str] = field(default_factory=list)  # `total`: 5, 7


def join_values(values: Sequence[Any]) -> Joined:
    """One value: lists one after the other without doubles, of everything else the first told.

    A null, an empty text or list says nothing. What is told differently is kept as a conflict.
    """
    joined = Joined(None)
    joined.value = _join(list(values), "", joined.conflicts)
    return joined


def _join(values: list[Any], at: str, conflicts: list[str]) -> Any:
    told = [value for value in values if value not in (None, "", [], {})]
    if not told:
        return values[0] if values else None
    if all(isinstance(value, dict) for value in told):
        keys = dict.fromkeys(key for value in values if isinstance(value, dict) for key in value)
        return {
            key: _join(
                [value[key] for value in values if isinstance(value, dict) and key in value],
                f"{at}.{key}" if at else key,
                conflicts,
            )
            for key in keys
        }
    if all(isinstance(value, list) for value in told):
        return without_doubles([one for value in told for one in value])
    kept = without_doubles(told)
    if len(kept) > 1:
        shown = ", ".join(json.dumps(one, ensure_ascii=False) for one in kept[:4])
        conflicts.append(f"`{at}`: {shown}{', …' if len(kept) > 4 else ''}")
    return kept[0]


def without_doubles(values: Sequence[Any]) -> list[Any]:
    """The values in their order, each once: letter case, spaces and widths make no difference."""
    kept: dict[str, Any] = {}
    for value in values:
        kept.setdefault(_key(value), value)
    return list(kept.values())


def _key(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(plain(value))
    if isinstance(value, dict):
        return json.dumps(sorted((key, _key(one)) for key, one in value.items()))
    if isinstance(value, list):
        return json.dumps([_key(one) for one in value])
    return json.dumps(value)


def plain(text: str) -> str:
    """A text as it is compared: without spaces, letter case, widths and kinds of quotes."""
    return "".join(unicodedata.normalize("NFKC", text).translate(_SAME).casefold().split())


def keep_what_is_said(
    value: Any, schema: Mapping[str, Any], plain_document: str
) -> tuple[Any, list[str]]:
    """The value without the texts that the document does not have, and those.

    Texts of a list go; a field on its own becomes null or empty, whichever its schema allows.
    Choices that the schema gives, such as a category, are no texts of the document.
    """
    invented: list[str] = []
    return _said(value, schema, schema, plain_document, invented), invented


def _said(value: Any, schema: Any, root: Any, document: str, invented: list[str]) -> Any:
    schema = _resolved(schema, root)
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        other = schema.get("additionalProperties", {})
        return {
            key: _said(one, properties.get(key, other), root, document, invented)
            for key, one in value.items()
        }
    if isinstance(value, list):
        items = schema.get("items", {})
        kept = []
        for one in value:
            if isinstance(one, str) and not _is_choice(items, root) and plain(one) not in document:
                invented.append(one)
                continue
            kept.append(_said(one, items, root, document, invented))
        return kept
    if isinstance(value, str) and value and not _is_choice(schema, root):
        if plain(value) in document:
            return value
        invented.append(value)
        kinds = schema.get("type")
        return None if isinstance(kinds, list) and "null" in kinds else ""
    return value


def _is_choice(schema: Any, root: Any) -> bool:
    schema = _resolved(schema, root)
    return "enum" in schema or "const" in schema


def _resolved(schema: Any, root: Any) -> Mapping[str, Any]:
    """A schema, or what its local `$ref` points to; empty where it is anything else."""
    for _ in range(8):  # references may lead in a circle
        if not isinstance(schema, Mapping):
            return {}
        place = schema.get("$ref")
        if not isinstance(place, str) or not place.startswith("#/"):
            return schema
        schema = root
        for name in place[2:].split("/"):
            schema = schema.get(name) if isinstance(schema, Mapping) else None
    return {}


def without_limits(schema: Any) -> Any:
    """A schema whose lists may be of any length: those of many parts are longer than one's."""
    if isinstance(schema, Mapping):
        return {key: without_limits(one) for key, one in schema.items() if key != "maxItems"}
    return [without_limits(one) for one in schema] if isinstance(schema, list) else schema


def full_lists(value: Any, schema: Any, root: Any = None, at: str = "") -> Iterator[str]:
    """The lists that are as long as their schema allows: there may have been more."""
    root = schema if root is None else root
    schema = _resolved(schema, root)
    if isinstance(value, dict):
        for key, one in value.items():
            inner = schema.get("properties", {}).get(key, {})
            yield from full_lists(one, inner, root, f"{at}.{key}" if at else key)
    elif isinstance(value, list):
        most = schema.get("maxItems")
        if isinstance(most, int) and 1 < most <= len(without_doubles(value)):
            yield at or "the list"
