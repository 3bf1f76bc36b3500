"""The fleet's token: who has it is a member, and what replicas ask for is made from it."""

import hashlib
import hmac
import os
import re
import secrets
import stat
from pathlib import Path

from workhorse.errors import AppError
from workhorse.text import Text

TOKEN = re.compile(r"[!-~]{32,512}")
LARGEST_BYTES = 4096
# What the key of replicas is made for; another purpose of the token would have other words.
REPLICA_PURPOSE = b"workhorse fleet: key of replicas, 1"
FOLDER_PURPOSE = b"workhorse fleet: name of the folder for sockets, 1"


def new_token() -> str:
    """A token that nobody can guess: 256 bits in hexadecimal."""
    return secrets.token_hex(32)


def replica_key(token: str) -> str:
    """The key that every replica asks for; the token cannot be told from it."""
    return hmac.new(token.encode(), REPLICA_PURPOSE, hashlib.sha256).hexdigest()


def folder_mark(token: str) -> str:
    """Eight digits that are the same on every node of a fleet, and of no other."""
    return hmac.new(token.encode(), FOLDER_PURPOSE, hashlib.sha256).hexdigest()[:8]


def write_token(path: Path, token: str) -> None:
    """Write the token for this user alone, whole or not at all; an AppError when it cannot be."""
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            out.write(token)
        new.replace(path)
    except OSError as error:
        raise AppError(
            Text(f"The token cannot be written: {error}.", f"无法写入令牌：{error}。"),
            Text("Make the folder writable.", "请确保目录可写。"),
        ) from error


def read_token(path: Path) -> str:
    """The token in a file; an AppError when there is none, or when others can read it too."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise AppError(
            Text(
                f"The token file {path} cannot be read: {error.strerror}.",
                f"无法读取令牌文件 {path}：{error.strerror}。",
            ),
            Text(
                "Copy it from the head; `workhorse fleet init` tells there where it lies.",
                "请从主节点复制（`workhorse fleet init` 会显示其位置）到本机。",
            ),
        ) from error
    if stat.S_IMODE(mode) & 0o077:
        raise AppError(
            Text(
                f"Other users of this machine can read the token file {path} "
                f"(mode {stat.S_IMODE(mode):o}): who has it can run programs on every node.",
                f"本机其他用户可以读取令牌文件 {path}（权限 {stat.S_IMODE(mode):o}）："
                "持有令牌者可在每个节点上运行程序。",
            ),
            Text(f"Type: chmod 600 {path}", f"请执行：chmod 600 {path}"),
        )
    token = content.decode("ascii", errors="replace").strip()
    if not TOKEN.fullmatch(token):
        raise AppError(
            Text(
                f"{path} holds no token: one is 32 to 512 letters, digits and marks in one line.",
                f"{path} 中没有令牌：令牌应为一行 32 到 512 个字母、数字或符号。",
            ),
            Text(
                "Copy the file of the head as it is, with scp.",
                "请用 scp 原样复制主节点的令牌文件。",
            ),
        )
    return token
