"""`workhorse fleet drain NODE`: take a node out of use, without an answer lost."""

import argparse

from workhorse.cli.reload import text_of
from workhorse.cli.show import console
from workhorse.codec import to_json
from workhorse.config import Places, places
from workhorse.errors import EXIT_GOOD, AppError
from workhorse.text import Language, Text


def add_arguments(parser: argparse.ArgumentParser, language: Language) -> None:
    """Which node, and whether it comes back."""
    words = {
        "node": Text("name or IP of the node", "节点的名称或 IP"),
        "undo": Text("let it take replicas again", "恢复该节点，使其可以再次接收副本"),
    }
    parser.add_argument("node", metavar="NODE", help=words["node"].in_language(language))
    parser.add_argument("--undo", action="store_true", help=words["undo"].in_language(language))


def run(args: argparse.Namespace) -> int:
    """Ends once the node has no replica any more; its running answers end first."""
    from workhorse.fleet.outside import drain, running_fleet

    told = console(stderr=True)
    file = running_fleet(places())
    if file is None:
        words = drain_without_service(places(), args.node, undo=args.undo)
        told.print(f"· {words.in_language(args.lang)}", markup=False)
    else:
        for document in drain(file, args.node, undo=args.undo):
            if "stage" in document:
                stage = text_of(document["stage"]).in_language(args.lang)
                told.print(f"· {stage}", markup=False)
            elif "error" in document:
                error = document["error"]
                raise AppError(text_of(error["what"]), text_of(error["next_step"]))
    if args.json:
        print(to_json({"node": args.node, "draining": not args.undo}))
    return EXIT_GOOD


def drain_without_service(where: Places, name: str, *, undo: bool) -> Text:
    """Nobody asks the replicas: mark the node, and end those that are on it."""
    from workhorse.fleet.connect import connect
    from workhorse.fleet.matching import find_node
    from workhorse.fleet.member import this_member

    cluster = connect(this_member(where))
    from workhorse.fleet.on_ray.deploy import Deployments

    try:
        node = find_node(cluster.nodes(), name)
        cluster.set_draining(node.id, not undo)
        if undo:
            return Text(f"node {node.name} takes replicas again", f"节点 {node.name} 恢复接收副本")
        deployed = Deployments(cluster)
        for replica, state in deployed.states().items():
            if state.node_id == node.id:
                deployed.remove(replica)
    finally:
        cluster.close()
    return Text(f"node {node.name} is drained", f"节点 {node.name} 已排空")
