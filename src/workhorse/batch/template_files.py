"""The templates there are: those that ship, and a user's own; what a job says of files."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workhorse.batch.schema import check_schema
from workhorse.batch.tasks import checked
from workhorse.batch.template import LARGEST_CHARS, NAME, Template, check_options, unusable
from workhorse.errors import EXIT_USAGE, AppError
from workhorse.text import Text, same

SHIPPED = Path(__file__).parent / "templates"
SUFFIX = ".toml"
_LARGEST_SCHEMA_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class Found:
    """A template and where it is."""

    template: Template
    definition: str  # its whole TOML: what a job keeps
    path: Path
    own: bool  # the user's, not one that ships


def find_template(name: str, own: Path) -> Found:
    """The template of this name, or in this file: a user's own comes before one that ships.

    `own` is the folder of the user's templates. AppError where there is none, or it is wrong.
    """
    if name.endswith(SUFFIX) or "/" in name:
        return _read(Path(name), own=True)
    if NAME.fullmatch(name):
        for folder in (own, SHIPPED):
            path = folder / f"{name}{SUFFIX}"
            if path.is_file():
                found = _read(path, own=folder is own)
                if found.template.name != name:
                    its = found.template.name
                    raise unusable(
                        str(path),
                        Text(f"its `name` is {its}, not {name}", f"`name` 为 {its}，而不是 {name}"),
                    )
                return found
    names = ", ".join(template_names(own))
    raise AppError(
        Text(f"There is no template {name}.", f"没有模板 {name}。"),
        Text(
            f"There are: {names}; or the path of a TOML file.",
            f"可用：{names}；或 TOML 文件的路径。",
        ),
        exit_code=EXIT_USAGE,
    )


def template_names(own: Path) -> tuple[str, ...]:
    """The names of all templates, in the alphabet's order; a user's own replaces a shipped one."""
    paths = [*SHIPPED.glob(f"*{SUFFIX}"), *own.glob(f"*{SUFFIX}")]
    return tuple(sorted({path.stem for path in paths if NAME.fullmatch(path.stem)}))


def settle_options(template: Template, given: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """A job's options, checked, fit to be kept: paths whole, from `folder` on; schemas read.

    AppError for what the template does not take, for a file or folder that is not there, and for
    a schema that is none.
    """
    read = dict(given)
    for name, option in template.options.items():
        if option.kind == "schema" and isinstance(path := read.get(name), str):
            read[name] = _schema_in(folder / path, name)
    options = check_options(template, read)
    for name, option in template.options.items():
        value = options[name]
        if value is None:
            continue
        if option.kind == "schema":
            check_schema(value, f"`{name}`")
        if option.kind in ("file", "folder"):
            options[name] = str(_there(folder / value, name, folder=option.kind == "folder"))
    return options


def write_template(name: str, origin: Found, own: Path) -> Path:
    """A copy of a template under another name, for its user to edit; AppError if it is taken."""
    if not NAME.fullmatch(name):
        raise AppError(
            Text(f"{name!r} is no name for a template.", f"{name!r} 不能用作模板名。"),
            Text(
                "Take up to 64 of A to Z, digits and .-_, a letter or digit first.",
                "请用最多 64 个英文字母、数字或 .-_，以英文字母或数字开头。",
            ),
            exit_code=EXIT_USAGE,
        )
    path = own / f"{name}{SUFFIX}"
    definition = re.sub(
        r'^name\s*=\s*(?:"[^"\n]*"|\'[^\'\n]*\')',
        f'name = "{name}"',
        origin.definition,
        count=1,
        flags=re.MULTILINE,
    )
    checked(definition, str(path))
    try:
        own.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(definition)
    except FileExistsError as error:
        raise AppError(
            Text(f"There is {path} already.", f"{path} 已存在。"),
            Text("Take another name, or edit it.", "请换一个名称，或直接编辑它。"),
        ) from error
    except OSError as error:
        why = error.strerror or str(error)
        raise AppError(
            Text(f"{path} cannot be written: {why}.", f"无法写入 {path}：{why}。"),
            Text("Check the folder.", "请检查该目录。"),
        ) from error
    return path


def _read(path: Path, *, own: bool) -> Found:
    try:
        if path.is_file() and path.stat().st_size > 4 * LARGEST_CHARS:
            raise unusable(str(path), same(f"> {4 * LARGEST_CHARS} B"))
        if not path.is_file():  # a pipe would never end
            raise FileNotFoundError(2, "there is no such file")
        definition = path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except OSError as error:
        raise unusable(str(path), same(error.strerror or str(error))) from error
    except UnicodeDecodeError as error:
        raise unusable(str(path), Text("it is not UTF-8 text", "不是 UTF-8 文本")) from error
    return Found(checked(definition, str(path)), definition, path, own)


def _schema_in(path: Path, name: str) -> dict[str, Any]:
    """The JSON schema in a file."""
    _there(path, name, folder=False)
    try:
        if path.stat().st_size > _LARGEST_SCHEMA_BYTES:
            raise _unusable_file(path, name, same(f"> {_LARGEST_SCHEMA_BYTES} B"))
        schema = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise _unusable_file(path, name, same(error.strerror or str(error))) from error
    except (ValueError, RecursionError) as error:
        raise _unusable_file(
            path, name, Text(f"it is not JSON: {error}", f"不是 JSON：{error}")
        ) from error
    if not isinstance(schema, dict):
        raise _unusable_file(path, name, Text("it is not a JSON object", "不是 JSON 对象"))
    return schema


def _there(path: Path, name: str, *, folder: bool) -> Path:
    if not (path.is_dir() if folder else path.is_file()):
        kind = Text("folder", "目录") if folder else Text("file", "文件")
        why = Text(f"there is no such {kind.en}", f"没有这个{kind.zh}")
        if path.exists():
            why = Text(f"that is no {kind.en}", f"这不是{kind.zh}")
        raise _unusable_file(path, name, why)
    return path.absolute()


def _unusable_file(path: Path, name: str, why: Text) -> AppError:
    return AppError(
        Text(
            f"The option `{name}` names {path}: {why.en}.",
            f"选项 `{name}` 指定的 {path} 无法使用：{why.zh}。",
        ),
        Text("Check the path.", "请检查路径。"),
        exit_code=EXIT_USAGE,
    )
