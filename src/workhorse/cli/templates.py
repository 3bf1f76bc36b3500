"""`workhorse templates`: what batch jobs can do with documents, and templates of one's own."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from workhorse.cli.show import console, print_table
from workhorse.config import places
from workhorse.errors import EXIT_GOOD, EXIT_USAGE, AppError
from workhorse.text import Language, Text

if TYPE_CHECKING:
    from workhorse.batch.option import Option
    from workhorse.batch.template_files import Found

ACTIONS = ("list", "show", "new")
ORIGIN = "summary-short"
TITLE = Text("Templates of batch jobs", "批处理模板")
COLUMNS = (
    Text("name", "名称"),
    Text("what it does", "作用"),
    Text("options", "选项"),
    Text("from", "来源"),
)
OWN = Text("yours", "自定义")
SHIPPED = Text("workhorse", "内置")
REQUIRED = Text("required", "必填")


def add_arguments(parser: argparse.ArgumentParser, language: Language) -> None:
    """What to do, with which template."""
    words = {
        "action": Text(
            "list: what there is; show: a template's TOML; new: write one of your own, to edit",
            "list：列出；show：显示模板的 TOML；new：创建自定义模板以供编辑",
        ),
        "name": Text(
            "the template; show: also the path of a file", "模板名称；show 也接受文件路径"
        ),
        "from": Text(
            f"new: the template to begin with (default: {ORIGIN})",
            f"new：以哪个模板为起点（默认 {ORIGIN}）",
        ),
    }
    said = {key: text.in_language(language) for key, text in words.items()}
    parser.add_argument("action", choices=ACTIONS, help=said["action"])
    parser.add_argument("name", nargs="?", metavar="NAME", help=said["name"])
    parser.add_argument("--from", dest="origin", metavar="NAME", help=said["from"])


def run(args: argparse.Namespace) -> int:
    """List, show or write."""
    refuse_misplaced(args)
    own = places().templates
    actions = {"list": run_list, "show": run_show, "new": run_new}
    return actions[args.action](args, own)


def run_list(args: argparse.Namespace, own: Path) -> int:
    """Every template, those that cannot be used too, with the reason."""
    from workhorse.batch.template_files import find_template, template_names

    found: dict[str, Found | AppError] = {}
    for name in template_names(own):
        try:
            found[name] = find_template(name, own)
        except AppError as error:
            found[name] = error
    if args.json:
        print(json.dumps([document(*one) for one in found.items()], ensure_ascii=False))
    else:
        print_table(TITLE, COLUMNS, [row(*one, args.lang) for one in found.items()], args.lang)
    return EXIT_GOOD


def run_show(args: argparse.Namespace, own: Path) -> int:
    """A template's TOML as it is."""
    from workhorse.batch.template_files import find_template

    found = find_template(args.name, own)
    if args.json:
        told = document(args.name, found) | {"definition": found.definition}
        print(json.dumps(told, ensure_ascii=False))
    else:
        sys.stdout.write(found.definition)
    return EXIT_GOOD


def run_new(args: argparse.Namespace, own: Path) -> int:
    """Write a template of the user's own, and say where it is."""
    from workhorse.batch.template_files import find_template, write_template

    path = write_template(args.name, find_template(args.origin or ORIGIN, own), own)
    if args.json:
        print(json.dumps({"name": args.name, "path": str(path)}, ensure_ascii=False))
        return EXIT_GOOD
    print(path)
    step = Text(
        f"Edit it, then: workhorse batch FOLDER --template {args.name}",
        f"编辑后运行：workhorse batch 目录 --template {args.name}",
    )
    console(stderr=True).print(step.in_language(args.lang), markup=False, soft_wrap=True)
    return EXIT_GOOD


def refuse_misplaced(args: argparse.Namespace) -> None:
    """AppError for what does not belong to the action, or is missing in it."""
    misplaced = ["--from"] * bool(args.origin and args.action != "new")
    misplaced += ["NAME"] * bool(args.name and args.action == "list")
    if misplaced:
        raise _usage(
            Text(
                f"{misplaced[0]} does not go with `templates {args.action}`.",
                f"{misplaced[0]} 不能用于 `templates {args.action}`。",
            )
        )
    if args.name is None and args.action != "list":
        raise _usage(
            Text(
                f"`templates {args.action}` needs a NAME.", f"`templates {args.action}` 需要名称。"
            )
        )


def document(name: str, found: "Found | AppError") -> dict[str, object]:
    """A template as one JSON object."""
    if isinstance(found, AppError):
        return {"name": name, "error": found.what.en}
    template = found.template
    options = {
        name: {
            "about": {"en": one.about.text.en, "zh": one.about.text.zh},
            "kind": one.kind,
            "default": one.default,
            "required": one.required,
            "choices": one.choices,
        }
        for name, one in template.options.items()
    }
    about = template.about.text
    return {
        "name": template.name,
        "task": template.task,
        "about": {"en": about.en, "zh": about.zh},
        "form": template.form,
        "options": options,
        "own": found.own,
        "path": str(found.path),
    }


def row(name: str, found: "Found | AppError", language: Language) -> tuple[str, str, str, str]:
    """A template as one line of the table."""
    if isinstance(found, AppError):
        return (name, found.what.in_language(language), "", OWN.in_language(language))
    options = [worded(*one, language) for one in found.template.options.items()]
    origin = OWN if found.own else SHIPPED
    about = found.template.about.text.in_language(language)
    return (name, about, "\n".join(options), origin.in_language(language))


def worded(name: str, option: "Option", language: Language) -> str:
    """An option with its default, as it is set."""
    if option.required:
        return f"{name} ({REQUIRED.in_language(language)})"
    value = json.dumps(option.default, ensure_ascii=False)
    return name if option.default is None else f"{name}={value}"


def _usage(what: Text) -> AppError:
    return AppError(
        what,
        Text(
            "`workhorse templates --help` shows the options.",
            "选项见 `workhorse templates --help`。",
        ),
        exit_code=EXIT_USAGE,
    )
