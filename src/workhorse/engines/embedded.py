"""llama.cpp's own HTTP server from the `xllamacpp` package, started like `llama-server`.

Run as a script in a child process. It understands the part of llama-server's command line that
our adapter composes, so one adapter serves both; an unknown setting ends it with usage.
"""

import argparse
import os
import signal
import sys

LOAD_MODES = ("none", "mmap", "mlock")
# ggml_type numbers of the KV types we offer (ggml.h, commit 0c1e570, 2026-10-01).
KV_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "bf16": 30}


def parser() -> argparse.ArgumentParser:
    """The settings understood, by llama-server's names."""
    settings = argparse.ArgumentParser(prog="embedded", allow_abbrev=False)
    settings.add_argument("-m", "--model", required=True)
    settings.add_argument("--alias", required=True)
    settings.add_argument("-mm", "--mmproj", default="")
    settings.add_argument("--no-mmproj-offload", action="store_true")
    settings.add_argument("--host", default="127.0.0.1")
    settings.add_argument("--port", type=int, required=True)
    # Never given as an argument, which every user could read: see `llamacpp.KEY_VARIABLE`.
    settings.add_argument("--api-key", default=os.environ.get("LLAMA_API_KEY", ""))
    settings.add_argument("-c", "--ctx-size", type=int, required=True)
    settings.add_argument("-np", "--parallel", type=int, required=True)
    settings.add_argument("-t", "--threads", type=int, required=True)
    settings.add_argument("-tb", "--threads-batch", type=int, required=True)
    settings.add_argument("-b", "--batch-size", type=int, required=True)
    settings.add_argument("-ub", "--ubatch-size", type=int, required=True)
    settings.add_argument("-lm", "--load-mode", choices=LOAD_MODES, required=True)
    settings.add_argument("-lzm", "--lazy-mode", choices=("on", "auto", "off"), default="auto")
    settings.add_argument("-fa", "--flash-attn", choices=("on", "off"), required=True)
    settings.add_argument("-ctk", "--cache-type-k", choices=KV_TYPES, required=True)
    settings.add_argument("-ctv", "--cache-type-v", choices=KV_TYPES, required=True)
    settings.add_argument("-ngl", "--n-gpu-layers", type=int, required=True)
    settings.add_argument("-fit", "--fit", choices=("on", "off"), required=True)
    settings.add_argument("-cram", "--cache-ram", type=int, required=True)
    settings.add_argument("-ctxcp", "--ctx-checkpoints", type=int)
    settings.add_argument("-kvu", "--kv-unified", action="store_true")
    settings.add_argument("--kv-unified-per-slot", type=int)
    settings.add_argument("-lv", "--verbosity", type=int, required=True)
    settings.add_argument("--cors-origins", default="")
    settings.add_argument("--no-ui", action="store_true")
    settings.add_argument("--slot-save-path", default="")
    settings.add_argument("--no-cache-idle-slots", action="store_true")
    settings.add_argument("-bs", "--backend-sampling", action="store_true")
    settings.add_argument("--slots", action="store_true")
    settings.add_argument("--metrics", action="store_true")
    settings.add_argument("--embeddings", action="store_true")
    settings.add_argument("--reranking", action="store_true")
    return settings


def serve(argv: list[str]) -> int:
    """Load the model and serve until a signal ends the process; 1 when the model cannot load."""
    asked = parser().parse_args(argv)
    import xllamacpp as engine

    params = engine.CommonParams()
    params.model.path, params.model_alias = asked.model, {asked.alias}
    params.mmproj.path, params.mmproj_use_gpu = asked.mmproj, not asked.no_mmproj_offload
    params.hostnames, params.port = [asked.host], asked.port
    params.api_keys = [asked.api_key] if asked.api_key else []
    params.n_ctx, params.n_parallel = asked.ctx_size, asked.parallel
    params.cpuparams.n_threads = asked.threads
    params.cpuparams_batch.n_threads = asked.threads_batch
    params.n_batch, params.n_ubatch = asked.batch_size, asked.ubatch_size
    params.load_mode = engine.llama_load_mode[f"LLAMA_LOAD_MODE_{asked.load_mode.upper()}"]
    params.lazy_mode = engine.llama_lazy_mode[f"LLAMA_LAZY_MODE_{asked.lazy_mode.upper()}"]
    attention = "ENABLED" if asked.flash_attn == "on" else "DISABLED"
    params.flash_attn_type = engine.llama_flash_attn_type[f"LLAMA_FLASH_ATTN_TYPE_{attention}"]
    params.cache_type_k, params.cache_type_v = (
        KV_TYPES[asked.cache_type_k],
        KV_TYPES[asked.cache_type_v],
    )
    params.n_gpu_layers, params.fit_params = asked.n_gpu_layers, asked.fit == "on"
    params.cache_ram_mib, params.verbosity = asked.cache_ram, asked.verbosity
    if asked.ctx_checkpoints is not None:
        params.n_ctx_checkpoints = asked.ctx_checkpoints
    params.kv_unified = asked.kv_unified
    if asked.kv_unified_per_slot is not None:
        params.kv_unified_per_slot = asked.kv_unified_per_slot
    if asked.slot_save_path:
        params.slot_save_path = f"{asked.slot_save_path.rstrip('/')}/"
    params.cache_idle_slots = not asked.no_cache_idle_slots
    params.sampling.backend_sampling = asked.backend_sampling
    params.cors_origins, params.ui = asked.cors_origins, not asked.no_ui
    params.endpoint_slots, params.endpoint_metrics = asked.slots, asked.metrics
    params.embedding = asked.embeddings or asked.reranking
    if asked.reranking:
        params.pooling_type = engine.llama_pooling_type.LLAMA_POOLING_TYPE_RANK
    try:
        server = engine.Server(params)
    except RuntimeError as error:
        # Every cause is this one RuntimeError; the engine has written the real one above it.
        sys.stderr.write(f"embedded: {error}\n")
        return 1
    while server:  # the server lives as long as this object; SIGTERM ends us by default
        signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(serve(sys.argv[1:]))
