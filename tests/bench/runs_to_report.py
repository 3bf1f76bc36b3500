"""Measurements with round figures, for reports."""

from dataclasses import replace

from builders import EMBEDDED, machine
from workhorse.records import (
    Attribution,
    Conditions,
    Estimate,
    Forecast,
    Measurement,
    Plan,
    Run,
    Term,
    Verdict,
)
from workhorse.text import Text


def estimate(value: float) -> Estimate:
    return Estimate(value, value * 0.8, value * 1.25, "tok/s", "estimated", Text("test", "测试"))


def plan(model_name: str = "a 7B") -> Plan:
    promised = Forecast(estimate(25.0), 25.0, estimate(40.0), 10**9, estimate(300.0))
    return Plan(
        model_path="/models/x.gguf",
        model_name=model_name,
        engine=EMBEDDED,
        context_tokens=8192,
        slots=4,
        kv_type_k="f16",
        kv_type_v="f16",
        flash_attention=True,
        batch_tokens=512,
        micro_batch_tokens=512,
        threads=4,
        cpus=(0, 1, 2, 3),
        memory_nodes=None,
        gpu_layers=0,
        layers=33,
        gpu_index=None,
        device="RAM",
        prompt_cache_bytes=0,
        embeddings=False,
        load_mode="none",
        huge_pages=True,
        spin="default",
        budget=(),
        forecast=promised,
        reasons=(),
        rejected=(),
        verdict=Verdict(),
    )


def run(stream: int, prompt: int, output: int, decode: float, prefill: float) -> Run:
    first_s = prompt / prefill
    arrivals = tuple(first_s + n / decode for n in range(output))
    return Run(stream, prompt, 0, output, arrivals, arrivals[-1])


def measured(
    scenario: str = "standard",
    *,
    streams: int = 1,
    prompt: int = 768,
    output: int = 200,
    decode: float = 20.0,
    prefill: float = 320.0,
    with_plan: bool = True,
) -> Measurement:
    conditions = Conditions(
        "2026-11-30T10:00:00+00:00",
        machine(),
        plan() if with_plan else None,
        "http://127.0.0.1:8080",
        "0.1.0",
    )
    runs = tuple(
        run(stream, prompt, output, decode * (1 + (number - 1) / 100), prefill)
        for number in range(3)
        for stream in range(streams)
    )
    return Measurement(scenario, prompt, output, streams, runs, conditions)


def ladder(decode: float = 20.0) -> tuple[Measurement, ...]:
    return tuple(
        measured("ladder", streams=n, prompt=256, output=64, decode=decode / n**0.4)
        for n in (1, 2, 4)
    )


def lengths() -> tuple[Measurement, ...]:
    prompts = (measured("prompts", prompt=n, output=16, prefill=400 - n / 20) for n in (128, 1024))
    depths = (measured("depths", prompt=n, output=64, decode=20 - n / 1000) for n in (512, 4096))
    return (*prompts, *depths)


def attribution() -> Attribution:
    parts = (("memory", 25.0, 25.0, 25.0), ("rest", 24.0, 22.0, 26.0), ("gateway", 1.0, -0.5, 2.5))
    terms = tuple(
        Term(code, Text(f"the {code}", f"{code}项"), ms / 1e3, low / 1e3, high / 1e3,
             "plan" if code == "memory" else "experiment", Text("tried", "试验"))
        for code, ms, low, high in parts
    )  # fmt: skip
    return Attribution(
        "2026-11-30T11:00:00+00:00", "http://127.0.0.1:8080", "a 7B", "0.1.0", 0.05, 0.048, 0.052,
        estimate(40.0), terms, (), Verdict(),
    )  # fmt: skip


def broken(measurement: Measurement) -> Measurement:
    """All requests of it failed."""
    failed = tuple(replace(r, arrivals_s=(), error="it fell over") for r in measurement.runs)
    return replace(measurement, runs=failed)
