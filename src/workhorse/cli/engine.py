"""`workhorse engine`: the engine builds of this installation."""

import argparse
import platform
import signal
from collections.abc import Sequence
from dataclasses import fields

from workhorse.cli.arguments import positive
from workhorse.cli.engine_environments import (
    add_target,
    begun_bytes,
    install_environment,
    is_environment,
    list_environments,
    refuse_used,
    remove_environments,
    verify_environment,
)
from workhorse.cli.engine_tables import print_environments, tell_environment
from workhorse.cli.engine_work import (
    Cards,
    Work,
    build_here,
    install_from,
    list_builds,
    remove_builds,
    verify_builds,
)
from workhorse.cli.parser import not_taken
from workhorse.cli.progress import LateBar
from workhorse.cli.show import console, print_table, print_verdict
from workhorse.codec import to_json
from workhorse.config import places
from workhorse.engines.supply.builds import Build
from workhorse.engines.supply.cuda_recipe import AUTO
from workhorse.errors import EXIT_GOOD, EXIT_NO, EXIT_USAGE, AppError
from workhorse.knowledge.cpu_variants import NATIVE, variants
from workhorse.knowledge.cuda_build import DEFAULT_OPTION, architectures, cuda_options
from workhorse.records import Verdict
from workhorse.text import Language, Text
from workhorse.units import UNKNOWN, show_bytes

ACTIONS = ("list", "install", "build", "verify", "remove")
# Which options go with which action: anything else is a mistake that must not pass in silence.
GOES_WITH = {
    "name": ("install", "build"),
    "cpu": ("build",),
    "gpu": ("build",),
    "option": ("build",),
    "no_cublas": ("build",),
    "compiler": ("build",),
    "jobs": ("build",),
    "sha256": ("install",),
    "tools": ("remove",),
    "for": ("install",),
}
ALL = "all"


def add_arguments(parser: argparse.ArgumentParser, language: Language) -> None:
    """The options of `engine`."""
    names = [NATIVE, *(variant.name for variant in variants()), ALL]
    chosen = [one.name for one in cuda_options() if one.name != DEFAULT_OPTION]
    words = {
        "action": Text(
            "list: what is there; install: take a build from a folder, an archive or an address; "
            "build: make one here; verify: hashes, CPU, C library, GPU code and a generated answer;"
            " remove: leave nothing of it",
            "list：已有构建；install：从目录、归档或地址安装；build：在本机构建；"
            "verify：检查哈希、CPU、C 库、GPU 代码并生成回答；remove：彻底删除",
        ),
        "what": Text(
            "install: a build's folder, archive or address, or vllm, lmdeploy; verify, remove: "
            "names (verify: all)",
            "install：构建的目录、归档或地址，或 vllm、lmdeploy；verify、remove：名称"
            "（verify 默认全部）",
        ),
        "name": Text("call the build so", "构建的名称"),
        "cpu": Text(
            f"build for these CPUs: {', '.join(names)} (default {NATIVE}: this one)",
            f"适用的 CPU：{'、'.join(names)}（默认 {NATIVE}：本机）",
        ),
        "gpu": Text(
            f"also make CUDA code for these cards: {AUTO} (those that are here), "
            f"{', '.join(one.name for one in architectures())}",
            f"同时为这些显卡生成 CUDA 代码：{AUTO}（本机显卡）、"
            f"{'、'.join(one.name for one in architectures())}",
        ),
        "option": Text(
            f"choices of CUDA code: {', '.join(chosen)}", f"CUDA 代码的选项：{'、'.join(chosen)}"
        ),
        "no_cublas": Text(
            "do not fetch cuBLAS (581 MB); the system's is used",
            "不下载 cuBLAS（581 MB），使用系统自带的",
        ),
        "compiler": Text(
            "packaged: from the package registry, needs nothing else; system: gcc and cmake of "
            "this system (default packaged)",
            "packaged：来自软件源，无需其他依赖；system：本系统的 gcc 和 cmake（默认 packaged）",
        ),
        "jobs": Text(
            "compilers at a time (default: what CPUs and memory allow)",
            "同时编译数（默认按 CPU 和内存决定）",
        ),
        "sha256": Text("the hash that the archive must have", "归档必须具有的哈希"),
        "tools": Text(
            "also remove the compiler and unfinished builds", "同时删除编译器和未完成的构建"
        ),
    }
    said = {key: text.in_language(language) for key, text in words.items()}
    parser.add_argument("action", choices=ACTIONS, help=said["action"])
    parser.add_argument("what", nargs="*", metavar="WHAT", help=said["what"])
    parser.add_argument("--name", help=said["name"])
    parser.add_argument("--cpu", nargs="+", type=cpu, metavar="CPU", help=said["cpu"])
    parser.add_argument("--gpu", nargs="+", metavar="ARCH", help=said["gpu"])
    parser.add_argument("--option", nargs="+", choices=chosen, help=said["option"])
    parser.add_argument("--no-cublas", action="store_true", help=said["no_cublas"])
    parser.add_argument("--compiler", choices=("packaged", "system"), help=said["compiler"])
    parser.add_argument("--jobs", type=positive, metavar="N", help=said["jobs"])
    parser.add_argument("--sha256", type=sha256, metavar="HEX", help=said["sha256"])
    add_target(parser, language)
    parser.add_argument("--tools", action="store_true", help=said["tools"])


def run(args: argparse.Namespace) -> int:
    """Do one action; exit 3 when a build does not run here."""
    refuse_misplaced(args)
    actions = {
        "list": run_list,
        "install": run_install,
        "build": run_build,
        "verify": run_verify,
        "remove": run_remove,
    }
    # The default would end us alone, and leave a compiler running.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with Speaker(args.lang, quiet=args.json) as speaker:
        try:
            return actions[args.action](args, Work(places(), speaker))
        except KeyboardInterrupt:
            if args.action in ("build", "install"):
                speaker.stage(_BROKEN_OFF)
            raise


def run_list(args: argparse.Namespace, work: Work) -> int:
    """What is there."""
    listing, environments = list_builds(work), list_environments(work)
    if args.json:
        found = {field.name: getattr(listing, field.name) for field in fields(listing)}
        print(to_json({**found, "environments": environments}))
        return EXIT_GOOD
    rows = [
        (
            row.manifest.name,
            row.manifest.cpu_variant,
            ", ".join((*row.manifest.sass, *row.manifest.ptx)) or "—",
            row.manifest.source.engine_version,
            (row.proven_at or Text("not here", "未在本机").in_language(args.lang))[:10],
            show_bytes(row.disk_bytes),
        )
        for row in listing.builds
    ]
    head = (
        Text("build", "构建"),
        Text("CPU", "CPU"),
        Text("GPU code", "GPU 代码"),
        Text("version", "版本"),
        Text("answered", "验证于"),
        Text("disk", "占用"),
    )
    out = console()
    if rows:
        print_table(Text("Engine builds", "引擎构建"), head, rows, args.lang)
    else:
        none = Text(
            "There is no engine build; the embedded engine needs none. `workhorse engine build` "
            "makes one for this CPU.",
            "没有任何引擎构建；内置引擎无需构建。`workhorse engine build` 可为本机 CPU 构建。",
        )
        out.print(none.in_language(args.lang), markup=False)
    print_environments(environments, args)
    begun = listing.unfinished_bytes + begun_bytes(work)
    if listing.tools_bytes or begun:
        tools, left = show_bytes(listing.tools_bytes), show_bytes(begun)
        text = Text(
            f"Compiler: {tools}; unfinished builds: {left}. `workhorse engine remove --tools` "
            "frees both.",
            f"编译器：{tools}；未完成的构建：{left}。`workhorse engine remove --tools` 可释放。",
        )
        out.print(text.in_language(args.lang), markup=False)
    for damaged in listing.damaged:
        out.print(damaged.in_language(args.lang), markup=False)
    return EXIT_GOOD


def run_install(args: argparse.Namespace, work: Work) -> int:
    """Take a build that was made elsewhere."""
    if len(args.what) != 1:
        raise usage(
            Text(
                "`engine install` takes one folder, archive or address.",
                "`engine install` 需要一个目录、归档或地址。",
            )
        )
    word = args.what[0]
    if is_environment(word):
        if args.name or args.sha256:
            raise usage(
                Text(
                    f"--name and --sha256 do not go with {word}: its name and packages are pinned.",
                    f"--name、--sha256 不能与 {word} 同用：其名称与软件包均已固定。",
                )
            )
        return tell_environment(install_environment(work, word, getattr(args, "for")), args)
    if getattr(args, "for"):
        raise usage(Text("--for goes with vllm or lmdeploy.", "--for 需与 vllm 或 lmdeploy 同用。"))
    built = install_from(work, word, name=args.name, sha256=args.sha256)
    return tell_built([built], args)


def run_build(args: argparse.Namespace, work: Work) -> int:
    """Make builds here."""
    if args.what:
        raise usage(
            Text(
                "`engine build` takes its name by --name.",
                "`engine build` 的名称请用 --name 指定。",
            )
        )
    wanted = list(dict.fromkeys(args.cpu or [NATIVE]))
    if ALL in wanted:
        wanted = [variant.name for variant in variants(platform.machine())]
    if args.name and len(wanted) > 1:
        raise usage(Text("--name goes with one --cpu only.", "--name 只能与一个 --cpu 同用。"))
    if not args.gpu and (args.option or args.no_cublas):
        raise usage(
            Text(
                "--option and --no-cublas go with --gpu.", "--option、--no-cublas 需与 --gpu 同用。"
            )
        )
    gpu = Cards(args.gpu, args.option or [], cublas=not args.no_cublas) if args.gpu else None
    built = build_here(
        work,
        wanted,
        name=args.name,
        compiler=args.compiler or "packaged",
        jobs_asked=args.jobs,
        gpu=gpu,
    )
    return tell_built(built, args)


def run_verify(args: argparse.Namespace, work: Work) -> int:
    """Check builds, those named or all."""
    here = [row.environment.name for row in list_environments(work)]
    asked = [name for name in (args.what or here) if name in here]
    builds = [name for name in args.what if name not in here]
    verdicts = verify_builds(work, builds) if builds or not args.what else {}
    verdicts |= {name: verify_environment(work, name) for name in asked}
    if args.json:
        print(to_json(verdicts))
    else:
        for verdict in verdicts.values():
            print_verdict(verdict, args.lang)
        if not verdicts:
            print(Text("There is no build.", "没有任何构建。").in_language(args.lang))
    return EXIT_NO if any(verdict.blocked for verdict in verdicts.values()) else EXIT_GOOD


def run_remove(args: argparse.Namespace, work: Work) -> int:
    """Remove builds, and with --tools what makes them."""
    if not args.what and not args.tools:
        raise usage(Text("`engine remove` needs a name.", "`engine remove` 需要名称。"))
    here = {row.environment.name for row in list_environments(work)}
    builds = [name for name in args.what if name not in here]
    refuse_used(work, [name for name in args.what if name in here])
    freed_bytes = 0
    if builds or args.tools:
        freed_bytes += remove_builds(work, builds, tools=args.tools)
    freed_bytes += remove_environments(
        work, [name for name in args.what if name in here], begun_too=args.tools
    )
    if args.json:
        print(to_json({"removed": args.what, "freed_bytes": freed_bytes}))
    else:
        names = ", ".join(args.what) or Text("compiler", "编译器").in_language(args.lang)
        freed = show_bytes(freed_bytes)
        text = Text(f"Removed {names}: {freed} freed.", f"已删除 {names}：释放 {freed}。")
        print(text.in_language(args.lang))
    return EXIT_GOOD


def tell_built(built: Sequence[Build], args: argparse.Namespace) -> int:
    """The new builds and how to use them."""
    if args.json:
        print(to_json([build.manifest for build in built]))
        return EXIT_GOOD
    for build in built:
        manifest = build.manifest
        size = show_bytes(manifest.n_bytes)
        minutes = UNKNOWN if manifest.minutes is None else f"{manifest.minutes:.1f} min"
        text = Text(
            f"{manifest.name}: {size}, {minutes}. Use it: workhorse up --engine {manifest.name}",
            f"{manifest.name}：{size}，{minutes}。使用：workhorse up --engine {manifest.name}",
        )
        print(text.in_language(args.lang))
    return EXIT_GOOD


def refuse_misplaced(args: argparse.Namespace) -> None:
    """AppError for an option that another action has, and for words after `list`."""
    for option, actions in GOES_WITH.items():
        if getattr(args, option) and args.action not in actions:
            with_actions = " / ".join(f"engine {action}" for action in actions)
            raise usage(
                Text(
                    f"--{option.replace('_', '-')} only goes with `{with_actions}`.",
                    f"--{option.replace('_', '-')} 只能与 `{with_actions}` 同用。",
                )
            )
    if args.action == "list" and args.what:
        raise usage(Text("`engine list` takes no name.", "`engine list` 不需要名称。"))


def cpu(word: str) -> str:
    """A kind of CPU that this machine's compiler builds for, as argparse wants it."""
    names = [NATIVE, *(variant.name for variant in variants(platform.machine())), ALL]
    if word not in names:
        known = ", ".join(names)
        raise not_taken(Text(f"{word!r} is none of {known}", f"{word!r} 不在可选范围内：{known}"))
    return word


def sha256(word: str) -> str:
    """64 hexadecimal digits, as argparse wants it."""
    if len(word) != 64 or set(word.lower()) - set("0123456789abcdef"):
        raise not_taken(
            Text(
                f"{word[:80]!r} is not a SHA-256 (64 hexadecimal digits)",
                f"{word[:80]!r} 不是 SHA-256（64 位十六进制）",
            )
        )
    return word.lower()


def usage(what: Text) -> AppError:
    """Wrong usage."""
    return AppError(
        what,
        Text("`workhorse engine --help` shows how.", "用法见 `workhorse engine --help`。"),
        exit_code=EXIT_USAGE,
    )


_BROKEN_OFF = Text(
    "broken off; the same command goes on where it stopped", "已中断；再次运行同一命令会继续"
)


class Speaker:
    """Tells on stderr how far the work is."""

    def __init__(self, language: Language, *, quiet: bool) -> None:
        self.language = language
        self.quiet = quiet
        self._bar: LateBar | None = None

    def __enter__(self) -> "Speaker":
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def stage(self, words: Text) -> None:
        """The next stage begins; its bar appears when it takes long."""
        self.__exit__()
        self._bar = LateBar(words, self.language)
        if not self.quiet:
            console(stderr=True).print(f"[dim]·[/] {words.in_language(self.language)}")

    def progress(self, done: int, total: int | None) -> None:
        """Steps or bytes of this stage."""
        if self._bar is not None and not self.quiet:
            self._bar.step(done, total)

    def found(self, verdict: Verdict) -> None:
        """What is worth knowing of a build."""
        self.__exit__()
        if not self.quiet:
            print_verdict(verdict, self.language, stderr=True)
