"""Arguments that several commands share."""

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workhorse.cli.parser import not_taken
from workhorse.text import Language, Text

if TYPE_CHECKING:
    from workhorse.up.decide import Ask, Cards


def add_model(parser: argparse.ArgumentParser, language: Language) -> None:
    """The model, first on the line, and which of its quantisations."""
    words = Text(
        "a GGUF file, a checkpoint's folder, hf:owner/name[:file], ms:owner/name or an address; "
        "left out: the embedded model",
        "GGUF 文件、模型目录、hf:所有者/名称[:文件]、ms:所有者/名称或网址；省略则用内置模型",
    )
    parser.add_argument("model", nargs="?", metavar="MODEL", help=words.in_language(language))
    quant = Text(
        "which file of a repository; of a checkpoint: what its sizes are worked out for "
        "(Q4_K_M when left out)",
        "选择仓库中的哪个文件；对未量化模型则为估算大小所用的量化类型（默认 Q4_K_M）",
    )
    parser.add_argument("--quant", metavar="TYPE", help=quant.in_language(language))


def add_choices(
    parser: argparse.ArgumentParser, language: Language, *, projector: bool = True
) -> None:
    """What `plan` and `up` both let the user decide; `projector`: which one too."""
    parser.add_argument(
        "--engine",
        type=Path,
        metavar="KIND|NAME|PATH",
        help=Text(
            "auto, llama.cpp, vllm or lmdeploy; an installed build or environment (workhorse "
            "engine list); or the path of a llama-server or an environment of your own",
            "auto、llama.cpp、vllm 或 lmdeploy；已安装的构建或环境（workhorse engine list）；"
            "或自己的 llama-server、环境的路径",
        ).in_language(language),
    )
    parser.add_argument(
        "--context",
        type=positive,
        metavar="TOKENS",
        help=Text("context of one slot", "每个槽位的上下文长度").in_language(language),
    )
    parser.add_argument(
        "--slots",
        type=positive,
        metavar="N",
        help=Text("requests answered at the same time", "同时应答的请求数").in_language(language),
    )
    parser.add_argument(
        "--for",
        dest="purpose",
        choices=("chat", "long", "batch"),
        help=Text(
            "what it is for: sets context and slots where you do not",
            "用途：决定未指定的上下文和槽位",
        ).in_language(language),
    )
    if projector:
        add_projector(parser, language)
    parser.add_argument(
        "--headroom",
        type=share,
        metavar="PERCENT",
        help=Text(
            "share of each device that stays free (default: 20%%)",
            "每个设备保留的余量（默认 20%%）",
        ).in_language(language),
    )


def add_cards(parser: argparse.ArgumentParser, language: Language) -> None:
    """Which cards of this machine a model gets, and how many engines serve it."""
    parser.add_argument(
        "--gpus",
        type=cards,
        metavar="N|all|LIST",
        help=Text(
            "cards to use: so many (2), all, or those of these numbers (0,1; one card: 1,)",
            "使用的显卡：数量（2）、all，或编号（0,1；单张卡写作 1,）",
        ).in_language(language),
    )
    parser.add_argument(
        "--engines",
        type=positive,
        metavar="N",
        help=Text(
            "engines that serve the model together, each on cards or CPUs of its own",
            "共同提供该模型的引擎数，各用自己的显卡或 CPU",
        ).in_language(language),
    )


def add_projector(parser: argparse.ArgumentParser, language: Language) -> None:
    """The file with which a model takes images."""
    parser.add_argument(
        "--mmproj",
        metavar="FILE|none",
        help=Text(
            "the model's projector, so that images can be sent (llama.cpp); left out: the only "
            "mmproj*.gguf beside the model",
            "模型的投影器文件，用于发送图像（llama.cpp）；省略则用模型旁唯一的 mmproj*.gguf",
        ).in_language(language),
    )


def ask_of(args: argparse.Namespace, **more: Any) -> "Ask":
    """What the user asked for with the shared arguments; `more` sets the rest of an Ask."""
    from workhorse.plan.wish import HEADROOM, Wish
    from workhorse.up.decide import Ask

    wish = Wish(
        context_tokens=args.context,
        slots=args.slots,
        purpose=args.purpose,
        headroom=HEADROOM if args.headroom is None else args.headroom,
    )
    return Ask(
        model=args.model,
        quant=args.quant,
        engine=args.engine,
        wish=wish,
        mmproj=getattr(args, "mmproj", None),
        **more,
    )


def positive(word: str) -> int:
    """A whole number of at least 1, as argparse wants it."""
    number = int(word)
    if number < 1:
        raise not_taken(Text(f"{word} is not at least 1", f"{word} 小于 1"))
    return number


def cards(word: str) -> "Cards":
    """Which cards: `2` so many, `all`, `0,1` those, `1,` that one, as argparse wants it."""
    if word == "all":
        return "all"
    if "," not in word:
        return positive(word)
    indexes = tuple(int(part) for part in word.split(",") if part.strip())
    if not indexes or min(indexes) < 0 or len(set(indexes)) < len(indexes):
        raise not_taken(
            Text(
                f"{word} is no list of different cards (such as 0,1)",
                f"{word} 不是显卡编号列表（如 0,1）",
            )
        )
    return tuple(sorted(indexes))


def share(word: str) -> float:
    """A share below 1 from `10%` or `0.1`, as argparse wants it."""
    number = float(word.removesuffix("%")) / (100 if word.endswith("%") else 1)
    if not 0 <= number <= 0.9:
        raise not_taken(Text(f"{word} is not a share (0% to 90%)", f"{word} 不在 0% 到 90% 之间"))
    return number


class Once(argparse.Action):
    """Keeps the value; a second one is refused, where argparse would drop the first in silence."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        """Set the value, unless there is one."""
        if getattr(namespace, self.dest) is not None:
            parser.error(f"{option_string} is given twice: one kind of card and CPU a machine")
        setattr(namespace, self.dest, values)


def bits(word: str) -> float:
    """Bits a weight, from 1 to 32, as argparse wants it."""
    number = float(word)
    if not 1 <= number <= 32:
        raise not_taken(
            Text(f"{word} is no number of bits (1 to 32)", f"{word} 不是位数（1 到 32）")
        )
    return number


SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])i?B?)", re.IGNORECASE)


def memory_size(word: str) -> int:
    """Bytes from `128GiB`, `128G` or `64000MiB`: binary, as memory is sold."""
    match = SIZE.fullmatch(word.strip())
    n_bytes = int(float(match[1]) * 1024 ** ("KMGT".index(match[2].upper()) + 1)) if match else 0
    if not 0 < n_bytes <= 1024**5:
        raise not_taken(
            Text(f"{word} is no memory size (such as 128GiB)", f"{word} 不是内存大小（如 128GiB）")
        )
    return n_bytes


def port(word: str) -> int:
    """A TCP port; 0 takes a free one."""
    number = int(word)
    if not 0 <= number <= 65535:
        raise not_taken(
            Text(f"{word} is not a port (0 to 65535)", f"{word} 不是端口（0 到 65535）")
        )
    return number
