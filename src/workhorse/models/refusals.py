"""The errors of reading a model file: what is wrong with it, and one thing to do."""

from workhorse.errors import AppError
from workhorse.text import Text

AGAIN = Text(
    "Download the file again and compare its checksum with the publisher's.",
    "请重新下载该文件，并与发布者给出的校验值核对。",
)


def shown(text: str) -> str:
    """Text from a file, safe to print: a hostile name must not move the reader's cursor."""
    return "".join(letter if letter.isprintable() else "�" for letter in text)


def damaged(name: str, english: str, chinese: str) -> AppError:
    """The header contradicts itself or the format."""
    return AppError(
        Text(
            f"The header of {shown(name)} is damaged: {english}.",
            f"{shown(name)} 的文件头已损坏：{chinese}。",
        ),
        AGAIN,
    )


def truncated(name: str, english: str, chinese: str) -> AppError:
    """The file ends before what its header promises."""
    return AppError(
        Text(
            f"{shown(name)} is incomplete: {english}.",
            f"{shown(name)} 不完整：{chinese}。",
        ),
        Text(
            "Download it again: the download or the copy was cut off.",
            "请重新下载：上次下载或复制中断了。",
        ),
    )


def unsupported(name: str, english: str, chinese: str, next_step: Text) -> AppError:
    """The file may be in order, but no engine here can run it."""
    return AppError(
        Text(f"{shown(name)} cannot be used: {english}.", f"{shown(name)} 无法使用：{chinese}。"),
        next_step,
    )
