"""Where the tensors of a PyTorch file lie, asked of PyTorch itself in a process of its own.

PyTorch maps the file and unpickles with `weights_only`: names and shapes, no code, no weights
read. The weights are then read from the file as any other's are. Run as a module it is that
process: it prints one JSON document.
"""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from workhorse.errors import AppError
from workhorse.models.refusals import shown
from workhorse.text import Text

# Earlier `weights_only` can be led to run code (CVE-2025-32434; 2026-11).
TORCH_LEAST = (2, 6)
LOAD_TIMEOUT_S = 600
Entry = tuple[str, str, tuple[int, ...], int, int]  # name, type, shape, offset, bytes
# PyTorch's names and the safetensors format's (safetensors/torch.py `_TYPES`, 0.8, 2026-11).
DTYPES = {
    "bfloat16": "BF16", "float16": "F16", "float32": "F32", "float64": "F64", "int64": "I64",
    "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip


class _Answer(msgspec.Struct):
    tensors: list[Entry] = msgspec.field(default_factory=list)
    refused: str | None = None


def read_torch_bins(paths: Sequence[Path]) -> list[list[Entry]]:
    """Name, safetensors type, shape, offset and bytes of each tensor of some PyTorch files.

    Raises AppError: PyTorch is not here or too old, or it refuses one of the files.
    """
    if importlib.util.find_spec("torch") is None:
        raise _no_torch(paths[0])
    # -P: a torch.py in the current folder, which may be the model's, is not run.
    command = [sys.executable, "-P", "-m", __name__, *map(str, paths)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=LOAD_TIMEOUT_S, check=False)
        answers = msgspec.json.decode(done.stdout, type=list[_Answer])
    except subprocess.TimeoutExpired as error:
        raise _refused(paths[0], f"no answer in {LOAD_TIMEOUT_S} s") from error
    except msgspec.MsgspecError as error:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise _refused(paths[0], last or f"exit code {done.returncode}") from error
    for path, answer in zip(paths, answers, strict=True):
        size_bytes = path.stat().st_size
        if answer.refused is not None:
            raise _refused(path, answer.refused)
        if any(at < 0 or at + n_bytes > size_bytes for _, _, _, at, n_bytes in answer.tensors):
            raise _refused(path, "a tensor lies outside the file")
    return [answer.tensors for answer in answers]


def _no_torch(path: Path) -> AppError:
    return AppError(
        Text(
            f"{shown(str(path))} is a PyTorch file, and PyTorch is not installed here.",
            f"{shown(str(path))} 是 PyTorch 文件，而本环境未安装 PyTorch。",
        ),
        Text(
            "Take the model's safetensors files where it has them; else: "
            f"{sys.executable} -m pip install 'torch>=2.6'",
            "若模型提供 safetensors 文件请优先使用；否则请运行："
            f"{sys.executable} -m pip install 'torch>=2.6'",
        ),
    )


def _refused(path: Path, why: str) -> AppError:
    why = shown(why.strip().splitlines()[0][:300]) if why.strip() else "—"
    return AppError(
        Text(
            f"PyTorch does not load {shown(str(path))} as weights alone: {why}. Nothing in it was "
            "run.",
            f"PyTorch 拒绝将 {shown(str(path))} 作为纯权重加载：{why}。其中的代码均未执行。",
        ),
        Text(
            "Take the model's safetensors files, or download the file again.",
            "请改用该模型的 safetensors 文件，或重新下载该文件。",
        ),
    )


def _places(path: Path) -> list[tuple[int, int, int]]:
    """Start, end and offset in the file of each of its mappings in this process."""
    inode = str(path.stat().st_ino)
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, offset, _, owner, *_ = line.split(maxsplit=5)
        if owner == inode:
            first, last = (int(end, 16) for end in span.split("-"))
            found.append((first, last, int(offset, 16)))
    return found


def _located(path: Path, loaded: dict[Any, Any]) -> list[Entry]:
    """The entry of each tensor; ValueError for what is no plain tensor."""
    places = _places(path)
    entries: list[Entry] = []
    for name, tensor in loaded.items():
        dtype = DTYPES.get(str(getattr(tensor, "dtype", "")).removeprefix("torch."))
        if not isinstance(name, str) or dtype is None:
            raise ValueError(f"“{name}” is a {type(tensor).__name__}, no tensor of a known type")
        if not tensor.is_contiguous():
            raise ValueError(f"“{name}” is a view that is not contiguous")
        address, n_bytes = tensor.data_ptr(), tensor.numel() * tensor.element_size()
        inside = [at - first + address for first, last, at in places if first <= address < last]
        if n_bytes and not inside:
            raise ValueError(f"“{name}” is not in the file")
        entries.append((name, dtype, tuple(tensor.shape), inside[0] if n_bytes else 0, n_bytes))
    return entries


def _answer(path: Path) -> dict[str, object]:
    import torch

    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < TORCH_LEAST:
        return {"refused": f"PyTorch {torch.__version__} is older than 2.6, which loads safely"}
    try:
        loaded = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        if not isinstance(loaded, dict):
            return {"refused": f"it holds a {type(loaded).__name__}, no table of tensors"}
        return {"tensors": _located(path, loaded)}
    except Exception as error:  # noqa: BLE001 - whatever a hostile file makes PyTorch raise
        return {"refused": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    sys.stdout.write(json.dumps([_answer(Path(word).resolve()) for word in sys.argv[1:]]))
