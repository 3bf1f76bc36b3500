"""`workhorse fleet leave`: end this machine's node, and nothing else."""

import argparse

from workhorse.cli.progress import LateBar
from workhorse.codec import to_json
from workhorse.config import places
from workhorse.errors import EXIT_GOOD
from workhorse.text import Language, Text

LEAVING = Text("ending the node", "结束节点")


def add_arguments(parser: argparse.ArgumentParser, language: Language) -> None:
    """None of its own."""


def run(args: argparse.Namespace) -> int:
    """End the node."""
    from workhorse.fleet.leave import leave

    with LateBar(LEAVING, args.lang) as bar:
        member, ending = leave(
            places(), on_wait=lambda done, most: bar.step(round(done), round(most))
        )
    if args.json:
        print(to_json({"node": member, "ending": ending}))
        return EXIT_GOOD
    said = {
        "ended": Text(
            f"{member.name} has left the fleet at {member.address}.",
            f"{member.name} 已退出集群 {member.address}。",
        ),
        "killed": Text(
            f"{member.name} did not end in time and was killed.",
            f"{member.name} 未能按时结束，已强制终止。",
        ),
        "was dead": Text(
            f"{member.name} had died before; what it left is ended.",
            f"{member.name} 此前已异常退出，其遗留的进程已结束。",
        ),
    }
    print(said[ending].in_language(args.lang))
    if member.head:
        alone = Text(
            "It was the head: without it the other nodes wait until there is one again at this "
            "address.",
            "它是主节点：其他节点将等待该地址上重新出现主节点。",
        )
        print(alone.in_language(args.lang))
    return EXIT_GOOD
