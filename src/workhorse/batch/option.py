"""Something a job may set of its template: what it takes, and how a prompt holds it."""

import re
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from workhorse.text import Text

# What an option's value is. `labels`: names, or a table of names and what each means. `file` and
# `folder`: a path, from the job file's folder on. `schema`: a JSON schema, or the path of one.
Kind = Literal["text", "integer", "number", "boolean", "list", "labels", "file", "folder", "schema"]


class About(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a person reads about it; one language is enough."""

    en: str | None = None
    zh: str | None = None

    @property
    def text(self) -> Text:
        """In both languages, as far as there are two."""
        en, zh = (said and said.strip().rstrip(".。") for said in (self.en, self.zh))
        return Text(en or zh or "", zh or en or "")


class Option(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something a job may set; prompts hold it as `{{NAME}}`."""

    about: About = About()
    kind: Kind | None = None  # left out: what the default is
    default: Any = None  # None: there is none
    required: bool = False  # a job without it is refused
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None


def kind_of(default: object) -> Kind:
    """What an option with this default takes."""
    if isinstance(default, bool):
        return "boolean"
    if isinstance(default, int):
        return "integer"
    if isinstance(default, float):
        return "number"
    return "list" if isinstance(default, list) else "text"


def taken(option: Option, value: Any) -> tuple[Any, Text | None]:
    """The value as the option takes it, or why it does not: "cannot be …"."""
    shown = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    what, convert = _KINDS[option.kind or "text"]
    try:
        taken = convert(value)
    except (ValueError, OverflowError):
        return None, Text(
            f"cannot be {_short(shown)}: it takes {what.en}",
            f"不能是 {_short(shown)}：应为{what.zh}",
        )
    if option.choices and any(one not in option.choices for one in _each(taken)):
        said = ", ".join(option.choices)
        return None, Text(
            f"cannot be {_short(shown)}: it is one of {said}",
            f"不能是 {_short(shown)}：可选 {said}",
        )
    if isinstance(taken, int | float) and not isinstance(taken, bool):
        if option.least is not None and taken < option.least:
            least = in_prompt(option.least)
            return None, Text(f"is {shown}, less than {least}", f"为 {shown}，小于 {least}")
        if option.most is not None and taken > option.most:
            most = in_prompt(option.most)
            return None, Text(f"is {shown}, more than {most}", f"为 {shown}，大于 {most}")
    return taken, None


def _each(value: Any) -> Sequence[Any]:
    return list(value) if isinstance(value, list | dict) else [value]


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError
    return value


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError
    return int(value)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError
    number = float(value)
    if not abs(number) < 1e300:  # also what is no number at all
        raise ValueError
    return number


def _boolean(value: Any) -> bool:
    if isinstance(value, str):
        value = {"yes": True, "true": True, "no": False, "false": False}.get(value.lower())
    if not isinstance(value, bool):
        raise ValueError
    return value


def _list(value: Any) -> list[str]:
    parts = re.split(r"[,，、]", value) if isinstance(value, str) else value
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise ValueError
    kept = [part.strip() for part in parts if part.strip()]
    if not kept or len(set(kept)) < len(kept):
        raise ValueError
    return kept


def _labels(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        return dict.fromkeys(_list(value), "")
    if not all(isinstance(said, str) for said in value.values()):
        raise ValueError
    names = _list(list(value))
    return dict(zip(names, (said.strip() for said in value.values()), strict=True))


def _schema(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        raise ValueError
    return value


_KINDS: dict[Kind, tuple[Text, Any]] = {
    "text": (Text("a text", "文本"), _text),
    "integer": (Text("a whole number", "整数"), _integer),
    "number": (Text("a number", "数字"), _number),
    "boolean": (Text("true or false", "true 或 false"), _boolean),
    "list": (Text("a list of different texts", "互不相同的文本列表"), _list),
    "labels": (
        Text(
            "a list of different names, or a table of names and what they mean",
            "互不相同的名称列表，或名称与含义的表",
        ),
        _labels,
    ),
    "file": (Text("the path of a file", "文件路径"), _text),
    "folder": (Text("the path of a folder", "目录路径"), _text),
    "schema": (Text("a JSON schema as a table", "JSON schema（表）"), _schema),
}


def in_prompt(value: Any) -> str:
    """An option's value as a prompt holds it: lists and tables as lines with a dash."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "\n".join(
            f"- {name}: {said}" if said else f"- {name}" for name, said in value.items()
        )
    if isinstance(value, list):
        return "\n".join(f"- {one}" for one in value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return "" if value is None else str(value)


def _short(shown: str) -> str:
    return shown if len(shown) <= 60 else shown[:60] + "…"
