"""`workhorse service`: have systemd start the service with the machine and watch over it."""

import argparse
import getpass
import os
import pwd
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import workhorse
from workhorse.cli.arguments import add_cards, add_choices, add_model, ask_of, port
from workhorse.cli.plan import add_split
from workhorse.cli.progress import FETCHING, LateBar
from workhorse.codec import to_json
from workhorse.config import HOST, PORT, places
from workhorse.errors import EXIT_GOOD, EXIT_NO, EXIT_USAGE, AppError
from workhorse.text import Language, Text

if TYPE_CHECKING:
    from workhorse.records import Plan
    from workhorse.run.service_file import UnitFacts
    from workhorse.run.systemd import Manager
    from workhorse.settings import Settings
    from workhorse.up.decide import Ask, Cards

ACTIONS = ("install", "show", "remove")
DEFAULT_NAME = "workhorse"
# What ProtectHome= and PrivateTmp= hide; systemd.exec(5)
HOMES = ("/home", "/root", "/run/user")
TEMPORARY = ("/tmp/", "/var/tmp/")  # noqa: S108


def add_arguments(parser: argparse.ArgumentParser, language: Language) -> None:
    """The options of `service`: what to do, then what `up` takes."""
    words = {
        "action": Text(
            "install: write the unit and start it; show: the unit, and whether it runs; "
            "remove: stop and delete it",
            "install：写入单元并启动；show：显示单元及其状态；remove：停止并删除",
        ),
        "config": Text("settings of the service in a TOML file", "服务的 TOML 配置文件"),
        "host": Text(f"address to listen on (default {HOST})", f"监听地址（默认 {HOST}）"),
        "port": Text(f"port to listen on (default {PORT})", f"监听端口（默认 {PORT}）"),
        "user": Text(
            "for this user alone, by the user's own service manager: no root needed",
            "只为当前用户安装（用户级服务管理器），无需 root",
        ),
        "as": Text(
            "the user that it runs as (default: who owns the data folder)",
            "运行服务的用户（默认：数据目录的所有者）",
        ),
        "name": Text(
            f"name of the unit (default {DEFAULT_NAME})", f"单元名（默认 {DEFAULT_NAME}）"
        ),
        "dry": Text("print the unit and what would be done; change nothing", "只打印，不做更改"),
    }
    said = {key: text.in_language(language) for key, text in words.items()}
    parser.add_argument("action", choices=ACTIONS, help=said["action"])
    add_model(parser, language)
    add_choices(parser, language)
    add_cards(parser, language)
    add_split(parser, language)
    parser.add_argument("--config", type=Path, metavar="FILE", help=said["config"])
    parser.add_argument("--host", metavar="ADDRESS", help=said["host"])
    parser.add_argument("--port", type=port, metavar="N", help=said["port"])
    parser.add_argument("--user", action="store_true", help=said["user"])
    parser.add_argument("--as", dest="as_user", metavar="USER", help=said["as"])
    parser.add_argument("--name", default=DEFAULT_NAME, metavar="NAME", help=said["name"])
    parser.add_argument("--dry-run", action="store_true", help=said["dry"])


def run(args: argparse.Namespace) -> int:
    """Install, show or remove the unit."""
    from workhorse.run.service_file import NAME

    if not NAME.fullmatch(args.name):
        raise usage(
            Text(f"{args.name!r} is no name for a unit.", f"{args.name!r} 不能用作单元名。"),
            Text("Use small letters, digits and dashes.", "请使用小写字母、数字和连字符。"),
        )
    if args.user and args.as_user:
        raise usage(
            Text("--as does not go with --user.", "--as 不能与 --user 同用。"),
            Text(
                "A unit of a user's own manager runs as that user.",
                "用户级单元总以该用户身份运行。",
            ),
        )
    manager = manager_of(args)
    if args.action == "install":
        return install(args, manager)
    return show(args, manager) if args.action == "show" else remove(args, manager)


def usage(what: Text, next_step: Text) -> AppError:
    """Wrong use of the command."""
    return AppError(what, next_step, exit_code=EXIT_USAGE)


def manager_of(args: argparse.Namespace) -> "Manager":
    """The service manager that is meant."""
    from workhorse.run.systemd import SYSTEM_UNITS, Manager

    if not args.user:
        return Manager(SYSTEM_UNITS, user=False)
    config = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Manager(Path(config) / "systemd" / "user", user=True)


def install(args: argparse.Namespace, manager: "Manager") -> int:
    """Plan, write the unit by the plan, start it; with `--dry-run` say so."""
    from workhorse.run.service_file import unit
    from workhorse.settings import Settings, read_settings
    from workhorse.up.asks import asks_of, checked
    from workhorse.up.several import decide_parts

    settings = read_settings(args.config) if args.config else Settings()
    ask = ask_of(
        args,
        config=args.config,
        host=args.host,
        port=args.port,
        gpus=args.gpus,
        engines=args.engines,
        split=args.split,
    )
    asks = [checked(one) for one in asks_of(ask, settings)]
    with LateBar(FETCHING, args.lang) as fetching:
        parts = [part for one in asks for part in decide_parts(one, places(), fetching.step)]
    plans = [part.decision.plan for part in parts]
    for plan in plans:
        worst = next((f for f in plan.verdict.findings if f.level == "blocker"), None)
        if worst is not None:
            raise AppError(worst.seen, worst.remedy, exit_code=EXIT_NO)
    facts = facts_of(args, ask, settings, plans)
    document = unit(facts)
    commands = [" ".join(command) for command in manager.commands(args.name, "install")]
    if not args.dry_run:
        manager.install(args.name, document)
    if args.json:
        path = str(manager.path(args.name))
        print(to_json({"path": path, "unit": document, "commands": commands}))
    elif args.dry_run:
        print(f"# {manager.path(args.name)}\n{document}")
        print("\n".join(f"$ {command}" for command in commands))
    else:
        done = Text(
            f"{args.name} runs, and starts with {'you' if args.user else 'the machine'}: "
            f"{manager.path(args.name)}",
            f"{args.name} 已启动，并将随{'用户登录' if args.user else '系统'}自动启动："
            f"{manager.path(args.name)}",
        )
        print(done.in_language(args.lang))
    return EXIT_GOOD


def facts_of(
    args: argparse.Namespace, ask: "Ask", settings: "Settings", plans: Sequence["Plan"]
) -> "UnitFacts":
    """What the unit is written for, from the plans and this user."""
    from workhorse.engines.vllm.adapter import cache_folder
    from workhorse.run.service_file import UnitFacts
    from workhorse.serve.auth import is_loopback

    listens = ask.port if ask.port is not None else settings.serve.port
    if listens == 0:
        raise usage(
            Text("A service needs a fixed port.", "服务需要固定的端口。"),
            Text("Name one with --port.", "请用 --port 指定。"),
        )
    data = places().data.absolute()
    command = up_command(args, data)
    files = [*command, str(data), *(plan.model_path for plan in plans), *named_files(settings)]
    files += [plan.engine.command[0] for plan in plans]
    # An environment may stand on a Python, and on sources, that lie elsewhere.
    files += [sys.prefix, sys.base_prefix, workhorse.__file__]
    files += [os.path.realpath(name) for name in files if name.startswith("/")]
    pins = {plan.memory_nodes for plan in plans}
    pinned = pins.pop() if len(pins) == 1 else None
    cpus = sorted({cpu for plan in plans for cpu in plan.cpus}) if pinned is not None else []
    host = ask.host or settings.serve.host
    pooled = [plan.engine for plan in plans if plan.pool is not None]  # vLLM, LMDeploy
    caches = {
        str(folder) for folder in map(cache_folder, pooled) if not folder.is_relative_to(data)
    }
    return UnitFacts(
        command=command,
        reload=(sys.executable, "-m", "workhorse", "reload", "--port", str(listens)),
        port=listens,
        data_folder=str(data),
        user=None if args.user else args.as_user or owner_of(data),
        home_is_needed=any(word.startswith(HOMES) for word in files),
        tmp_is_needed=any(word.startswith(TEMPORARY) for word in files),
        cards=any(plan.gpu_index is not None for plan in plans),
        compiles=bool(pooled),
        caches=tuple(sorted(caches)),
        cpus=tuple(cpus),
        memory_nodes=pinned,
        drain_s=settings.supervision.drain_s,
        local_only=is_loopback(host) and settings.guard.webhook is None and bool(args.model),
    )


def named_files(settings: "Settings") -> list[str]:
    """The files that the settings name by their whole path."""
    told = [settings.serve.certificate, settings.serve.private_key]
    for one in settings.template:
        told += [one.system_file, one.document_file, one.prefix_file]
    return [name for name in told if name is not None]


def up_command(args: argparse.Namespace, data: Path) -> tuple[str, ...]:
    """`workhorse up` with what was asked for; files by their whole path."""
    words = [sys.executable, "-m", "workhorse", "up"]
    if args.model:
        file = Path(args.model)
        words.append(str(file.absolute()) if file.exists() else args.model)
    engine = args.engine
    if engine is not None and engine.exists() and not (data / "engines" / engine).exists():
        engine = engine.absolute()
    config = args.config.absolute() if args.config else None
    mmproj = args.mmproj
    if mmproj is not None and Path(mmproj).exists():
        mmproj = Path(mmproj).absolute()
    headroom = None if args.headroom is None else f"{args.headroom * 100:g}%"
    for option, value in (
        ("--config", config),
        ("--quant", args.quant),
        ("--mmproj", mmproj),
        ("--engine", engine),
        ("--context", args.context),
        ("--slots", args.slots),
        ("--for", args.purpose),
        ("--headroom", headroom),
        ("--gpus", cards_word(args.gpus)),
        ("--engines", args.engines),
        ("--split", args.split),
        ("--host", args.host),
        ("--port", args.port),
    ):
        if value is not None:
            words += [option, str(value)]
    return tuple(words)


def cards_word(gpus: "Cards | None") -> str | None:
    """The cards as `up --gpus` takes them."""
    if isinstance(gpus, tuple):
        return f"{','.join(map(str, gpus))},"
    return None if gpus is None else str(gpus)


def owner_of(data: Path) -> str:
    """Who owns the data folder, or would: the user behind sudo, else this one."""
    if data.exists():
        return pwd.getpwuid(data.stat().st_uid).pw_name
    return os.environ.get("SUDO_USER") or getpass.getuser()


def show(args: argparse.Namespace, manager: "Manager") -> int:
    """The unit that is installed and what the manager says of it."""
    from workhorse.run.systemd import run as ask_manager

    path = manager.path(args.name)
    if not path.is_file():
        raise AppError(
            Text(f"There is no unit {path}.", f"没有单元文件 {path}。"),
            Text(
                "`workhorse service install` makes one.", "可用 `workhorse service install` 创建。"
            ),
        )
    document = path.read_text(encoding="utf-8", errors="replace")
    words = [
        "systemctl",
        *(["--user"] if manager.user else []),
        "is-active",
        f"{args.name}.service",
    ]
    state = ask_manager(words).stdout.strip() or "unknown"
    if args.json:
        print(to_json({"path": str(path), "state": state, "unit": document}))
    else:
        print(f"# {path}: {state}\n{document}")
    return EXIT_GOOD


def remove(args: argparse.Namespace, manager: "Manager") -> int:
    """Stop the unit and delete it; its data stays."""
    if args.dry_run:
        for command in manager.commands(args.name, "remove"):
            print(f"$ {' '.join(command)}")
        print(f"$ rm {manager.path(args.name)}")
        return EXIT_GOOD
    manager.remove(args.name)
    gone = Text(
        f"{args.name} is removed; models, keys and measurements stay in {places().data}.",
        f"{args.name} 已移除；模型、密钥和测量记录仍保留在 {places().data}。",
    )
    print(gone.in_language(args.lang))
    return EXIT_GOOD
