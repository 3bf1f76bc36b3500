"""The weights of a checkpoint as its own files hold them: for engines that compute with those."""

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from workhorse.errors import AppError
from workhorse.models.checkpoint import PIECE_BYTES, read_shape, shards_of
from workhorse.models.config_json import CONFIG_BYTES_MAX
from workhorse.models.folders import opened_folder
from workhorse.models.refusals import damaged, shown
from workhorse.models.safetensors import read_safetensors
from workhorse.models.sources import LocalSource
from workhorse.records import Dtype, Model, Stored
from workhorse.text import Text

FLOATS: dict[str, Dtype] = {"F16": "float16", "BF16": "bfloat16", "F32": "float32"}
# What a packed checkpoint is reckoned as for the speed of reading it, by bits a weight.
_RECKONED = {4: "Q4_K_M", 8: "Q8_0"}


class _Quantisation(msgspec.Struct):
    quant_method: str | None = None
    bits: int | None = None
    w_bit: int | None = None


class _Config(msgspec.Struct):
    architectures: list[str] | None = None
    quantization_config: _Quantisation | None = None


def read_stored(folder_path: Path, environment: Mapping[str, str] | None = None) -> Stored:
    """What the checkpoint in a folder of this machine holds, from headers alone.

    Raises AppError for a folder that is no checkpoint or whose files are damaged.
    """
    source = LocalSource(folder_path)
    with opened_folder(source, os.environ if environment is None else environment) as (folder, _):
        name = folder.name_of("config.json")
        raw = folder.document("config.json", CONFIG_BYTES_MAX)
        try:
            config = msgspec.json.decode(raw or b"{}", type=_Config)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise damaged(name, f"it is no config ({error})", f"不是配置文件（{error}）") from error
        shards = shards_of(folder, None)
        if not shards:
            raise _no_weights(folder.label)
        n_bytes: dict[str, int] = {}
        for shard in shards:
            read_at, size_bytes = folder.opened(shard, PIECE_BYTES)
            for tensor in read_safetensors(read_at, size_bytes, name=folder.name_of(shard)):
                n_bytes[tensor.dtype] = n_bytes.get(tensor.dtype, 0) + tensor.n_bytes
    packed = config.quantization_config
    method = None if packed is None else packed.quant_method or "unknown"
    bits = (
        None if packed is None else packed.bits or packed.w_bit or (8 if method == "fp8" else None)
    )
    floats = [kind for kind in sorted(n_bytes, key=lambda k: -n_bytes[k]) if kind in FLOATS]
    return Stored(
        folder=str(folder_path.absolute()),
        n_bytes=tuple(sorted(n_bytes.items())),
        dtype=FLOATS[floats[0]] if floats else None,
        method=method,
        bits=bits,
        classes=tuple(word[:128] for word in (config.architectures or ())[:8]),
    )


def stored_shape(stored: Stored) -> Model:
    """The Model of a stored checkpoint, its weights reckoned by their bits."""
    quant = "F16" if stored.method is None else _RECKONED.get(stored.bits or 4, "Q8_0")
    with opened_folder(LocalSource(Path(stored.folder)), os.environ) as (folder, _):
        return read_shape(folder, quant)


def _no_weights(label: str) -> AppError:
    return AppError(
        Text(
            f"{shown(label)} has a config and no weights.", f"{shown(label)} 只有配置，没有权重。"
        ),
        Text("Put the model's safetensors files into it.", "请将模型的 safetensors 文件放入其中。"),
    )
