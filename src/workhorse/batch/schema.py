"""The form that an answer has to have: a JSON schema, at the engine and when it comes back.

The engine is sent what grammars can enforce; the whole schema is checked here. An answer with
prose round its JSON, or with small faults in it, is read if that is possible without guessing
at values; who reads it is told.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import json_repair
import jsonschema_rs

from workhorse.batch.task import NotValid
from workhorse.errors import EXIT_USAGE, AppError
from workhorse.text import Text

# What both llama.cpp's grammars and xgrammar (vLLM, LMDeploy) enforce (2026-11); anything else
# would have one of them refuse the request, or leave it unenforced.
_KEPT = frozenset({"type", "enum", "const", "required", "additionalProperties", "$ref"})
_SCHEMAS_BY_NAME = frozenset({"properties", "$defs", "definitions"})
_SCHEMAS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_COUNTS = frozenset({"minItems", "maxItems", "minLength", "maxLength"})
# Grammars spell out each repetition: large ones take seconds and fail (llama.cpp, 2026-11).
_MOST_REPEATED = 200
# A pattern without groups that look around and without classes by letter, such as `\d`.
_SIMPLE_PATTERN = re.compile(r"\^(?:[^\\(]|\\[.\-+*?(){}\[\]|^$/])*\$")
_DEEPEST = 32

_FENCED = re.compile(r"```[\w-]*[ \t]*\n(.*?)```", re.DOTALL)
_THOUGHT = re.compile(r"\s*<think>.*?</think>", re.DOTALL)


def check_schema(schema: Mapping[str, Any], what: str) -> None:
    """AppError that tells why a JSON schema of a user's own cannot be used; `what` names it."""
    why: str | None = None
    try:
        _deep_enough(schema)
        _validator(schema)
    except jsonschema_rs.ValidationError as error:
        why = f"{_place(error.instance_path)}: {error.message}"
    except (jsonschema_rs.ReferencingError, ValueError, RecursionError, TypeError) as error:
        why = str(error)
    if why is not None:
        raise AppError(
            Text(f"{what} is no JSON schema: {why}.", f"{what} 不是有效的 JSON schema：{why}。"),
            Text(
                "Mend it; `workhorse templates show entities` has one that works.",
                "请修改；可参考 `workhorse templates show entities`。",
            ),
            exit_code=EXIT_USAGE,
        )


class Shape:
    """A JSON schema that answers are held to."""

    def __init__(self, schema: Mapping[str, Any], name: str) -> None:
        check_schema(schema, f"`schema` ({name})")
        self.schema = schema
        self._validator = _validator(schema)
        self._name = re.sub(r"[^\w-]", "_", name)

    @property
    def response_format(self) -> dict[str, Any]:
        """What has the engine keep to it, as OpenAI's API takes it."""
        told = {"name": self._name, "schema": enforceable(self.schema), "strict": True}
        return {"type": "json_schema", "json_schema": told}

    def read(self, text: str) -> tuple[Any, bool]:
        """The value that an answer holds, and whether its JSON had to be repaired.

        Raises `NotValid` with the place where the answer and the schema part.
        """
        text = without_thoughts(text)
        why = Text("there is no JSON in it", "其中没有 JSON")
        for value, repaired in _values(text):
            error = next(iter(self._validator.iter_errors(value)), None)
            if error is None:
                return value, repaired
            said = _short(f"{_place(error.instance_path)}: {error.message}")
            why = Text(said, said)
        shown = _short(text)
        raise NotValid(
            f"The answer does not have the form that was asked for: {why.en}. It begins: {shown}",
            f"回答不符合要求的格式：{why.zh}。开头为：{shown}",
        )

    def allows(self, value: Any) -> bool:
        """Whether a value has this form."""
        return self._validator.is_valid(value)


def without_thoughts(text: str) -> str:
    """An answer without what a model thought aloud before it."""
    return _THOUGHT.sub("", text, count=1).strip() if "<think>" in text[:64] else text.strip()


def enforceable(schema: Any, depth: int = 0) -> Any:
    """The part of a schema that engines enforce: it allows whatever the whole one allows."""
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return schema if isinstance(schema, bool) else {}
    kept: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _SCHEMAS_BY_NAME and isinstance(value, Mapping):
            kept[key] = {name: enforceable(one, depth + 1) for name, one in value.items()}
        elif key in _SCHEMAS and isinstance(value, list):
            kept[key] = [enforceable(one, depth + 1) for one in value]
        elif key == "items" or (key == "additionalProperties" and isinstance(value, Mapping)):
            kept[key] = enforceable(value, depth + 1)
        elif (
            key in _KEPT
            or (key in _COUNTS and value <= _MOST_REPEATED)
            or (key == "pattern" and _SIMPLE_PATTERN.fullmatch(value))
        ):
            kept[key] = value
    return kept


def _validator(schema: Mapping[str, Any]) -> jsonschema_rs.Validator:
    """Nothing is fetched, and no pattern takes longer than its text is long."""
    return jsonschema_rs.validator_for(
        dict(schema), pattern_options=jsonschema_rs.RegexOptions(), offline=True
    )


def _deep_enough(schema: Any, depth: int = 0) -> None:
    if depth > 4 * _DEEPEST:
        raise ValueError("it is nested too deeply")
    inner = schema.values() if isinstance(schema, Mapping) else schema
    if isinstance(inner, str | bytes) or not hasattr(inner, "__iter__"):
        return
    for one in inner:
        _deep_enough(one, depth + 1)


def _values(text: str) -> Iterator[tuple[Any, bool]]:
    """The JSON values that an answer may mean, the most literal first; whether each is repaired.

    An answer that breaks off before any bracket is closed is none: its end would be guessed.
    """
    candidates = [text, *(match[1] for match in _FENCED.finditer(text))]
    starts = sorted(at for at in (text.find("{"), text.find("[")) if at >= 0)
    end = max(text.rfind("}"), text.rfind("]")) + 1
    cut_out = [text[start:end] for start in starts if end > start]
    for number, candidate in enumerate(candidates + cut_out):
        try:
            yield json.loads(candidate, parse_constant=_no_number), number > 0
        except (ValueError, RecursionError):
            continue
    for start in starts[:1]:  # prose with brackets of its own may follow, but no second object
        try:
            value, after = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            continue
        if "{" in text[after:]:
            return  # one of two objects would be lost
        yield value, True
    for candidate in cut_out[:1]:
        try:
            value = json_repair.loads(candidate)
        except (ValueError, RecursionError, IndexError):
            continue
        if isinstance(value, dict | list):
            yield value, True


def _no_number(word: str) -> Any:
    raise ValueError(word)  # NaN and Infinity are not JSON


_DECODER = json.JSONDecoder(parse_constant=_no_number)


def _place(path: list[str | int]) -> str:
    said = "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in path)
    return f"${said}"


def _short(said: str) -> str:
    said = " ".join(said.split())
    return said if len(said) <= 200 else said[:200] + " …"
