"""Both pages have every setting, with its default, under its table; and no other."""

import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from workhorse.settings import Settings, read_settings

DOCS = Path(__file__).parent.parent / "docs"
both = pytest.mark.parametrize("page", ["settings.md", "settings.zh.md"])


def structs(annotation: Any) -> Iterator[type[msgspec.Struct]]:
    """The settings that a field holds, one or an array of them."""
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        yield annotation
    for inner in typing.get_args(annotation):
        if isinstance(inner, (type, types.GenericAlias)) or typing.get_args(inner):
            yield from structs(inner)


def tables() -> dict[str, type[msgspec.Struct]]:
    """Each table of the file by its heading on the page."""
    found = {}
    for field in msgspec.structs.fields(Settings):
        (struct,) = structs(field.type)
        many = field.default == ()
        found[f"[[{field.encode_name}]]" if many else f"[{field.encode_name}]"] = struct
    return found


def as_toml(default: object) -> str:
    if default in (None, msgspec.NODEFAULT):
        return ""
    return f"`{msgspec.json.encode(default).decode()}`"


def text_of(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


@both
def test_the_page_has_every_table(page: str) -> None:
    assert set(re.findall(r"^## (\[.*)$", text_of(page), re.MULTILINE)) == tables().keys()


@both
def test_every_setting_is_on_the_page_with_its_default(page: str) -> None:
    text = text_of(page)
    for heading, struct in tables().items():
        section = text.split(f"## {heading}\n")[1].split("\n## ")[0]
        told = dict(re.findall(r"^\| `(\w+)` \| (.*?) ?\| .+ \|$", section, re.MULTILINE))
        declared = {f.encode_name: as_toml(f.default) for f in msgspec.structs.fields(struct)}
        assert told == declared, heading


@both
def test_the_pages_example_is_read(page: str, tmp_path: Path) -> None:
    (example,) = re.findall(r"^```toml\n(.*?)^```$", text_of(page), re.MULTILINE | re.DOTALL)
    file = tmp_path / "settings.toml"
    file.write_text(example, encoding="utf-8")
    (template,) = read_settings(file).template
    assert [message.role for message in template.messages] == ["user", "assistant"]
