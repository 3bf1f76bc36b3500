"""Healthy logs: nothing in them may be told as the cause of a failure.

In `healthy/`, `llama_cpu_*`, `llama_h200_*`, `vllm_cpu_start` and `nvidia-smi*` were captured; the
others are composed of lines that these programs print.
"""

from pathlib import Path

import pytest
from dressing import ENGINE_LOGS, HEALTHY

from workhorse.diagnose.judge import diagnose, diagnose_lines, scan

LOGS = [
    *sorted(HEALTHY.iterdir()),
    *(
        ENGINE_LOGS / name
        for name in (
            "load_gemma-3-270m-q4_k_m_lv4.log",
            "load_lv4.log",
            "server_cpu_only.log",
            "server_full_np4.log",
            "server_ngl10.log",
            "server_ngl14_ctkq8.log",
            "v100_b4935.log",
        )
    ),
]


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.name)
def test_a_healthy_log_names_no_cause(path: Path) -> None:
    verdict = diagnose(scan([path.read_bytes()]))
    assert [f.code for f in verdict.findings if f.level == "cause"] == []


def test_there_are_twenty() -> None:
    assert len(LOGS) >= 20


def test_all_of_them_together_name_no_cause() -> None:
    verdict = diagnose(scan(path.read_bytes() for path in LOGS))
    assert [f.code for f in verdict.findings if f.level == "cause"] == []


def test_layers_on_the_cpu_are_seen_in_a_start_that_succeeded() -> None:
    log = (ENGINE_LOGS / "server_ngl10.log").read_bytes()
    (finding,) = diagnose(scan([log])).findings
    assert (finding.code, finding.level) == ("behaviour.layers_on_cpu", "warning")


def test_no_layer_on_the_gpu_is_seen_and_the_last_load_counts() -> None:
    nothing = "load_tensors: offloaded 0/33 layers to GPU"
    everything = "load_tensors: offloaded 33/33 layers to GPU"
    assert [f.code for f in diagnose_lines([nothing]).findings] == ["behaviour.no_layers_on_gpu"]
    assert diagnose_lines([nothing, everything]).findings == ()


def test_a_context_that_was_cut() -> None:
    line = "llama_params_fit_impl: context size reduced from 131072 to 4096 -> need 3456 MiB less"
    assert [f.code for f in diagnose_lines([line]).findings] == ["behaviour.context_shrunk"]


def timing(slot: int, speed: float) -> str:
    return (
        f"slot print_timing: id  {slot} | task 1 |        eval time = {128000 / speed:9.2f} ms /"
        f"   128 tokens (    1.00 ms per token, {speed:8.2f} tokens per second)"
    )


def test_decode_that_collapses_is_seen() -> None:
    lines = [timing(0, 80) for _ in range(10)] + [timing(0, 21) for _ in range(10)]
    (finding,) = diagnose_lines(lines).findings
    assert finding.code == "behaviour.decode_collapsed"


def test_slots_that_share_the_speed_are_no_collapse() -> None:
    lines = [timing(0, 80) for _ in range(10)] + [timing(slot % 4, 21) for slot in range(10)]
    assert diagnose_lines(lines).findings == ()
