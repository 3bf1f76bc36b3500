"""`workhorse fleet init`: this machine as the head of a fleet."""

import argparse
from pathlib import Path

from workhorse.cli.arguments import port
from workhorse.cli.fleet_node import add_node_options, run_node
from workhorse.text import Language, Text


def add_arguments(parser: argparse.ArgumentParser, language: Language) -> None:
    """The node's options, and what the head decides for all."""
    words = {
        "token": Text(
            "a token of your own, in a file that only you can read (default: one is made)",
            "自备的令牌文件，仅本人可读（默认自动生成）",
        ),
        "http": Text(
            "port on which every node serves replicas (default 8000)",
            "各节点提供副本服务的端口（默认 8000）",
        ),
    }
    add_node_options(parser, language)
    parser.add_argument(
        "--token-file", type=Path, metavar="FILE", help=words["token"].in_language(language)
    )
    parser.add_argument(
        "--http-port", type=port, metavar="N", help=words["http"].in_language(language)
    )


def run(args: argparse.Namespace) -> int:
    """Start the head."""
    from workhorse.fleet.prepare import Wish
    from workhorse.fleet.ray_start import HEAD_PORT

    wish = Wish(
        head=None,
        address=args.address,
        name=args.name,
        port=HEAD_PORT if args.port is None else args.port,
        http_port=args.http_port,
        metrics_port=args.metrics_port,
        stats_port=args.stats_port,
        token_file=args.token_file,
    )
    return run_node(args, wish)
