"""`workhorse reload`: other settings, another plan or engine, without refusing a request."""

import argparse
from typing import TYPE_CHECKING, Any

from workhorse.cli.arguments import port
from workhorse.cli.show import console
from workhorse.cli.status import not_running
from workhorse.codec import to_json
from workhorse.config import places
from workhorse.errors import EXIT_GOOD, AppError
from workhorse.text import Language, Text

if TYPE_CHECKING:
    from workhorse.run.run_file import ServiceFile

HOW = {
    "kept": Text(
        "goes on: nothing that it was started with has changed", "继续运行：启动参数无变化"
    ),
    "replaced": Text("replaced by an engine started beside it", "已由并行启动的新引擎接替"),
    "restarted": Text("restarted in its place", "已原地重启"),
    "added": Text("added", "已添加"),
    "removed": Text("removed", "已移除"),
}


def add_arguments(parser: argparse.ArgumentParser, language: Language) -> None:
    """The options of `reload`."""
    words = {
        "port": Text("port of the service, where several run", "服务端口（有多个服务时）"),
        "restart": Text("also start anew what has not changed", "未变化的引擎也重新启动"),
    }
    said = {key: text.in_language(language) for key, text in words.items()}
    parser.add_argument("--port", type=port, metavar="N", help=said["port"])
    parser.add_argument("--restart", action="store_true", help=said["restart"])


def run(args: argparse.Namespace) -> int:
    """Reload the one service; ends when it has, with what was changed."""
    from workhorse.up.outside import reload

    file = the_service(args.port)
    told = console(stderr=True)
    with told.status(""):
        for document in reload(file, restart=args.restart):
            if "stage" in document:
                stage = text_of(document["stage"]).in_language(args.lang)
                told.print(f"· {stage}", markup=False)
            elif "error" in document:
                error = document["error"]
                raise AppError(text_of(error["what"]), text_of(error["next_step"]))
            else:
                changes = document["changes"]
    if args.json:
        print(to_json(changes))
    else:
        for change in changes:
            print(f"{change['model_name']}: {HOW[change['how']].in_language(args.lang)}")
    return EXIT_GOOD


def the_service(port_asked: int | None) -> "ServiceFile":
    """The service that is meant; an AppError when there is none, or more than one."""
    from workhorse.up.outside import services

    found = services(places(), port_asked)
    if not found:
        raise not_running(port_asked)
    if len(found) > 1:
        ports = ", ".join(str(file.port) for file in found)
        raise AppError(
            Text(f"Several services run: ports {ports}.", f"有多个服务在运行：端口 {ports}。"),
            Text("Name one with --port.", "请用 --port 指定。"),
        )
    return found[0]


def text_of(document: dict[str, Any]) -> Text:
    """The two languages of what the service said."""
    return Text(str(document["en"]), str(document["zh"]))
