"""What is read from real engine logs, and that every known cause is found in one."""

from pathlib import Path

import pytest

from workhorse.engines.llamacpp_log import explain, find_cause, read_report
from workhorse.units import MIB

LOGS = Path(__file__).parent / "logs"

# A line as it is written in the wild for each cause; those with a captured log are below.
LINES = {
    "engine.libgomp_missing": "ImportError: libgomp.so.1: cannot open shared object file: No such "
    "file or directory",
    "engine.cuda_runtime_missing": "llama-server: error while loading shared libraries: "
    "libcudart.so.12: cannot open shared object file: No such file or directory",
    "engine.library_missing": "llama-server: error while loading shared libraries: "
    "libcurl.so.4: cannot open shared object file: No such file or directory",
    "engine.glibc_too_old": "llama-server: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.38' "
    "not found (required by llama-server)",
    "engine.port_taken": "0.00.100.000 E srv start: couldn't bind HTTP server socket, hostname: "
    "127.0.0.1, port: 8080",
    "engine.gpu_out_of_memory": "0.01.590.287 E ggml_backend_cuda_buffer_type_alloc_buffer: "
    "allocating 218750.00 MiB on device 0: cudaMalloc failed: out of memory",
    "engine.no_kernel_image": "CUDA error: no kernel image is available for execution on "
    "the device",
    "engine.out_of_memory": "0.00.378.371 E ggml_aligned_malloc: insufficient memory (attempted to "
    "allocate  41.96 MB)",
    "engine.quantised_v_needs_flash_attention": "0.01.423.588 E llama_init_from_model: quantized V "
    "cache requires flash_attn to be enabled",
    "engine.unknown_architecture": "0.00.010.000 E llama_model_load: error loading model: error "
    "loading model architecture: unknown model architecture: 'qwen9'",
    "engine.unknown_tokenizer": "0.00.010.000 E llama_model_load: error loading model: error "
    "loading model vocabulary: unknown pre-tokenizer type: 'new-bpe'",
    "engine.model_missing": "0.00.005.238 E gguf_init_from_file: failed to open GGUF file "
    "'/nonexistent.gguf' (No such file or directory)",
    "engine.tensor_missing": "0.00.010.000 E llama_model_load: error loading model: missing tensor "
    "'blk.3.attn_q.weight'",
    "engine.unknown_setting": "error: invalid argument: --frobnicate",
    "engine.illegal_instruction": "Illegal instruction (core dumped)",
}


def lines(name: str) -> list[str]:
    return (LOGS / name).read_text().splitlines()


def test_a_cpu_load() -> None:
    report = read_report(lines("load_lv4.log"))
    assert report.buffers[("CPU", "kv")] == 180 * MIB
    assert report.kind_bytes("model") == round(92.10 * MIB)
    assert report.flash_attention is True
    assert (report.slots, report.slot_context_tokens) == (4, 8192)


def test_a_full_offload_to_a_gpu() -> None:
    report = read_report(lines("server_full_np4.log"))
    assert (report.offloaded_layers, report.layers) == (29, 29)
    assert report.buffers[("CUDA0", "model")] == round(4167.73 * MIB)
    assert report.buffers[("CUDA0", "kv")] == 896 * MIB


def test_a_partial_offload_keeps_kv_on_both() -> None:
    report = read_report(lines("server_ngl14_ctkq8.log"))
    assert (report.offloaded_layers, report.layers) == (14, 29)
    assert report.buffers[("CPU", "kv")] == round(127.5 * MIB)
    assert report.buffers[("CUDA0", "kv")] == round(110.5 * MIB)


def test_two_kv_caches_of_a_sliding_window_model_add_up() -> None:
    report = read_report(lines("load_gemma-3-270m-q4_k_m_lv4.log"))
    assert report.kind_bytes("kv") == 27 * MIB


def test_a_projectors_scratch_is_none_of_the_models_buffers() -> None:
    lines = [
        "0.00.028.320 I sched_reserve:        CPU compute buffer size =    18.77 MiB",
        "0.00.058.035 I reserve_compute_meta:        CPU compute buffer size =    23.30 MiB",
        "alloc_compute_meta:      CUDA0 compute buffer size =    23.30 MiB",
    ]
    assert read_report(lines).buffers == {("CPU", "compute"): round(18.77 * MIB)}


def test_the_words_of_an_older_version() -> None:
    report = read_report(lines("v100_b4935.log"))
    assert (report.offloaded_layers, report.layers) == (33, 33)
    assert report.buffers[("CUDA0", "kv")] == 640 * MIB
    assert report.flash_attention is False
    assert report.cuda_architectures == ("700",)


@pytest.mark.parametrize(
    ("log", "code"),
    [
        ("bad.log", "engine.model_missing"),
        ("corrupt.log", "gguf.damaged"),
        ("oom.log", "engine.out_of_memory"),
        ("server_oom_fitoff.log", "memory.kv_too_large"),
        ("ctv_q8_faoff_error.log", "engine.quantised_v_needs_flash_attention"),
    ],
)
def test_causes_in_captured_logs(log: str, code: str) -> None:
    cause = find_cause(lines(log))
    assert cause is not None
    assert cause.code == code
    told = explain(lines(log))
    assert told is not None
    assert told.next_step is not None
    assert (cause.seen.en in told.what.en, cause.seen.zh in told.what.zh) == (True, True)
    assert told.next_step == cause.remedy


@pytest.mark.parametrize("code", LINES)
def test_every_cause_is_found_in_its_line(code: str) -> None:
    found = find_cause(["0.00.000.100 I srv init: using 6 threads", LINES[code]])
    assert found is not None
    assert found.code == code


@pytest.mark.parametrize(
    "log",
    [
        "load_lv4.log",
        "server_full_np4.log",
        "server_ngl10.log",
        "server_cpu_only.log",
        "v100_b4935.log",
    ],
)
def test_a_healthy_log_has_no_cause(log: str) -> None:
    assert find_cause(lines(log)) is None


def test_an_unknown_error_is_quoted() -> None:
    said = explain(["0.00.001.000 I srv init: hello", "0.00.002.000 E srv load: it burns"])
    assert said is not None
    assert said.what.en == "srv load: it burns"
    assert explain(["0.00.001.000 I srv init: hello"]) is None


def test_a_clients_mistake_is_not_why_a_serving_engine_died() -> None:
    log = [
        "0.00.377.792 I srv init: listening on http://127.0.0.1:8099",
        "0.01.000.000 E srv send_error: request (9000 tokens) exceeds the available context size",
    ]
    assert explain(log) is None
    died = explain([*log, "ggml_aligned_malloc: insufficient memory (attempted to allocate 41 MB)"])
    assert died is not None
    assert "Main memory" in died.what.en
