"""`workhorse pull`: bring a model here, whole and checked; the quant that suits this machine."""

import argparse
import os
import signal
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from workhorse.cli.arguments import add_choices, ask_of
from workhorse.cli.progress import LateBar
from workhorse.cli.pull_progress import PullBar
from workhorse.cli.show import print_table
from workhorse.codec import to_json
from workhorse.config import Places, places
from workhorse.errors import EXIT_GOOD, EXIT_USAGE, AppError
from workhorse.models.pull_tries import CONNECTIONS, CONNECTIONS_MAX
from workhorse.text import Language, Text
from workhorse.units import show_bytes

if TYPE_CHECKING:
    from workhorse.models.pull import Pulled, RemoteFolder
    from workhorse.models.pull_choice import Choice
    from workhorse.models.sources import HubSource, UrlSource

AUTO = "auto"
LOOKING = Text("planning each quant", "逐个评估量化版本")
STOPPED = Text("stopped; the same command goes on from here", "已停止；重新运行同一命令即可继续")
WORDS: dict[str, Text] = {
    "model": Text(
        "hf:owner/name[@revision][:file or quant], ms:owner/name, or an address",
        "hf:所有者/名称[@版本][:文件或量化类型]、ms:所有者/名称，或网址",
    ),
    "quant": Text(
        "which GGUF file of a repository, such as Q4_K_M; auto (default): the best quality that "
        "fits this machine with the context and slots",
        "选择仓库中的哪个 GGUF 文件，如 Q4_K_M；auto（默认）：在满足上下文和槽位的前提下"
        "选本机放得下的最佳质量",
    ),
    "to": Text(
        "folder to put it into (default: one of its own under WORKHORSE_HOME/models)",
        "存放目录（默认：WORKHORSE_HOME/models 下的专用目录）",
    ),
    "offline": Text(
        "use no network: say where the model is if it was pulled before (HF_HUB_OFFLINE=1 too)",
        "不使用网络：若此前已下载，则给出其位置（HF_HUB_OFFLINE=1 亦然）",
    ),
    "connections": Text(
        f"connections at a time (default: {CONNECTIONS})", f"同时连接数（默认 {CONNECTIONS}）"
    ),
    "revision": Text("branch, tag or commit of the repository", "仓库的分支、标签或提交"),
}


def add_arguments(parser: argparse.ArgumentParser, language: Language) -> None:
    """The options of `pull`."""
    said = {name: words.in_language(language) for name, words in WORDS.items()}
    parser.add_argument("model", metavar="MODEL", help=said["model"])
    parser.add_argument("--quant", metavar="auto|TYPE", default=AUTO, help=said["quant"])
    parser.add_argument("--to", type=Path, metavar="DIR", help=said["to"])
    parser.add_argument("--offline", action="store_true", help=said["offline"])
    parser.add_argument(
        "--connections",
        type=connections,
        default=CONNECTIONS,
        metavar="N",
        help=said["connections"],
    )
    parser.add_argument("--revision", metavar="NAME", help=said["revision"])
    add_choices(parser, language, projector=False)


def connections(word: str) -> int:
    """How many connections, as argparse wants it."""
    number = int(word)
    if not 1 <= number <= CONNECTIONS_MAX:
        raise argparse.ArgumentTypeError(f"{word} is not from 1 to {CONNECTIONS_MAX}")
    return number


def run(args: argparse.Namespace) -> int:
    """Pull, and say where the model is and how to serve it."""
    from workhorse.models.folders import AddressFolder
    from workhorse.models.hub import HubFolder
    from workhorse.models.pull_record import folder_of
    from workhorse.models.sources import HubSource

    # A service that is stopped in the middle ends as after Ctrl-C: what has arrived stays.
    signal.signal(signal.SIGTERM, interrupt)
    where = places()
    source = source_named(args.model, args.revision)
    quant = None if args.quant.lower() == AUTO else args.quant
    wanted = source.wanted if isinstance(source, HubSource) else None
    if quant is not None and (wanted is not None or not isinstance(source, HubSource)):
        raise names_its_file(args.model)
    target = (args.to or folder_of(source, where.models)).expanduser().absolute()
    if args.offline or os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        return print_offline(args, source, target, quant)
    folder: RemoteFolder
    if isinstance(source, HubSource):
        folder = HubFolder(source, os.environ)
    else:
        folder = AddressFolder(source.url)
    choice = choose_file(folder, wanted, quant, args, where)
    pulled = brought(folder, choice, target, args)
    check(pulled)
    if args.json:
        print(to_json({**asdict(pulled), "path": str(pulled.path)}))
    else:
        print_pulled(pulled, args.lang)
    return EXIT_GOOD


def interrupt(_: int, __: FrameType | None) -> None:
    """A SIGTERM ends as a Ctrl-C does."""
    raise KeyboardInterrupt


def source_named(reference: str, revision: str | None) -> "HubSource | UrlSource":
    """Where the model is; AppError for one that is on this machine already."""
    from workhorse.models.sources import HubSource, LocalSource, source_of

    source = source_of(reference, os.environ)
    if isinstance(source, LocalSource):
        there = source.path.exists()
        raise AppError(
            Text(
                f"{reference} is on this machine already."
                if there
                else f"{reference} is a path, and nothing is there.",
                f"{reference} 已在本机上。" if there else f"{reference} 是路径，但那里没有文件。",
            ),
            Text(f"Serve it: workhorse up {reference}", f"直接启动：workhorse up {reference}")
            if there
            else Text(
                "Write hf:owner/name, ms:owner/name or an address.",
                "请写成 hf:所有者/名称、ms:所有者/名称或网址。",
            ),
            exit_code=EXIT_USAGE,
        )
    if revision is None:
        return source
    usual = "main" if isinstance(source, HubSource) and source.hub == "hf" else "master"
    if not isinstance(source, HubSource) or source.revision not in (usual, revision):
        raise AppError(
            Text(
                f"--revision {revision} does not go with {reference}.",
                f"--revision {revision} 与 {reference} 不相容。",
            ),
            Text(
                "Name the revision once, of a repository on a hub.",
                "请只对平台上的仓库指定一次版本。",
            ),
            exit_code=EXIT_USAGE,
        )
    return replace(source, revision=revision)


def names_its_file(reference: str) -> AppError:
    """--quant would be ignored, and the user misled."""
    return AppError(
        Text(f"{reference} names its file already.", f"{reference} 已指明文件。"),
        Text("Leave out --quant.", "请去掉 --quant。"),
        exit_code=EXIT_USAGE,
    )


def print_offline(
    args: argparse.Namespace, source: "HubSource | UrlSource", target: Path, quant: str | None
) -> int:
    """Where the model is that was pulled before; AppError when it is not here whole."""
    from workhorse.models.pull_record import find_in, label_of, wanted_of

    found = find_in(target, label_of(source), wanted_of(source) or quant)
    if found is None:
        raise AppError(
            Text(
                f"{args.model} is not whole in {target}, and the network is not to be used.",
                f"{args.model} 在 {target} 中不完整，而当前不允许使用网络。",
            ),
            Text(
                "Pull it without --offline, or copy the folder from a machine that has it.",
                "请去掉 --offline 重新下载，或从已有该模型的机器复制此目录。",
            ),
        )
    if args.json:
        print(to_json({"path": str(found)}))
    else:
        print(found)
    return EXIT_GOOD


def choose_file(
    folder: "RemoteFolder",
    wanted: str | None,
    quant: str | None,
    args: argparse.Namespace,
    where: Places,
) -> str | None:
    """The GGUF file to pull, told with its reason; None: the checkpoint."""
    from workhorse.models.choice import choose
    from workhorse.models.folders import AddressFolder

    if isinstance(folder, AddressFolder):
        return folder.file
    listing = folder.listing()
    if wanted is not None or quant is not None:
        file = choose(listing, wanted or quant, folder.label)
        if file is None:
            raise only_checkpoint(folder.label, wanted or quant or "")
        return file
    choice = choose_here(folder, args, where)
    if choice is None:
        return None
    tell_choice(choice, args)
    return choice.file


def only_checkpoint(label: str, quant: str) -> AppError:
    """A quant was named of a repository that has none."""
    return AppError(
        Text(
            f"{label} has no GGUF file, so no {quant}: it is a checkpoint as its makers publish "
            "it.",
            f"{label} 没有 GGUF 文件，因而没有 {quant}：它是原始模型。",
        ),
        Text(
            "Leave out --quant to pull the checkpoint, or name a repository with GGUF files.",
            "去掉 --quant 可下载原始模型；或改用提供 GGUF 文件的仓库。",
        ),
        exit_code=EXIT_USAGE,
    )


def choose_here(folder: "RemoteFolder", args: argparse.Namespace, where: Places) -> "Choice | None":
    """The best quant for this machine, from the plan of each; little but headers is read."""
    from workhorse.models.choice import gguf_models
    from workhorse.models.pull_choice import choose_for_machine
    from workhorse.models.read import read_model
    from workhorse.plan.compare import Compared, compared
    from workhorse.plan.wish import context_for
    from workhorse.up.decide import look_around
    from workhorse.up.pick import asks_for_pooled

    models = gguf_models(folder.listing())
    if not models:
        return None
    if asks_for_pooled(args.engine):  # such an engine computes with the checkpoint
        return None
    ask = replace(ask_of(args), model=None, quant=None)
    ground = look_around(ask, where)
    machine = ground.machine
    cards = sum(gpu.memory_total_bytes or 0 for gpu in machine.gpus)
    memory_bytes = (machine.memory.total_bytes or 0) + cards

    looked_at: list[str] = []

    def judge(file: str) -> tuple[Compared, int]:
        bar.step(len(looked_at), len(models))
        looked_at.append(file)
        model = read_model(folder.name_of(file))
        plan = ground.decide(model, ask.wish).plan
        return compared(model, plan), context_for(model, ask.wish)

    with LateBar(LOOKING, args.lang) as bar:
        return choose_for_machine(models.values(), folder.label, ask.wish, memory_bytes, judge)


def tell_choice(choice: "Choice", args: argparse.Namespace) -> None:
    """What was chosen and why, and why none of the others; on stderr where stdout is a document."""
    say(Text(f"{choice.file}: {choice.because.en}", f"{choice.file}：{choice.because.zh}"), args)
    if choice.rejected and not args.json:
        print_table(
            Text("Not taken", "未采用"),
            (Text("file", "文件"), Text("because", "原因")),
            ((r.option, r.because.in_language(args.lang)) for r in choice.rejected),
            args.lang,
        )
        sys.stdout.flush()


def say(words: Text, args: argparse.Namespace) -> None:
    """One line of progress on stderr."""
    print(f"· {words.in_language(args.lang)}", file=sys.stderr, flush=True)


def brought(
    folder: "RemoteFolder", file: str | None, target: Path, args: argparse.Namespace
) -> "Pulled":
    """The files of the model, in `target`, with a bar while they come."""
    from workhorse.models.pull import Telling, order_of, pull

    order = order_of(folder, file)
    n_files, size = len(order.files), order.size_bytes
    en, zh = ("", "") if size is None else (f", {show_bytes(size)}", f"，{show_bytes(size)}")
    say(
        Text(
            f"{order.label}: {n_files} file{'s' if n_files > 1 else ''}{en}, into {target}",
            f"{order.label}：{n_files} 个文件{zh}，存入 {target}",
        ),
        args,
    )
    with PullBar(args.lang) as bar:
        telling = Telling(bar.say, bar.step)
        try:
            return pull(folder, order, target, telling, connections=args.connections)
        except KeyboardInterrupt:
            bar.say(STOPPED)
            raise


def check(pulled: "Pulled") -> None:
    """AppError when what came is no model that can be read: its hash says what, not that."""
    from workhorse.models.read import read_model

    if pulled.path.is_dir() or pulled.path.suffix == ".gguf":
        read_model(pulled.path)


def print_pulled(pulled: "Pulled", language: Language) -> None:
    """Where it is, how it was checked, how to serve it."""
    if pulled.unchecked:
        n_files = len(pulled.unchecked)
        words = Text(
            f"{n_files} of {len(pulled.files)} files by size and version alone: the server "
            "publishes no hash of them",
            f"{len(pulled.files)} 个文件中有 {n_files} 个仅按大小和版本核对：服务器未公布其校验值",
        )
    else:
        words = Text("every file by its published hash", "所有文件均按公布的校验值核对")
    new = show_bytes(pulled.fetched_bytes)
    rows = (
        (Text("model", "模型"), Text(str(pulled.path), str(pulled.path))),
        (Text("new here", "本次新增"), Text(new, new)),
        (Text("checked", "核对"), words),
        (
            Text("serve it", "启动服务"),
            Text(f"workhorse up {pulled.path}", f"workhorse up {pulled.path}"),
        ),
    )
    print_table(
        Text("Pulled", "已下载"),
        (Text("", ""), Text("", "")),
        ((name.in_language(language), value.in_language(language)) for name, value in rows),
        language,
    )
