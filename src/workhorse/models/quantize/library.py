"""llama.cpp's C interface in the embedded engine's package, as far as quantising needs it.

Loaded in a child process alone (`child.py`): a fault in it must not take the command along.

The structures follow include/llama.h and ggml/include/ggml.h; the package ships no headers, so
`load` compares every place that is used with the defaults that the library itself fills in, and
refuses a library that lays them out otherwise.
"""

import ctypes
from ctypes import POINTER, c_bool, c_char_p, c_float, c_int32, c_int64, c_size_t, c_void_p
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

F16 = 1  # GGML_TYPE_F16
LOAD_MODE_MMAP = 1  # LLAMA_LOAD_MODE_MMAP
FLASH_ATTENTION_OFF = 0  # LLAMA_FLASH_ATTN_TYPE_DISABLED
MAX_SOURCES = 10  # GGML_MAX_SRC
Fields = list[tuple[str, Any]]


class LibraryUnknown(Exception):
    """The library is another one than this module knows how to call."""


class ModelParams(ctypes.Structure):
    """`llama_model_params` up to the flags, and room for more than any version has."""

    _fields_: ClassVar[Fields] = [
        ("devices", c_void_p),
        ("tensor_buft_overrides", c_void_p),
        ("n_gpu_layers", c_int32),
        ("split_mode", c_int32),
        ("load_mode", c_int32),
        ("lazy_mode", c_int32),
        ("rest", ctypes.c_ubyte * 480),
    ]


class ContextParams(ctypes.Structure):
    """`llama_context_params`, and room for more."""

    _fields_: ClassVar[Fields] = [
        ("n_ctx", c_int32),
        ("n_batch", c_int32),
        ("n_ubatch", c_int32),
        ("n_seq_max", c_int32),
        ("n_rs_seq", c_int32),
        ("n_outputs_max", c_int32),
        ("n_outputs_max_per_seq", c_int32),
        ("n_threads", c_int32),
        ("n_threads_batch", c_int32),
        ("ctx_type", c_int32),
        ("rope_scaling_type", c_int32),
        ("pooling_type", c_int32),
        ("attention_type", c_int32),
        ("flash_attn_type", c_int32),
        ("rope_and_yarn", c_float * 8),
        ("cb_eval", c_void_p),
        ("cb_eval_user_data", c_void_p),
        ("type_k", c_int32),
        ("type_v", c_int32),
        ("rest", ctypes.c_ubyte * 400),
    ]


class Batch(ctypes.Structure):
    """`llama_batch`."""

    _fields_: ClassVar[Fields] = [
        ("n_tokens", c_int32),
        ("token", POINTER(c_int32)),
        ("embd", c_void_p),
        ("pos", POINTER(c_int32)),
        ("n_seq_id", POINTER(c_int32)),
        ("seq_id", POINTER(POINTER(c_int32))),
        ("logits", POINTER(ctypes.c_int8)),
    ]


class GgmlTensor(ctypes.Structure):
    """`ggml_tensor`."""

    _fields_: ClassVar[Fields] = [
        ("type", c_int32),
        ("buffer", c_void_p),
        ("ne", c_int64 * 4),
        ("nb", c_size_t * 4),
        ("op", c_int32),
        ("op_params", c_int32 * 16),
        ("flags", c_int32),
        ("src", c_void_p * MAX_SOURCES),
        ("view_src", c_void_p),
        ("view_offs", c_size_t),
        ("data", c_void_p),
        ("name", ctypes.c_char * 64),
        ("extra", c_void_p),
        ("padding", ctypes.c_char * 8),
    ]


class GgufInit(ctypes.Structure):
    """`gguf_init_params`."""

    _fields_: ClassVar[Fields] = [("no_alloc", c_bool), ("ctx", POINTER(c_void_p))]


GGML_OBJECT_BYTES = 32  # in front of every tensor, ggml/src/ggml.c
# (tensor, is it only asked whether it is wanted, ours) -> wanted, or go on
EvalCallback = ctypes.CFUNCTYPE(c_bool, POINTER(GgmlTensor), c_bool, c_void_p)
LogCallback = ctypes.CFUNCTYPE(None, c_int32, c_char_p, c_void_p)

_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "ggml_op_name": (c_char_p, [c_int32]),
    "ggml_tensor_overhead": (c_size_t, []),
    "ggml_get_tensor": (c_void_p, [c_void_p, c_char_p]),
    "ggml_free": (None, [c_void_p]),
    "ggml_quantize_chunk": (
        c_size_t,
        [c_int32, c_void_p, c_void_p, c_int64, c_int64, c_int64, c_void_p],
    ),
    "ggml_validate_row_data": (c_bool, [c_int32, c_void_p, c_size_t]),
    "gguf_init_from_file": (c_void_p, [c_char_p, GgufInit]),
    "gguf_init_empty": (c_void_p, []),
    "gguf_free": (None, [c_void_p]),
    "gguf_set_kv": (None, [c_void_p, c_void_p]),
    "gguf_set_val_u32": (None, [c_void_p, c_char_p, ctypes.c_uint32]),
    "gguf_set_val_i32": (None, [c_void_p, c_char_p, c_int32]),
    "gguf_set_val_str": (None, [c_void_p, c_char_p, c_char_p]),
    "gguf_remove_key": (c_int64, [c_void_p, c_char_p]),
    "gguf_add_tensor": (None, [c_void_p, c_void_p]),
    "gguf_set_tensor_type": (None, [c_void_p, c_char_p, c_int32]),
    "gguf_find_tensor": (c_int64, [c_void_p, c_char_p]),
    "gguf_get_tensor_offset": (c_size_t, [c_void_p, c_int64]),
    "gguf_get_tensor_size": (c_size_t, [c_void_p, c_int64]),
    "gguf_get_meta_size": (c_size_t, [c_void_p]),
    "gguf_get_meta_data": (None, [c_void_p, c_void_p]),
    "llama_backend_init": (None, []),
    "llama_context_default_params": (ContextParams, []),
    "llama_model_default_params": (ModelParams, []),
    "llama_log_set": (None, [LogCallback, c_void_p]),
    "llama_model_load_from_file": (c_void_p, [c_char_p, ModelParams]),
    "llama_model_free": (None, [c_void_p]),
    "llama_init_from_model": (c_void_p, [c_void_p, ContextParams]),
    "llama_free": (None, [c_void_p]),
    "llama_model_get_vocab": (c_void_p, [c_void_p]),
    "llama_model_has_encoder": (c_bool, [c_void_p]),
    "llama_vocab_n_tokens": (c_int32, [c_void_p]),
    "llama_vocab_get_add_bos": (c_bool, [c_void_p]),
    "llama_vocab_bos": (c_int32, [c_void_p]),
    "llama_tokenize": (
        c_int32,
        [c_void_p, c_char_p, c_int32, POINTER(c_int32), c_int32, c_bool, c_bool],
    ),
    "llama_batch_init": (Batch, [c_int32, c_int32, c_int32]),
    "llama_batch_free": (None, [Batch]),
    "llama_decode": (c_int32, [c_void_p, Batch]),
    "llama_get_logits": (POINTER(c_float), [c_void_p]),
    "llama_get_memory": (c_void_p, [c_void_p]),
    "llama_memory_clear": (None, [c_void_p, c_bool]),
    "llama_version": (c_char_p, []),
}


def load(path: Path | None = None) -> ctypes.CDLL:
    """The library, its functions declared; LibraryUnknown when it is not laid out as known."""
    if path is None:
        spec = find_spec("xllamacpp")
        folder = Path(spec.origin).parent if spec and spec.origin else None
        found = sorted(folder.glob("xllamacpp*.so")) if folder else []
        if not found:
            raise LibraryUnknown("the package xllamacpp is not installed")
        path = found[0]
    library = ctypes.CDLL(str(path))
    for name, (result, arguments) in _SIGNATURES.items():
        try:
            function = getattr(library, name)
        except AttributeError as error:
            raise LibraryUnknown(f"{path.name} has no {name}") from error
        function.restype, function.argtypes = result, arguments
    _check_layout(library)
    return library


def _check_layout(library: ctypes.CDLL) -> None:
    """Every default that is known to be something else than zero, in its place."""
    context: ContextParams = library.llama_context_default_params()
    model: ModelParams = library.llama_model_default_params()
    seen = {
        "n_ctx": (context.n_ctx, 512),
        "n_batch": (context.n_batch, 2048),
        "n_ubatch": (context.n_ubatch, 512),
        "n_threads": (context.n_threads, context.n_threads_batch),
        "attention_type": (context.attention_type, -1),
        "flash_attn_type": (context.flash_attn_type, -1),
        "defrag_thold": (context.rope_and_yarn[7], -1.0),
        "cb_eval": (context.cb_eval, None),
        "type_k": (context.type_k, F16),
        "type_v": (context.type_v, F16),
        "n_gpu_layers": (model.n_gpu_layers, -1),
        "split_mode": (model.split_mode, 1),
        "load_mode": (model.load_mode, -1),
        "ggml_tensor": (
            library.ggml_tensor_overhead(),
            GGML_OBJECT_BYTES + ctypes.sizeof(GgmlTensor),
        ),
    }
    wrong = [name for name, (found, known) in seen.items() if found != known]
    if wrong:
        version = library.llama_version().decode(errors="replace")
        raise LibraryUnknown(f"version {version} lays out {', '.join(wrong)} otherwise")


class LoadedModel:
    """A model on the CPU and a context of `n_tokens`; `evaluate` hears of every operation."""

    def __init__(
        self,
        library: ctypes.CDLL,
        path: str,
        n_tokens: int,
        threads: int,
        evaluate: Any = None,
    ) -> None:
        self._library = library
        self._evaluate = evaluate  # the library keeps a bare pointer to it
        params: ModelParams = library.llama_model_default_params()
        params.n_gpu_layers, params.load_mode = 0, LOAD_MODE_MMAP
        self._model = library.llama_model_load_from_file(path.encode(), params)
        if not self._model:
            raise RuntimeError(f"{path} cannot be loaded")
        if library.llama_model_has_encoder(self._model):
            raise RuntimeError(f"{path} is an encoder and no model that writes")
        settings: ContextParams = library.llama_context_default_params()
        settings.n_ctx = settings.n_batch = settings.n_ubatch = n_tokens
        settings.n_threads = settings.n_threads_batch = threads
        settings.flash_attn_type = FLASH_ATTENTION_OFF
        if evaluate is not None:
            settings.cb_eval = ctypes.cast(evaluate, c_void_p).value
        self._context = library.llama_init_from_model(self._model, settings)
        if not self._context:
            raise RuntimeError(f"{path}: no context of {n_tokens} tokens can be had")
        self._vocab = library.llama_model_get_vocab(self._model)
        self.vocabulary: int = library.llama_vocab_n_tokens(self._vocab)
        self._batch: Batch = library.llama_batch_init(n_tokens, 0, 1)

    def first_token(self) -> int | None:
        """The token that every text begins with; None when the model wants none."""
        if not self._library.llama_vocab_get_add_bos(self._vocab):
            return None
        return int(self._library.llama_vocab_bos(self._vocab))

    def tokens(self, text: str) -> NDArray[np.int32]:
        """The text as tokens, special ones in it taken as plain text."""
        raw = text.encode()
        found = np.empty(len(raw) + 8, np.int32)
        place = found.ctypes.data_as(POINTER(c_int32))
        count = self._library.llama_tokenize(
            self._vocab, raw, len(raw), place, len(found), True, False
        )
        if count < 0:
            raise RuntimeError("the text cannot be split into tokens")
        return found[:count]

    def forget(self) -> None:
        """Drop what was computed of earlier tokens."""
        self._library.llama_memory_clear(self._library.llama_get_memory(self._context), True)

    def decode(
        self, tokens: NDArray[np.int32], first_wanted: int, position: int = 0
    ) -> NDArray[np.float32]:
        """The logits of the tokens from `first_wanted` on: a row each, a view until the next call.

        RuntimeError when the engine cannot compute them.
        """
        batch = self._batch
        batch.n_tokens = len(tokens)
        for place, token in enumerate(tokens.tolist()):
            batch.token[place], batch.pos[place] = token, position + place
            batch.n_seq_id[place], batch.seq_id[place][0] = 1, 0
            batch.logits[place] = place >= first_wanted
        if code := self._library.llama_decode(self._context, batch):
            raise RuntimeError(f"the engine stopped computing (code {code})")
        rows = len(tokens) - first_wanted
        logits = self._library.llama_get_logits(self._context)
        return np.ctypeslib.as_array(logits, (rows, self.vocabulary))

    def close(self) -> None:
        """Give the memory back."""
        self._library.llama_batch_free(self._batch)
        self._library.llama_free(self._context)
        self._library.llama_model_free(self._model)
