"""How a command is told which service it asks: address, model, key, certificates."""

import argparse
import os
import ssl
from collections.abc import Iterable
from pathlib import Path

from workhorse.cli.arguments import positive
from workhorse.errors import AppError
from workhorse.text import Language, Text

DEFAULT_URL = "http://127.0.0.1:8080"
KEY_VARIABLE = "WORKHORSE_API_KEY"
ADDRESS = Text(
    f"an OpenAI-compatible service (default {DEFAULT_URL})",
    f"兼容 OpenAI 的服务地址（默认 {DEFAULT_URL}）",
)


def add_url(parser: argparse.ArgumentParser, language: Language) -> None:
    """The address, alone on the line; None where it is left out."""
    parser.add_argument("url", metavar="URL", nargs="?", help=ADDRESS.in_language(language))


def add_counts(
    parser: argparse.ArgumentParser,
    language: Language,
    counts: Iterable[tuple[str, int | None, Text]],
) -> None:
    """Options that take a whole number of at least 1: name, default, what it counts."""
    for option, default, about in counts:
        words = about.in_language(language)
        if default is not None:
            words += Text(f" (default {default})", f"（默认 {default}）").in_language(language)
        parser.add_argument(option, type=positive, default=default, metavar="N", help=words)


def add_access(parser: argparse.ArgumentParser, language: Language) -> None:
    """Which model of the service, and what lets the command in."""
    rows = (
        (
            "--model",
            str,
            "NAME",
            Text("which of several models (default: the first)", "用哪个模型（默认第一个）"),
        ),
        (
            "--api-key-file",
            Path,
            "FILE",
            Text(
                f"a file that holds the service's API key (or set {KEY_VARIABLE})",
                f"保存服务 API 密钥的文件（也可设置环境变量 {KEY_VARIABLE}）",
            ),
        ),
        (
            "--ca-file",
            Path,
            "FILE",
            Text(
                "certificates to trust besides the system's (PEM), for https",
                "除系统证书外还信任的证书（PEM），用于 https",
            ),
        ),
    )
    for option, kind, metavar, about in rows:
        words = about.in_language(language)
        parser.add_argument(option, type=kind, metavar=metavar, help=words)


def authorities(path: Path | None) -> ssl.SSLContext | None:
    """What to trust for https; an `AppError` for a file without certificates."""
    if path is None:
        return None
    context = ssl.create_default_context()
    try:
        context.load_verify_locations(cafile=path)
    except (OSError, ssl.SSLError) as error:
        raise AppError(
            Text(
                f"{path} cannot be read as certificates: {error}.",
                f"无法从 {path} 读取证书：{error}。",
            ),
            Text("Give a PEM file.", "请指定 PEM 文件。"),
        ) from error
    return context


def api_key(path: Path | None) -> str | None:
    """The key from the file, else from the environment; an `AppError` for a file without one."""
    if path is None:
        return os.environ.get(KEY_VARIABLE) or None
    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise AppError(
            Text(f"The key file cannot be read: {error}.", f"无法读取密钥文件：{error}。"),
            Text("Give a file that holds the key alone.", "请指定只含密钥的文件。"),
        ) from error
    if not key or not key.isascii() or not key.isprintable():
        raise AppError(
            Text(f"{path} does not hold one API key.", f"{path} 中不是一个 API 密钥。"),
            Text("Write the key on one line, alone.", "请把密钥单独写在一行里。"),
        )
    return key
