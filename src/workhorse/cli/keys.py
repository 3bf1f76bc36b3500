"""`workhorse keys`: who may ask the service, and for how much."""

import argparse
import json
import re
import time
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

from workhorse.cli.arguments import positive
from workhorse.cli.parser import not_taken
from workhorse.cli.show import console, print_table
from workhorse.config import places
from workhorse.errors import EXIT_GOOD, EXIT_USAGE, AppError
from workhorse.text import Language, Text
from workhorse.units import UNKNOWN

if TYPE_CHECKING:
    from workhorse.serve.keys import KeptKey

ACTIONS = ("add", "list", "revoke")
LIMITS = ("rpm", "tpm", "concurrency", "models", "expires", "priority")
TITLE = Text("Keys of this installation", "本安装的密钥")
NONE = Text(
    "There are no keys: every program of this machine may ask, no other machine.",
    "尚无密钥：仅本机程序可访问。",
)
COLUMNS = (
    Text("name", "名称"),
    Text("begins with", "开头"),
    Text("state", "状态"),
    Text("limits", "限制"),
    Text("expires", "到期"),
)
STATES = {
    "in force": Text("in force", "有效"),
    "revoked": Text("revoked", "已吊销"),
    "expired": Text("expired", "已过期"),
}
_NAME = re.compile(r"[\w.@+-]{1,64}")
_SPAN = re.compile(r"(\d{1,5})([hdw])")
_HOURS = {"h": 1, "d": 24, "w": 24 * 7}


def add_arguments(parser: argparse.ArgumentParser, language: Language) -> None:
    """What to do, with which key, and its limits."""
    words = {
        "action": Text(
            "add: make a key and show it once; list: what there is; "
            "revoke: let it open nothing from now on (within a second)",
            "add：创建密钥（只显示一次）；list：列出；revoke：吊销（一秒内生效）",
        ),
        "name": Text("whose key it is", "密钥归属者"),
        "rpm": Text("requests a minute", "每分钟请求数"),
        "tpm": Text(
            "tokens a minute, prompts and answers together", "每分钟 token 数（输入加输出）"
        ),
        "concurrency": Text("requests at the same time", "同时请求数"),
        "models": Text("only these models", "仅限这些模型"),
        "expires": Text(
            "how long it is good (12h, 30d, 8w) or its last day (2027-01-31); left out: for ever",
            "有效期（12h、30d、8w）或最后一天（2027-01-31）；省略则永久有效",
        ),
        "priority": Text(
            "batch: waits for everybody else (default: chat)", "batch：让其他请求先行（默认 chat）"
        ),
        "all": Text(
            "revoke: delete every key, so that this machine needs none again",
            "revoke：删除全部密钥，本机重新免密钥访问",
        ),
    }
    said = {key: text.in_language(language) for key, text in words.items()}
    parser.add_argument("action", choices=ACTIONS, help=said["action"])
    parser.add_argument("name", nargs="?", type=name, metavar="NAME", help=said["name"])
    parser.add_argument("--rpm", type=positive, metavar="N", help=said["rpm"])
    parser.add_argument("--tpm", type=positive, metavar="N", help=said["tpm"])
    parser.add_argument("--concurrency", type=positive, metavar="N", help=said["concurrency"])
    parser.add_argument("--models", nargs="+", metavar="MODEL", help=said["models"])
    parser.add_argument("--expires", type=moment, metavar="WHEN", help=said["expires"])
    parser.add_argument("--priority", choices=("chat", "batch"), help=said["priority"])
    parser.add_argument("--all", action="store_true", help=said["all"])


def run(args: argparse.Namespace) -> int:
    """Make, list or revoke."""
    refuse_misplaced(args)
    actions = {"add": run_add, "list": run_list, "revoke": run_revoke}
    return actions[args.action](args)


def run_add(args: argparse.Namespace) -> int:
    """Make a key; its secret is printed here and is nowhere else."""
    from workhorse.serve.key_store import KeyStore
    from workhorse.serve.keys import Key

    key = Key(
        name=args.name,
        rpm=args.rpm,
        tpm=args.tpm,
        concurrency=args.concurrency,
        models=None if args.models is None else tuple(dict.fromkeys(args.models)),
        expires_unix_s=None if args.expires is None else args.expires.timestamp(),
        priority=args.priority or "chat",
    )
    secret = KeyStore(places().service).add(key, time.time())
    if args.json:
        print(json.dumps({"name": key.name, "key": secret}, ensure_ascii=False))
        return EXIT_GOOD
    print(secret)
    once = Text(
        "This is the only time it is shown. Clients send it as `Authorization: Bearer …`, "
        "OpenAI's libraries as `api_key`.",
        "密钥仅显示这一次。客户端以 `Authorization: Bearer …` 发送，OpenAI 库用 `api_key`。",
    )
    console(stderr=True).print(once.in_language(args.lang), markup=False)
    return EXIT_GOOD


def run_list(args: argparse.Namespace) -> int:
    """Every key, revoked ones too; no secret."""
    from workhorse.serve.key_store import KeyStore

    kept, now_unix_s = KeyStore(places().service).kept(), time.time()
    if args.json:
        print(json.dumps([document(one, now_unix_s) for one in kept], ensure_ascii=False))
    elif not kept:
        print(NONE.in_language(args.lang))
    else:
        rows = [row(one, now_unix_s, args.lang) for one in kept]
        print_table(TITLE, COLUMNS, rows, args.lang)
    return EXIT_GOOD


def run_revoke(args: argparse.Namespace) -> int:
    """Revoke one key, or delete them all."""
    from workhorse.serve.key_store import KeyStore

    store = KeyStore(places().service)
    if args.all:
        count = store.forget_all()
        done = Text(
            f"Deleted: {count} key{'s' * (count != 1)}. {NONE.en}",
            f"已删除 {count} 个密钥。{NONE.zh}",
        )
    else:
        store.revoke(args.name, time.time())
        done = Text(
            f"{args.name} is revoked: a running service refuses it within a second.",
            f"{args.name} 已吊销：运行中的服务一秒内拒绝该密钥。",
        )
    if args.json:
        print(json.dumps({"revoked": "all" if args.all else args.name}, ensure_ascii=False))
    else:
        print(done.in_language(args.lang))
    return EXIT_GOOD


def refuse_misplaced(args: argparse.Namespace) -> None:
    """AppError for what does not belong to the action: it must not pass in silence."""
    misplaced = [f"--{word}" for word in LIMITS if getattr(args, word) and args.action != "add"]
    misplaced += ["--all"] * (args.all and args.action != "revoke")
    misplaced += ["NAME"] * bool(args.name and (args.action == "list" or args.all))
    if misplaced:
        raise _usage(
            Text(
                f"{misplaced[0]} does not go with `keys {args.action}`.",
                f"{misplaced[0]} 不能用于 `keys {args.action}`。",
            )
        )
    if args.name is None and not args.all and args.action != "list":
        raise _usage(
            Text(f"`keys {args.action}` needs a NAME.", f"`keys {args.action}` 需要名称。")
        )


def state_of(kept: "KeptKey", now_unix_s: float) -> str:
    """Whether a key opens anything."""
    if kept.revoked_unix_s is not None:
        return "revoked"
    expires_unix_s = kept.key.expires_unix_s
    return "expired" if expires_unix_s is not None and now_unix_s >= expires_unix_s else "in force"


def document(kept: "KeptKey", now_unix_s: float) -> dict[str, object]:
    """A key as one JSON object."""
    key = kept.key
    return {
        "name": key.name,
        "id": kept.id,
        "state": state_of(kept, now_unix_s),
        "rpm": key.rpm,
        "tpm": key.tpm,
        "concurrency": key.concurrency,
        "models": key.models,
        "priority": key.priority,
        "expires_unix_s": key.expires_unix_s,
        "added_unix_s": kept.added_unix_s,
        "revoked_unix_s": kept.revoked_unix_s,
    }


def row(kept: "KeptKey", now_unix_s: float, language: Language) -> Sequence[str]:
    """A key as one line of the table."""
    key = kept.key
    limits = [f"{key.rpm} rpm"] * bool(key.rpm) + [f"{key.tpm} tpm"] * bool(key.tpm)
    limits += [f"× {key.concurrency}"] * bool(key.concurrency)
    limits += list(key.models or ()) + [key.priority] * (key.priority == "batch")
    state = STATES[state_of(kept, now_unix_s)].in_language(language)
    return (key.name, f"wh-{kept.id}", state, ", ".join(limits) or UNKNOWN, day(key.expires_unix_s))


def day(unix_s: float | None) -> str:
    """A moment in local time; a dash for never."""
    if unix_s is None:
        return UNKNOWN
    return datetime.fromtimestamp(unix_s, UTC).astimezone().strftime("%Y-%m-%d %H:%M")


def name(word: str) -> str:
    """The name of a key, as argparse wants it."""
    if not _NAME.fullmatch(word):
        raise not_taken(
            Text(
                f"{word!r} is no name: up to 64 letters, digits or .@+-_",
                f"{word!r} 不能用作名称：最多 64 个字母、数字或 .@+-_",
            )
        )
    return word


def moment(word: str) -> datetime:
    """When a key ends: after a span of time or with a day; as argparse wants it."""
    now = datetime.now(UTC)
    try:
        if match := _SPAN.fullmatch(word):
            ends = now + timedelta(hours=int(match[1]) * _HOURS[match[2]])
        else:
            after = date.fromisoformat(word) + timedelta(days=1)
            ends = datetime.fromisoformat(after.isoformat()).astimezone()
    except (ValueError, OverflowError) as error:
        raise not_taken(
            Text(
                f"{word} is no time (such as 12h, 30d, 8w, 2027-01-31)",
                f"{word} 不是时间（如 12h、30d、8w、2027-01-31）",
            )
        ) from error
    if ends <= now:
        raise not_taken(Text(f"{word} is over", f"{word} 已经过去"))
    return ends


def _usage(what: Text) -> AppError:
    return AppError(
        what,
        Text("`workhorse keys --help` shows the options.", "选项见 `workhorse keys --help`。"),
        exit_code=EXIT_USAGE,
    )
