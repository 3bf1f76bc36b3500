"""`workhorse fleet join`: this machine as one more node of a fleet."""

import argparse
from pathlib import Path

from workhorse.cli.fleet_node import add_node_options, run_node
from workhorse.text import Language, Text


def add_arguments(parser: argparse.ArgumentParser, language: Language) -> None:
    """Whom to join, with which token, and the node's options."""
    words = {
        "head": Text(
            "name or IP of the head, with its port when it is not 6379",
            "主节点的名称或 IP；端口不是 6379 时请一并写上",
        ),
        "token": Text(
            "the fleet's token, copied from the head; only you may be able to read it",
            "从主节点复制的令牌文件，仅本人可读",
        ),
    }
    parser.add_argument("head", metavar="HEAD", help=words["head"].in_language(language))
    parser.add_argument(
        "--token-file", type=Path, metavar="FILE", help=words["token"].in_language(language)
    )
    add_node_options(parser, language)


def run(args: argparse.Namespace) -> int:
    """Start the node."""
    from workhorse.fleet.prepare import Wish
    from workhorse.fleet.ray_start import HEAD_PORT

    wish = Wish(
        head=args.head,
        address=args.address,
        name=args.name,
        port=HEAD_PORT if args.port is None else args.port,
        metrics_port=args.metrics_port,
        stats_port=args.stats_port,
        token_file=args.token_file,
    )
    return run_node(args, wish)
