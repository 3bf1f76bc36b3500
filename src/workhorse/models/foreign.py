"""Says what a file that is not GGUF looks like instead, from its first bytes."""

from workhorse.errors import AppError
from workhorse.models.refusals import shown
from workhorse.text import Text

HEAD_BYTES = 64  # enough for every signature below

CONVERT = Text(
    "Convert the model to GGUF first, or take a GGUF file of the same model.",
    "请先将模型转换为 GGUF，或改用同一模型的 GGUF 文件。",
)
UNPACK = Text("Unpack it and give the .gguf file inside.", "请解压，并指定其中的 .gguf 文件。")
WEB = Text(
    "Open the address in a browser: it may want a login, or point to a page about the file.",
    "请用浏览器打开该地址：它可能需要登录，或指向的是介绍页面而非文件本身。",
)

# (first bytes, what that is, what to do). Signatures from the formats' own documents, 2026-11.
SIGNATURES: tuple[tuple[bytes, Text, Text], ...] = (
    (
        b"version https://git-lfs",
        Text("a Git LFS pointer, not the model itself", "Git LFS 指针，并非模型本身"),
        Text("Run `git lfs pull` in its repository.", "请在其仓库中运行 `git lfs pull`。"),
    ),
    (
        b"PK\x03\x04",
        Text(
            "a zip archive: a PyTorch checkpoint or a wheel", "zip 压缩包（PyTorch 权重或 wheel）"
        ),
        CONVERT,
    ),
    (b"\x80\x02", Text("a Python pickle: an old PyTorch checkpoint", "旧版 PyTorch 权重"), CONVERT),
    (b"\x89HDF\r\n", Text("an HDF5 file: a Keras model", "HDF5 文件（Keras 模型）"), CONVERT),
    (b"lmgg", Text("a GGML file of 2023", "2023 年的 GGML 旧格式"), CONVERT),
    (b"fmgg", Text("a GGMF file of 2023", "2023 年的 GGMF 旧格式"), CONVERT),
    (b"tjgg", Text("a GGJT file of 2023", "2023 年的 GGJT 旧格式"), CONVERT),
    (b"\x1f\x8b", Text("a gzip archive", "gzip 压缩文件"), UNPACK),
    (b"\xfd7zXZ", Text("an xz archive", "xz 压缩文件"), UNPACK),
    (b"\x28\xb5\x2f\xfd", Text("a zstd archive", "zstd 压缩文件"), UNPACK),
    (b"7z\xbc\xaf", Text("a 7-Zip archive", "7-Zip 压缩文件"), UNPACK),
    (
        b"\x7fELF",
        Text("a program, not a model", "可执行程序，不是模型"),
        Text("Give the path of the model.", "请指定模型文件的路径。"),
    ),
)


def foreign(name: str, head: bytes, size_bytes: int) -> AppError:
    """The error for a file that does not begin with `GGUF`; `head` is its first bytes."""
    looks, step = _guess(head, size_bytes)
    return AppError(
        Text(
            f"{shown(name)} is not a GGUF model: it looks like {looks.en}.",
            f"{shown(name)} 不是 GGUF 模型：看起来是{looks.zh}。",
        ),
        step,
    )


def _guess(head: bytes, size_bytes: int) -> tuple[Text, Text]:
    if not size_bytes:
        return Text("an empty file", "空文件"), WEB
    for signature, looks, step in SIGNATURES:
        if head.startswith(signature):
            return looks, step
    # safetensors: the length of a JSON header, eight bytes, then the JSON itself.
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= size_bytes:
        return Text("a safetensors file", "safetensors 文件"), CONVERT
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if start.startswith((b"<!doctype", b"<html", b"<?xml", b"<head")):
        return Text("a web page", "网页"), WEB
    if start.startswith((b"{", b"[")):
        return Text("a JSON document, such as a server's error message", "JSON 文档"), WEB
    if not head.strip(b"\0"):
        return (
            Text("zeros, as an unfinished download has them", "全零内容（下载未完成）"),
            Text("Download it again.", "请重新下载。"),
        )
    return (
        Text(
            f"something unknown (first bytes {head[:8].hex(' ')})",
            f"未知格式（开头字节 {head[:8].hex(' ')}）",
        ),
        Text("Give the path of a .gguf file.", "请指定一个 .gguf 文件。"),
    )
