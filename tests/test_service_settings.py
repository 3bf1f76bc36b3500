"""Both pages have every setting, with its default, under its table; and no other."""

import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from workhorse.errors import AppError
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


@pytest.mark.parametrize(
    ("toml", "en", "zh"),
    [
        ("[serve]\nprot = 1", "there is no setting `serve.prot`", "没有名为 `serve.prot` 的配置项"),
        ("port = 1", "there is no setting `port`", "没有名为 `port` 的配置项"),
        ('[serve]\nport = "x"', "`serve.port` has to be a whole number", "`serve.port` 应为整数"),
        ("[serve]\nport = 65536", "has to be at most 65535", "应不大于 65535"),
        ("[serve]\nport = -1", "has to be at least 0", "应不小于 0"),
        ("[serve]\nhost = 1", "`serve.host` has to be a text in quotes", "应为带引号的文本"),
        ("[guard]\ndecode_share = 1", "has to be less than 1", "应小于 1"),
        ('[[model]]\nfor = "all"', "`model[0].for` cannot be 'all'", "不能是 'all'"),
        ("[[model]]\ngpus = 0", "`model[0].gpus` has to be at least 1", "应不小于 1"),
        ('[[model]]\ngpus = "some"', "`model[0].gpus` cannot be 'some'", "不能是 'some'"),
        ("[[template]]\n", "`template[0]` lacks its `name`", "`template[0]` 缺少 `name`"),
        ('[guard]\nwebhook = "ftp://x"', "`guard.webhook` is not written as", "写法不正确"),
        ("[serve", "Expected ']'", "Expected ']'"),
    ],
)
def test_what_is_wrong_is_told_in_words(tmp_path: Path, toml: str, en: str, zh: str) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(toml)
    with pytest.raises(AppError) as raised:
        read_settings(file)
    assert en in raised.value.what.en
    assert zh in raised.value.what.zh


def test_the_certificate_is_found_beside_the_file_that_names_it(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('[serve]\ncertificate = "cert.pem"\nprivate_key = "/etc/key.pem"')
    serve = read_settings(file).serve
    assert (serve.certificate, serve.private_key) == (str(tmp_path / "cert.pem"), "/etc/key.pem")
