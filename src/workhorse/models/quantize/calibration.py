"""The texts that an importance matrix is made from, and that quality is measured on."""

import hashlib
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

from workhorse.errors import EXIT_USAGE, AppError
from workhorse.models.refusals import shown
from workhorse.text import Text
from workhorse.units import MIB, show_bytes

BYTES_MAX = 64 * MIB  # 16 million tokens: weeks on a CPU
CALIBRATION, HELD = "calibration.txt", "held.txt"


@dataclass(frozen=True, slots=True)
class Corpus:
    """One text: where it is, what it is called, and the hash of what it says."""

    path: Path
    name: str
    sha256: str


def shipped(name: str) -> Corpus:
    """One of our own texts; `texts/README.md` beside it says where it comes from."""
    with as_file(files("workhorse.models.quantize").joinpath("texts", name)) as path:
        return _corpus(path, f"workhorse {name}")


def users_text(path: Path) -> Corpus:
    """A text of the user's; AppError when it is missing, empty, far too large or no text."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(4096)
    except OSError as error:
        raise _refused(path, error.strerror or str(error), error.strerror or str(error)) from error
    if not head.strip():
        raise _refused(path, "it is empty", "文件为空")
    if size > BYTES_MAX:
        raise _refused(
            path,
            f"it has {show_bytes(size)}; {show_bytes(BYTES_MAX)} at most are taken",
            f"大小为 {show_bytes(size)}，上限为 {show_bytes(BYTES_MAX)}",
        )
    if b"\0" in head:
        raise _refused(path, "it is no plain text", "不是纯文本")
    return _corpus(path, path.name)


def too_short(corpus: Corpus, tokens: int, needed: int) -> AppError:
    """The text does not fill one chunk."""
    return _refused(
        corpus.path,
        f"it has only {tokens} tokens; {needed} at least are needed",
        f"只有 {tokens} 个词元，至少需要 {needed} 个",
    )


def _corpus(path: Path, name: str) -> Corpus:
    with path.open("rb") as file:
        return Corpus(path, name, hashlib.file_digest(file, "sha256").hexdigest())


def _refused(path: Path, why: str, why_zh: str) -> AppError:
    return AppError(
        Text(
            f"The text {shown(str(path))} cannot be used: {why}.",
            f"无法使用文本 {shown(str(path))}：{why_zh}。",
        ),
        Text(
            "Name a UTF-8 text of some hundred kilobytes of what the model will read, or leave it "
            "out for ours.",
            "请指定数百 KB 的 UTF-8 文本（内容接近模型的实际用途），或省略以使用自带文本。",
        ),
        exit_code=EXIT_USAGE,
    )
