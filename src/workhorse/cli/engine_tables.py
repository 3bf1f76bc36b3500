"""How environments of engines are shown."""

import argparse
from collections.abc import Sequence

from workhorse.cli.engine_environments import EnvironmentRow
from workhorse.cli.show import print_table
from workhorse.codec import to_json
from workhorse.errors import EXIT_GOOD
from workhorse.text import Text
from workhorse.units import UNKNOWN, show_bytes


def tell_environment(row: EnvironmentRow, args: argparse.Namespace) -> int:
    """The new environment and how to use it."""
    if args.json:
        print(to_json(row))
        return EXIT_GOOD
    name, size = row.environment.name, show_bytes(row.disk_bytes)
    text = Text(
        f"{name}: {size}. Use it: workhorse up MODEL_FOLDER --engine {name}",
        f"{name}：{size}。使用：workhorse up 模型目录 --engine {name}",
    )
    print(text.in_language(args.lang))
    return EXIT_GOOD


def print_environments(rows: Sequence[EnvironmentRow], args: argparse.Namespace) -> None:
    """The engines that are Python packages; nothing without any."""
    if not rows:
        return
    head = (
        Text("environment", "环境"),
        Text("engine", "引擎"),
        Text("cards", "显卡"),
        Text("torch", "torch"),
        Text("installed", "安装于"),
        Text("disk", "占用"),
    )
    table = [
        (
            row.environment.name,
            f"{row.environment.engine} {row.environment.asked.version}",
            ", ".join(row.architectures) or "CPU",
            row.environment.asked.torch or UNKNOWN,
            row.environment.installed_at[:10],
            show_bytes(row.disk_bytes),
        )
        for row in rows
    ]
    print_table(Text("Environments", "环境"), head, table, args.lang)
