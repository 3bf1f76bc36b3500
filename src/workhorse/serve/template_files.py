"""Templates from the settings: their texts read from files, everything wrong with them told."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from workhorse.errors import EXIT_USAGE, AppError
from workhorse.serve.templates import Template, without_last_line_end
from workhorse.settings import TemplateSettings
from workhorse.text import Text, same
from workhorse.units import MIB

LARGEST_BYTES = 16 * MIB  # four million tokens: more than any model reads


def read_templates(declared: Iterable[TemplateSettings], folder: Path) -> tuple[Template, ...]:
    """The declared templates; files are found from the settings file's folder on."""
    templates = tuple(_read(one, folder) for one in declared)
    names = Counter(template.name for template in templates)
    for name, times in names.items():
        if times > 1:
            raise _wrong(name, Text(f"is declared {times} times", f"被声明了 {times} 次"))
    return templates


def _read(one: TemplateSettings, folder: Path) -> Template:
    system = _text(one.name, one.system, one.system_file, "system", folder)
    prefix = _text(one.name, one.prefix, one.prefix_file, "prefix", folder)
    document = _text(one.name, None, one.document_file, "document", folder)
    if document:
        # As docs/settings.md tells clients to send it.
        system = f"{system}\n\n{document}" if system else document
    messages = [("system", system)] if system else []
    messages += [(said.role, without_last_line_end(said.content)) for said in one.messages]
    if prefix and messages:
        raise _wrong(
            one.name,
            Text(
                "has both a prefix, for completions, and messages, for chats",
                "同时含有 prefix（用于补全）和消息（用于对话）",
            ),
        )
    if not prefix and not messages:
        raise _wrong(one.name, Text("has no text", "没有内容"))
    return Template(one.name, one.model, tuple(messages), prefix, one.keep)


def _text(name: str, text: str | None, file: str | None, what: str, folder: Path) -> str:
    if file is None:
        return without_last_line_end(text or "")
    if text is not None:
        raise _wrong(
            name,
            Text(f"has both {what} and {what}_file", f"同时设置了 {what} 和 {what}_file"),
        )
    path = folder / file
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise _wrong(name, same(f"{path} > {LARGEST_BYTES} B"))
        return without_last_line_end(path.read_text(encoding="utf-8"))
    except OSError as error:
        why = error.strerror or str(error)
        raise _wrong(
            name, Text(f"names {path}: {why}", f"引用的文件 {path} 无法读取：{why}")
        ) from error
    except UnicodeDecodeError as error:
        raise _wrong(
            name, Text(f"names {path}, which is not UTF-8 text", f"引用的 {path} 不是 UTF-8 文本")
        ) from error


def _wrong(name: str, why: Text) -> AppError:
    return AppError(
        Text(f"The template {name} {why.en}.", f"模板 {name} {why.zh}。"),
        Text(
            "Mend its [[template]] in the settings file; docs/settings.md shows one.",
            "请修改配置文件中的 [[template]]；示例见 docs/settings.md。",
        ),
        exit_code=EXIT_USAGE,
    )
