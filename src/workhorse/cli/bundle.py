"""`workhorse bundle`: everything that a machine without a network needs, in one folder or tar."""

import argparse
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from workhorse.cli.arguments import memory_size
from workhorse.cli.engine import Speaker
from workhorse.cli.show import print_table, print_verdict
from workhorse.codec import to_json
from workhorse.config import places
from workhorse.errors import EXIT_GOOD, EXIT_NO, EXIT_USAGE, AppError
from workhorse.text import Language, Text
from workhorse.units import show_bytes

if TYPE_CHECKING:
    from workhorse.bundle.carried.manifest import Manifest
    from workhorse.bundle.job import Made

ACTIONS = ("create", "verify", "install")
DEFAULT_OUTPUT = Path("workhorse-bundle")
# Which options go with which action: anything else is a mistake that must not pass in silence.
GOES_WITH = {
    "for": ("create",),
    "model": ("create",),
    "output": ("create",),
    "split": ("create",),
    "python": ("create",),
    "with": ("create",),
    "prefix": ("install",),
}
_PARTS = {
    "script": Text("checks and installs it", "核对与安装脚本"),
    "wheel": Text("Python packages", "Python 软件包"),
    "engine": Text("engine build", "引擎构建"),
    "nvidia": Text("NVIDIA's, your own copy", "NVIDIA 文件（自用副本）"),
    "library": Text("system library", "系统库"),
    "model": Text("model", "模型"),
}


def add_arguments(parser: argparse.ArgumentParser, language: Language) -> None:
    """The options of `bundle`."""
    from workhorse.bundle.order import PYTHONS
    from workhorse.bundle.wheels import EXTRAS

    versions = ", ".join(PYTHONS)
    words = {
        "action": Text(
            "create: bring it all together; verify: compare every byte with its manifest; "
            "install: put it into one folder, with nothing fetched",
            "create：汇集全部内容；verify：按清单逐字节核对；install：安装到一个目录，不访问网络",
        ),
        "what": Text(
            "verify, install: a bundle's folder, its .tar or the first of its pieces",
            "verify、install：离线包目录、.tar 或其第一个分卷",
        ),
        "model": Text(
            "models to take along: GGUF files, folders of checkpoints, names of pulled ones (the "
            "default model always comes)",
            "要带上的模型：GGUF 文件、原始模型目录或已下载模型的名称（默认模型总会带上）",
        ),
        "for": Text(
            "the machine it is for: what `workhorse probe --save` wrote on it, or here",
            "目标机器：在其上用 `workhorse probe --save` 得到的采集，或 here（本机）",
        ),
        "output": Text(
            f"the folder to write, or a file NAME.tar (default: {DEFAULT_OUTPUT})",
            f"要写入的目录，或 名称.tar（默认 {DEFAULT_OUTPUT}）",
        ),
        "split": Text(
            "write the .tar in pieces of this size, such as 4000M for a FAT32 stick",
            "将 .tar 按此大小分卷，例如 FAT32 U 盘用 4000M",
        ),
        "python": Text(
            f"versions of Python that the machine may have (default: {versions})",
            f"目标机器可能的 Python 版本（默认：{versions}）",
        ),
        "with": Text(
            "what `workhorse batch` reads Word, PDF, HTML and tables with, what `workhorse fleet` "
            "runs on, what the plots of `workhorse report` need (left out: none of it)",
            "`workhorse batch` 读取 Word、PDF、HTML 和表格所需，`workhorse fleet` 所需，"
            "`workhorse report` 绘图所需（默认都不带）",
        ),
        "prefix": Text(
            "install into this folder, which becomes WORKHORSE_HOME (default: the one in use)",
            "安装到此目录，并作为 WORKHORSE_HOME（默认为当前所用目录）",
        ),
    }
    said = {key: text.in_language(language) for key, text in words.items()}
    parser.add_argument("action", choices=ACTIONS, help=said["action"])
    parser.add_argument("what", nargs="*", metavar="BUNDLE", help=said["what"])
    parser.add_argument("--model", nargs="+", metavar="MODEL", help=said["model"])
    parser.add_argument("--for", metavar="CAPTURE", help=said["for"])
    parser.add_argument("--output", type=Path, metavar="FOLDER|FILE", help=said["output"])
    parser.add_argument("--split", type=memory_size, metavar="SIZE", help=said["split"])
    parser.add_argument("--python", nargs="+", choices=PYTHONS, help=said["python"])
    parser.add_argument("--with", nargs="+", choices=EXTRAS, help=said["with"])
    parser.add_argument("--prefix", type=Path, metavar="FOLDER", help=said["prefix"])


def run(args: argparse.Namespace) -> int:
    """Do one action; exit 3 when the bundle cannot work there, or is not as it was made."""
    refuse_misplaced(args)
    # The default would end us alone, and leave pip running.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    actions = {"create": run_create, "verify": run_verify, "install": run_install}
    with Speaker(args.lang, quiet=args.json) as speaker:
        try:
            return actions[args.action](args, speaker)
        except KeyboardInterrupt:
            speaker.stage(
                Text(
                    "broken off; the same command goes on where it stopped",
                    "已中断；再次运行同一命令会继续",
                )
            )
            raise


def run_create(args: argparse.Namespace, speaker: Speaker) -> int:
    """Plan for the machine, refuse what cannot work, write the bundle."""
    from workhorse.bundle.job import Wish, create
    from workhorse.bundle.order import PYTHONS, order_for
    from workhorse.cli.bundle_plan import (
        chosen_build,
        machine_for,
        model_paths,
        plans_for,
        told_of_builds,
    )

    where = places()
    output = args.output or DEFAULT_OUTPUT
    machine = machine_for(getattr(args, "for"))
    order = order_for(machine, args.python or PYTHONS)
    models = model_paths(args.model or (), where)
    build = chosen_build(machine, where)
    verdicts = told_of_builds(machine, build, where) + plans_for(models, machine, build)
    extras = tuple(getattr(args, "with") or ())
    wish = Wish(order, build, tuple(models), output, args.split, extras)
    made = create(wish, where, speaker)
    speaker.__exit__()
    if args.json:
        paths = [str(path) for path in made.paths]
        print(to_json({"paths": paths, "manifest": made.manifest, "verdicts": verdicts}))
        return EXIT_GOOD
    for verdict in verdicts:
        print_verdict(verdict, args.lang)
    tell_made(made, args.lang, glibc_told=order.glibc_told)
    return EXIT_GOOD


def run_verify(args: argparse.Namespace, speaker: Speaker) -> int:
    """Every hash; what is missing, extra, changed."""
    from workhorse.bundle.job import verify

    path = one_bundle(args)
    speaker.stage(Text("checking every file", "核对全部文件"))
    manifest, found = verify(path, speaker.progress)
    speaker.__exit__()
    if args.json:
        print(to_json(found))
    elif found:
        print(Text(*found.told()).in_language(args.lang))
    else:
        count, size = len(manifest.files), show_bytes(manifest.n_bytes)
        text = Text(
            f"All {count} files are right, {size}.", f"全部 {count} 个文件均正确，共 {size}。"
        )
        print(text.in_language(args.lang))
    return EXIT_NO if found else EXIT_GOOD


def run_install(args: argparse.Namespace, speaker: Speaker) -> int:
    """Install it here."""
    from workhorse.bundle.job import install_bundle

    prefix = (args.prefix or places().data).expanduser()
    done = install_bundle(one_bundle(args), prefix, speaker)
    speaker.__exit__()
    if args.json:
        models = [str(model) for model in done.models]
        there = {"command": str(done.command), "models": models, "engines": done.engines}
        print(to_json(there))
        return EXIT_GOOD
    print(Text(f"Installed: {done.command}", f"已安装：{done.command}").in_language(args.lang))
    for model in done.models:
        print(f"  {done.command} up {model}")
    return EXIT_GOOD


def one_bundle(args: argparse.Namespace) -> Path:
    """The bundle that is named; AppError for none, several or one that is not there."""
    if len(args.what) != 1:
        raise usage(
            Text(
                f"`bundle {args.action}` takes one folder or .tar.",
                f"`bundle {args.action}` 需要一个目录或 .tar。",
            )
        )
    path = Path(args.what[0]).expanduser()
    if not path.exists():
        raise usage(Text(f"{path} does not exist.", f"{path} 不存在。"))
    return path


def refuse_misplaced(args: argparse.Namespace) -> None:
    """AppError for an option that another action has, and for what does not go together."""
    for option, actions in GOES_WITH.items():
        if getattr(args, option) and args.action not in actions:
            raise usage(
                Text(
                    f"--{option} only goes with `bundle {actions[0]}`.",
                    f"--{option} 只能与 `bundle {actions[0]}` 同用。",
                )
            )
    if args.action != "create":
        return
    if args.what:
        raise usage(
            Text(
                "`bundle create` takes models by --model.",
                "`bundle create` 的模型请用 --model 指定。",
            )
        )
    if not getattr(args, "for"):
        raise usage(
            Text(
                "`bundle create` needs --for CAPTURE, or --for here.",
                "`bundle create` 需要 --for 采集目录，或 --for here。",
            )
        )
    refuse_compressed(args.output or DEFAULT_OUTPUT)
    if args.split and (args.output or DEFAULT_OUTPUT).suffix != ".tar":
        raise usage(
            Text("--split goes with --output NAME.tar.", "--split 需与 --output 名称.tar 同用。")
        )


def refuse_compressed(output: Path) -> None:
    """AppError for a name of a compressed archive: a folder of that name would be written."""
    if output.suffix.lower() in (".zip", ".gz", ".tgz", ".xz", ".zst", ".bz2", ".7z", ".rar"):
        raise AppError(
            Text(
                f"No {output.suffix} is written: what is in a bundle is compressed already.",
                f"不支持写入 {output.suffix}：离线包中的内容本已压缩。",
            ),
            Text("Name a folder, or a file NAME.tar.", "请指定目录，或 名称.tar。"),
            exit_code=EXIT_USAGE,
        )


def tell_made(made: "Made", language: Language, *, glibc_told: bool) -> None:
    """What is in it, and how it is used there."""
    manifest = made.manifest
    head = (
        Text("part", "部分"),
        Text("what", "内容"),
        Text("version", "版本"),
        Text("licence", "许可证"),
        Text("size", "大小"),
    )
    title = Text(
        f"For {manifest.target.cpu}, glibc {manifest.target.glibc} or newer",
        f"适用于 {manifest.target.cpu}，glibc {manifest.target.glibc} 或更新",
    )
    print_table(title, head, part_rows(manifest, language), language)
    if not glibc_told:
        text = Text(
            f"The capture does not tell the C library; {manifest.target.glibc} is assumed, and "
            "the install checks it.",
            f"采集中没有 C 库版本，按 {manifest.target.glibc} 处理，安装时会检查。",
        )
        print(text.in_language(language))
    if not all(part.may_pass_on for part in manifest.parts):
        text = Text(
            "It has files of NVIDIA that you fetched under NVIDIA's licence. Use the bundle on "
            "your own machines; do not give it to others.",
            "其中含有您按 NVIDIA 许可证获取的文件：请仅在自己的机器上使用，勿转交他人。",
        )
        print(text.in_language(language))
    names = str(made.paths[0])
    if len(made.paths) > 1:
        names += f" … {made.paths[-1].name}"
    size = show_bytes(manifest.n_bytes)
    text = Text(f"Wrote {names}: {size}.", f"已写入 {names}：{size}。")
    print(text.in_language(language))
    if len(made.paths) > 1:
        stem = made.paths[0].name.rpartition(".")[0]
        print(f"  cat {stem}.* | tar xf -")
    elif made.paths[0].suffix == ".tar":
        print(f"  tar xf {made.paths[0].name}")
    folder = made.paths[0].name.partition(".tar")[0]
    print(f"  python3 {folder}/install.py")


def part_rows(manifest: "Manifest", language: Language) -> list[tuple[str, ...]]:
    """One row a part; the Python packages in one."""
    sizes = {file.path: file.n_bytes for file in manifest.files}
    rows: list[tuple[str, ...]] = []
    for kind, label in _PARTS.items():
        parts = manifest.of_kind(kind)
        name = label.in_language(language)
        if kind == "wheel":
            n_bytes = sum(sizes[path] for part in parts for path in part.files)
            pythons = ", ".join(manifest.target.pythons)
            rows.append((name, f"{len(parts)}", f"Python {pythons}", "", show_bytes(n_bytes)))
            continue
        for part in parts:
            size = show_bytes(sum(sizes[path] for path in part.files))
            rows.append((name, part.name, part.version, part.licence, size))
    return rows


def usage(what: Text) -> AppError:
    """Wrong usage."""
    return AppError(
        what,
        Text("`workhorse bundle --help` shows how.", "用法见 `workhorse bundle --help`。"),
        exit_code=EXIT_USAGE,
    )
