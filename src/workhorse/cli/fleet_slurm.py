"""`workhorse fleet slurm`: the batch script that makes a fleet of the nodes of a Slurm job."""

import argparse
import sys
from pathlib import Path

from workhorse.cli.arguments import port, positive
from workhorse.codec import to_json
from workhorse.config import places
from workhorse.errors import EXIT_GOOD, EXIT_USAGE, AppError
from workhorse.text import Language, Text

WORDS: dict[str, Text] = {
    "nodes": Text("how many nodes the job asks for", "作业申请的节点数"),
    "gpus": Text("cards of each node", "每个节点的 GPU 数"),
    "partition": Text("Slurm's partition", "Slurm 分区"),
    "time": Text(
        "how long, as sbatch takes it: 8:00:00, 2-00:00:00",
        "时长，sbatch 的写法：8:00:00、2-00:00:00",
    ),
    "account": Text("account that is charged", "计费账户"),
    "qos": Text("quality of service", "服务质量（QOS）"),
    "constraint": Text("features that each node has to have", "节点须具备的特性"),
    "interface": Text(
        "network interface by which the nodes speak, such as ib0 (default: the first address)",
        "节点间通信的网络接口，如 ib0（默认用第一个地址）",
    ),
    "shared": Text(
        "folder that all nodes see, for the job's token (default: where it is submitted)",
        "所有节点可见的目录，用于存放作业令牌（默认为提交作业的目录）",
    ),
    "name": Text("name of the job", "作业名"),
    "port": Text(
        "first of the ports in a row of the head (default 6379)",
        "主节点连续端口的第一个（默认 6379）",
    ),
    "output": Text("write the script to a file (default: print it)", "写入文件（默认打印）"),
    "up": Text(
        "the model, then after -- options of `workhorse fleet up`",
        "模型；在 -- 之后可写 `workhorse fleet up` 的选项",
    ),
    "on_node": Text(
        "what the script runs on each node: the head's address", "脚本在各节点上执行：主节点地址"
    ),
    "token": Text("with --on-node: the job's token", "与 --on-node 同用：作业的令牌"),
}


def add_arguments(parser: argparse.ArgumentParser, language: Language) -> None:
    """What is asked of Slurm, and what is served."""
    said = {key: text.in_language(language) for key, text in WORDS.items()}
    parser.add_argument("up", nargs="*", metavar="MODEL", help=said["up"])
    parser.add_argument("--nodes", type=positive, required=True, metavar="N", help=said["nodes"])
    parser.add_argument("--gpus-per-node", type=positive, metavar="N", help=said["gpus"])
    for option, form in (
        ("partition", "NAME"),
        ("time", "TIME"),
        ("account", "NAME"),
        ("qos", "NAME"),
    ):
        parser.add_argument(f"--{option}", metavar=form, help=said[option])
    parser.add_argument("--constraint", metavar="LIST", help=said["constraint"])
    parser.add_argument("--interface", metavar="NAME", help=said["interface"])
    parser.add_argument("--shared", type=Path, metavar="DIR", help=said["shared"])
    parser.add_argument("--name", default="workhorse-fleet", metavar="NAME", help=said["name"])
    parser.add_argument("--port", type=port, default=6379, metavar="N", help=said["port"])
    parser.add_argument("--output", type=Path, metavar="FILE", help=said["output"])
    parser.add_argument("--on-node", metavar="IP:PORT", help=said["on_node"])
    parser.add_argument("--token-file", type=Path, metavar="FILE", help=said["token"])


def run(args: argparse.Namespace) -> int:
    """Print the script or write it; on a node of the job, become a node of its fleet."""
    if args.on_node is not None:
        return run_on_node(args)
    from workhorse.fleet.slurm import SlurmJob, script

    text = script(
        SlurmJob(
            nodes=args.nodes,
            up=tuple(args.up),
            program=(sys.executable, "-m", "workhorse"),
            gpus_per_node=args.gpus_per_node,
            partition=args.partition,
            time=args.time,
            account=args.account,
            qos=args.qos,
            constraint=args.constraint,
            interface=args.interface,
            shared=None if args.shared is None else str(args.shared.absolute()),
            name=args.name,
            port=args.port,
        )
    )
    if args.output is not None:
        write(args.output, text)
    if args.json:
        print(to_json({"script": text}))
    elif args.output is None:
        print(text, end="")
    else:
        start = Text(f"Start it: sbatch {args.output}", f"提交作业：sbatch {args.output}")
        print(start.in_language(args.lang))
    return EXIT_GOOD


def write(path: Path, text: str) -> None:
    """The script as a file; an AppError when it cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise AppError(
            Text(
                f"{path} cannot be written: {error.strerror}.",
                f"无法写入 {path}：{error.strerror}。",
            ),
            Text("Choose another --output.", "请换一个 --output。"),
        ) from error


def run_on_node(args: argparse.Namespace) -> int:
    """Become a node; returns only by raising."""
    from workhorse.fleet.slurm_node import become_node

    if args.token_file is None:
        raise AppError(
            Text("--on-node needs --token-file.", "--on-node 需要 --token-file。"),
            Text(
                "It is for the script that `workhorse fleet slurm` writes.",
                "该选项供 `workhorse fleet slurm` 生成的脚本使用。",
            ),
            exit_code=EXIT_USAGE,
        )
    become_node(args.on_node, args.nodes, args.token_file.absolute(), tuple(args.up), places())
    return EXIT_GOOD
