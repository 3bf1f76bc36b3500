"""Reads a checkpoint as its makers publish it: config.json, and safetensors when they are there."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event, Lock

import msgspec

from workhorse.errors import AppError
from workhorse.knowledge.quant_mixes import QuantMix, quant_mixes
from workhorse.models.config_json import CONFIG_BYTES_MAX, Config, gguf_values, read_config
from workhorse.models.config_shapes import tensors_of_config
from workhorse.models.converted import Conversion
from workhorse.models.cursor import TEXT_BYTES_MAX
from workhorse.models.folders import Folder
from workhorse.models.gguf import describe
from workhorse.models.header import Header, Value
from workhorse.models.hub import no_such_file
from workhorse.models.refusals import shown
from workhorse.models.safetensors import (
    INDEX,
    INDEX_BYTES_MAX,
    header_text,
    missing_shards,
    parse_header,
    shard_names,
)
from workhorse.plan.quant_mix import ALIGNMENT_BYTES, Shape, find_mix, requantised
from workhorse.records import Model
from workhorse.text import Text
from workhorse.units import KIB

USUAL_QUANT = "Q4_K_M"
PIECE_BYTES = 256 * KIB  # a shard's header has 20 to 100 kB
PARALLEL = 8  # DeepSeek V3 has 163 shards, two requests each
TEMPLATE_BYTES_MAX = 4 * TEXT_BYTES_MAX  # tokenizer_config.json may list all added tokens
# The header of SmolLM2's GGUF file has 36 bytes a token with its merges, that of a synthetic one
# of 150,000 tokens 39 (measured 2026-11); longer tokens take more.
HEADER_BYTES_A_TOKEN = 45
# llama-quantize's own choice is met to the type (see the tests), and the published bits of Llama
# 3.1 8B within 0.2 %. The band is for publishers' own mixes under the same name and for rows that
# a converter leaves out; nobody has measured it.
KNOWN_ERROR_SHARE = 0.06
UNKNOWN_ERROR_SHARE = 0.15


def read_checkpoint(folder: Folder, file: str | None, quant: str | None) -> Model:
    """The Model that the checkpoint in `folder` would be as a GGUF file of type `quant`.

    `file` is what the user named: a safetensors file, an index, config.json, or None. Without
    safetensors the shapes come from config.json. Raises AppError.
    """
    mix = _mix(quant)
    config_name = file if _is_config(file) else "config.json"
    raw = folder.document(config_name or "config.json", CONFIG_BYTES_MAX)
    if raw is None:
        raise _no_config(folder, file)
    config = read_config(raw, folder.name_of(config_name or "config.json"))
    shards = shards_of(folder, file)
    conversion = Conversion(config)
    if shards:
        _read_shards(folder, shards, conversion)
    else:
        conversion.add(tensors_of_config(config))
    model = _described(folder, config, conversion, mix)
    share = UNKNOWN_ERROR_SHARE if config.kind is None or conversion.unknown else KNOWN_ERROR_SHARE
    return replace(
        model,
        path=folder.name_of(file) if file and file.endswith(".safetensors") else folder.label,
        format="safetensors",
        size_error_share=share,
    )


def _described(folder: Folder, config: Config, conversion: Conversion, mix: QuantMix) -> Model:
    tensors = conversion.tensors()
    values: dict[str, Value] = gguf_values(config, conversion.layers)
    arch = values["general.architecture"]
    values["general.name"] = folder.label.rstrip("/").rpartition("/")[2] or folder.label
    if "modules.json" in folder.listing():  # of sentence-transformers: it answers with embeddings
        values[f"{arch}.pooling_type"] = 1
    template = _chat_template(folder)
    if template is not None:
        values["tokenizer.chat_template"] = template
    heads = config.count("num_attention_heads", "n_head") or 1
    kv_heads = values.get(f"{arch}.attention.head_count_kv", heads)
    shape = Shape(
        layers=conversion.layers,
        experts=config.count("num_local_experts", "num_experts", "n_routed_experts") or 0,
        heads=heads,
        kv_heads=_most(kv_heads),
        architecture=str(arch),
    )
    tokens = config.count("vocab_size") or 0
    data_offset = -(-tokens * HEADER_BYTES_A_TOKEN // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    made = [
        replace(tensor, offset_bytes=data_offset + tensor.offset_bytes)
        for tensor in requantised(tensors, mix, shape)
    ]
    end = made[-1].offset_bytes + made[-1].n_bytes
    size_bytes = -(-end // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    header = Header(config.name, size_bytes, 3, values, tuple(made), data_offset)
    return describe([header], Path(str(values["general.name"])))


def _most(value: Value) -> int:
    """The most KV heads that a layer has, from one number or one a layer."""
    numbers = value if isinstance(value, tuple) else (value,)
    return max((int(number) for number in numbers if isinstance(number, int)), default=1)


def _mix(quant: str | None) -> QuantMix:
    mix = find_mix(quant or USUAL_QUANT)
    if mix is None:
        known = ", ".join(quant_mixes())
        raise AppError(
            Text(
                f"“{shown(quant or '')}” is no quantisation that sizes are known of.",
                f"“{shown(quant or '')}”不是已知大小规则的量化类型。",
            ),
            Text(f"Take one of {known}.", f"请从中选择：{known}。"),
        )
    return mix


def _is_config(file: str | None) -> bool:
    return file is not None and file.endswith(".json") and not file.endswith(".index.json")


def read_shape(folder: Folder, quant: str) -> Model:
    """The Model of a checkpoint by its config.json alone, its weights reckoned as `quant`.

    For engines that compute with the checkpoint itself: how its weights are packed does not
    matter to the shape. Raises AppError.
    """
    raw = folder.document("config.json", CONFIG_BYTES_MAX)
    if raw is None:
        raise _no_config(folder, None)
    config = read_config(_unpacked(raw), folder.name_of("config.json"))
    conversion = Conversion(config)
    conversion.add(tensors_of_config(config))
    model = _described(folder, config, conversion, _mix(quant))
    share = UNKNOWN_ERROR_SHARE if config.kind is None else KNOWN_ERROR_SHARE
    return replace(model, path=folder.label, format="safetensors", size_error_share=share)


def _unpacked(raw: bytes) -> bytes:
    """The config without a word of how the weights are packed; as it is when it is no object."""
    try:
        values = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return raw
    for key in ("quantization_config", "compression_config"):
        values.pop(key, None)
    return msgspec.json.encode(values)


def shards_of(folder: Folder, file: str | None) -> list[str]:
    """The safetensors files of the checkpoint; [] when it has none."""
    if file is not None and file.endswith(".safetensors") and "-of-" not in file:
        return [file]
    index_name = file if file is not None and file.endswith(".index.json") else INDEX
    index = folder.document(index_name, INDEX_BYTES_MAX)
    if index is not None:
        shards = shard_names(index, folder.name_of(index_name))
        listing = folder.listing()
        if listing and any(shard not in listing for shard in shards):
            raise missing_shards(folder.label, shards, list(listing))
        return shards
    listing = folder.listing()
    if not listing and file is None:
        return ["model.safetensors"]
    found = [name for name in listing if name.endswith(".safetensors") and "/" not in name]
    if len(found) > 1 and "model.safetensors" in found:
        return ["model.safetensors"]
    return sorted(found)


def _read_shards(folder: Folder, shards: list[str], conversion: Conversion) -> None:
    """Fetch the headers side by side, but parse one at a time: hostile ones would add up."""
    one_at_a_time = Lock()
    given_up = Event()  # each error holds on to what was being read: one of them is enough

    def read(shard: str) -> None:
        if given_up.is_set():
            return
        read_at, size_bytes = folder.opened(shard, PIECE_BYTES)
        name = folder.name_of(shard)
        text = header_text(read_at, size_bytes, name=name)
        del read_at  # and the piece that it holds: eight of them wait for their turn
        with one_at_a_time:
            if given_up.is_set():
                return
            try:
                conversion.add(parse_header(text, size_bytes, name=name))
            except AppError:
                given_up.set()
                raise

    with ThreadPoolExecutor(PARALLEL) as pool:
        tasks = [pool.submit(read, shard) for shard in shards]
        try:
            for task in tasks:
                task.result()
        finally:
            pool.shutdown(cancel_futures=True)


class _Tokenizer(msgspec.Struct):
    chat_template: str | list[dict[str, str]] | None = None


def _chat_template(folder: Folder) -> str | None:
    """The chat template, from its own file or from the tokenizer's settings."""
    listing = folder.listing()
    if not listing:
        return None
    raw = folder.document("chat_template.jinja", TEXT_BYTES_MAX)
    if raw is not None:
        return raw.decode("utf-8", errors="replace")
    raw = folder.document("tokenizer_config.json", TEMPLATE_BYTES_MAX)
    try:
        found = msgspec.json.decode(raw or b"{}", type=_Tokenizer).chat_template
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None  # a doubt about the template must not keep us from planning
    if isinstance(found, list):
        found = next((entry.get("template") for entry in found), None)
    return found


def _no_config(folder: Folder, file: str | None) -> AppError:
    names = list(folder.listing())
    if file is not None and file not in names and names:
        return no_such_file(folder.label, file, names)
    held = ", ".join(shown(name) for name in names[:5]) or "—"
    return AppError(
        Text(
            f"{folder.label} has neither a GGUF file nor a config.json (it has {held}).",
            f"{folder.label} 中既没有 GGUF 文件，也没有 config.json（现有 {held}）。",
        ),
        Text(
            "Name a repository or a directory of a language model.",
            "请指定一个语言模型的仓库或目录。",
        ),
    )
