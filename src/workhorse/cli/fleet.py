"""`workhorse fleet`: several machines as one service; one file a sub-command."""

import argparse
from importlib import import_module
from types import ModuleType

from workhorse.cli.parser import Parser
from workhorse.text import Language, Text

SUB_COMMANDS: dict[str, Text] = {
    "init": Text(
        "make this machine the head of a fleet: the first node, that the others join",
        "把本机设为集群的主节点，其他节点由此加入",
    ),
    "join": Text("make this machine a node of a fleet", "让本机加入集群"),
    "slurm": Text(
        "write the batch script that makes a fleet of the nodes of a Slurm job",
        "生成批处理脚本，把 Slurm 作业的各节点组成集群",
    ),
    "up": Text(
        "serve a model on all nodes of the fleet, from its head", "在主节点上用整个集群提供模型服务"
    ),
    "status": Text("how nodes and replicas are", "查看节点与副本的状态"),
    "drain": Text(
        "take a node out of use without losing an answer, or let it back",
        "排空节点（不丢失任何回答），或恢复使用",
    ),
    "plan": Text(
        "tell how many of which box a number of users takes, by simulation; starts nothing",
        "通过模拟得出一定数量的用户需要多少台哪种机器；不启动任何东西",
    ),
    "leave": Text(
        "end this machine's node: what the fleet started here, and nothing else",
        "让本机退出集群：只结束集群在本机启动的进程",
    ),
}


def sub_module(name: str) -> ModuleType:
    """The module of a sub-command, with `add_arguments(parser, language)` and `run(args)`."""
    return import_module(f"workhorse.cli.fleet_{name}")


def add_arguments(parser: argparse.ArgumentParser, language: Language) -> None:
    """The sub-commands, each with its own arguments."""
    subs = parser.add_subparsers(
        dest="fleet", metavar="SUBCOMMAND", required=True, parser_class=Parser
    )
    for name, about in SUB_COMMANDS.items():
        words = about.in_language(language)
        one = subs.add_parser(name, help=words, description=words, language=language)
        add_common_again(one, language)
        sub_module(name).add_arguments(one, language)


def add_common_again(parser: argparse.ArgumentParser, language: Language) -> None:
    """`--json` and `--lang` after the sub-command too; left out there, what stood before holds."""
    parser.add_argument(
        "--json",
        action="store_true",
        default=argparse.SUPPRESS,
        help=Text("print one JSON document instead of a table", "输出 JSON").in_language(language),
    )
    parser.add_argument(
        "--lang",
        choices=("en", "zh"),
        default=argparse.SUPPRESS,
        help=Text("language of the output", "输出语言").in_language(language),
    )


def run(args: argparse.Namespace) -> int:
    """Run one sub-command."""
    return int(sub_module(args.fleet).run(args))
