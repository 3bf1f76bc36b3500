"""The form of a template: what is asked of the model about each document, and what may be set.

A template is one TOML file. Its `task` is the way of working (`batch/tasks/`), its prompts are
plain text with `{{placeholders}}`, its options are what a job may set. `docs/templates.md` shows
one.
"""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal

import msgspec

from workhorse.batch.job import OutputForm
from workhorse.batch.option import About, Option, kind_of, taken
from workhorse.codec import mistake_in_words
from workhorse.errors import EXIT_USAGE, AppError
from workhorse.text import Language, Text

LARGEST_CHARS = 1_000_000

PLACEHOLDER = re.compile(r"\{\{\s*([A-Za-z_]\w*)\s*\}\}")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_OPTION_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")

# Chinese by Unicode blocks (17.0, 2026-11); kana and hangul are told apart from it.
_HAN = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")
_KANA_HANGUL = re.compile(r"[\u3040-\u30ff\uac00-\ud7af]")
_LETTER_WORDS = re.compile(r"[^\W\d_\u2e80-\uffff]{2,}")
_JUDGED_CHARS = 20_000


class Template(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is done with each document of a job."""

    name: Annotated[str, msgspec.Meta(pattern=rf"^{NAME.pattern}$")]
    task: str
    about: About = About()
    form: OutputForm = "jsonl"
    # What one answer may take at most, where the task does not know better from its options.
    answer_tokens: Annotated[int, msgspec.Meta(ge=8, le=1_000_000)] = 512
    request: dict[str, Any] = {}  # more of each request's fields: `temperature` …
    options: dict[str, Option] = {}
    schema: dict[str, Any] | None = None  # a JSON schema of the answer
    prompts: dict[Literal["en", "zh"], dict[str, str]]


# What a request is made of and a template may not replace.
_OURS = ("messages", "model", "stream", "stream_options", "max_tokens", "response_format", "n")


def read_template(definition: str, where: str) -> Template:
    """The template in a TOML text; AppError tells the place of what is wrong in it.

    `where` names the text: a path, or the name of a job's template. Its prompts are checked by
    who knows its task, see `tasks.checked`.
    """
    if len(definition) > LARGEST_CHARS:
        n_chars = len(definition)
        raise unusable(
            where,
            Text(
                f"it has {n_chars} characters, more than {LARGEST_CHARS}",
                f"共 {n_chars} 个字符，超过 {LARGEST_CHARS}",
            ),
        )
    try:
        document = msgspec.toml.decode(definition)
        template = msgspec.convert(document, Template)
    except msgspec.ValidationError as error:
        raise unusable(where, mistake_in_words(_placed(document, str(error)))) from error
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise unusable(where, mistake_in_words(str(error))) from error
    if not template.prompts:
        raise unusable(where, Text("`prompts` is empty", "`prompts` 为空"))
    for field in template.request:
        if field in _OURS:
            raise unusable(
                where,
                Text(f"`request.{field}` is set by the task", f"`request.{field}` 由任务设定"),
            )
    options = {name: _settled(name, one, where) for name, one in template.options.items()}
    return msgspec.structs.replace(template, options=options)


def _placed(document: Any, said: str) -> str:
    """What msgspec says, with the name of the option or prompt where it has `[...]`."""
    for table, kind in (("options", Option), ("prompts", dict[str, str])):
        tables = document.get(table)
        for name, one in tables.items() if isinstance(tables, dict) else ():
            try:
                msgspec.convert(one, kind)
            except msgspec.ValidationError as error:
                own = str(error)
                place = f"$.{table}.{name}"
                return own.replace("`$", f"`{place}") if "`$" in own else f"{own} - at `{place}`"
    return said


def _settled(name: str, option: Option, where: str) -> Option:
    """An option with its kind, its own default checked."""
    at = f"`options.{name}`"
    if not _OPTION_NAME.fullmatch(name):
        raise unusable(
            where,
            Text(
                f"{at} is no name of an option: small letters, digits and _",
                f"{at} 不能用作选项名：只能用小写字母、数字和 _",
            ),
        )
    kind = option.kind or kind_of(option.default)
    option = msgspec.structs.replace(option, kind=kind)
    if option.default is not None:
        value, why = taken(option, option.default)
        if why is not None:
            raise unusable(where, Text(f"the default of {at} {why.en}", f"{at} 的默认值{why.zh}"))
        option = msgspec.structs.replace(option, default=value)
    return option


def check_options(template: Template, given: Mapping[str, Any]) -> dict[str, Any]:
    """Every option of the template with the job's value, or its default, or None.

    Words of a command line are understood: `words=80`, `several=yes`, `labels=bill,letter`.
    Raises AppError for a name the template does not have, a value it cannot take, one that is
    missing. Files are not looked at.
    """
    for name in given:
        if name not in template.options:
            raise _no_option(template, name)
    found: dict[str, Any] = {}
    for name, option in template.options.items():
        value = given.get(name)
        if value is None:
            if option.required:
                raise _wrong_option(template, name, Text("is missing", "缺失"), option.about.text)
            found[name] = option.default
            continue
        found[name], why = taken(option, value)
        if why is not None:
            raise _wrong_option(template, name, why, option.about.text)
    return found


def fill(prompt: str, values: Mapping[str, str]) -> str:
    """A prompt with its placeholders replaced, in one pass.

    What a value holds stays as it is, also where it looks like a placeholder.
    """
    return PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), prompt)


def placeholders(prompt: str) -> frozenset[str]:
    """The names that a prompt has in double braces."""
    return frozenset(PLACEHOLDER.findall(prompt))


def language_of(text: str) -> Language:
    """Chinese where more is written in it than in words of letters; kana and hangul are not."""
    head = text[:_JUDGED_CHARS]
    han = len(_HAN.findall(head))
    if 2 * len(_KANA_HANGUL.findall(head)) > han:
        return "en"
    # A word of letters says about as much as two characters of Chinese.
    return "zh" if han > 2 * len(_LETTER_WORDS.findall(head)) else "en"


def unusable(where: str, why: Text) -> AppError:
    """The error for a template that cannot be used, with its place."""
    return AppError(
        Text(
            f"The template {where} cannot be used: {why.en}.", f"无法使用模板 {where}：{why.zh}。"
        ),
        Text(
            "`workhorse templates show summary-short` shows one that can.",
            "可参考 `workhorse templates show summary-short`。",
        ),
        exit_code=EXIT_USAGE,
    )


def _no_option(template: Template, name: str) -> AppError:
    names = list(template.options)
    near = get_close_matches(name, names, 1)
    has = Text(
        f"It has: {', '.join(names)}." if names else "It has none.",
        f"可用选项：{'、'.join(names)}。" if names else "该模板没有选项。",
    )
    return AppError(
        Text(
            f"The template {template.name} has no option `{name}`.",
            f"模板 {template.name} 没有选项 `{name}`。",
        ),
        Text(f"Did you mean `{near[0]}`? {has.en}", f"是否指 `{near[0]}`？{has.zh}")
        if near
        else has,
        exit_code=EXIT_USAGE,
    )


def _wrong_option(template: Template, name: str, why: Text, about: Text) -> AppError:
    return AppError(
        Text(
            f"The option `{name}` of the template {template.name} {why.en}.",
            f"模板 {template.name} 的选项 `{name}` {why.zh}。",
        ),
        Text(f"`{name}`: {about.en}.", f"`{name}`：{about.zh}。"),
        exit_code=EXIT_USAGE,
    )
