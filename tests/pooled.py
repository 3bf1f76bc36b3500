"""Plans for engines with one pool of KV, for the tests of their adapters."""

from dataclasses import replace
from pathlib import Path

import builders
from workhorse.engines.supply.asked import Asked, read_options
from workhorse.engines.supply.environment import Environment, build_of
from workhorse.plan.pooled import make_pooled_plan
from workhorse.plan.wish import Wish
from workhorse.records import EngineBuild, Gpu, Machine, Model, Plan, Stored
from workhorse.units import GIB

HELPS = Path(__file__).parent / "engines/python_helps"
# What came and went, by version (engine_options.toml has the sources).
SINCE = {
    "0.9.2": ("--swap-space", "--disable-log-requests"),
    "0.19.1": ("--attention-backend", "--kv-cache-memory-bytes"),
    "0.32.0": ("--attention-backend", "--kv-cache-memory-bytes"),
}
ALWAYS = (
    "--enable-prefix-caching",
    "--enable-chunked-prefill",
    "--disable-uvicorn-access-log",
    "--enforce-eager",
)
QWEN = "Qwen3ForCausalLM"


def vllm(version: str = "0.32.0", *, on_card: bool = False) -> EngineBuild:
    options = read_options((HELPS / "vllm-0.32.0-cpu.txt").read_text())
    if version != "0.32.0":
        options = (*ALWAYS, *SINCE[version])
    architectures = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_90") if on_card else ()
    return _build("vllm", version, options, architectures)


def lmdeploy(classes: tuple[str, ...] = (QWEN,)) -> EngineBuild:
    options = read_options((HELPS / "lmdeploy-0.18.0.txt").read_text())
    build = _build("lmdeploy", "0.18.0", options, ("sm_70", "sm_80", "sm_90"))
    return replace(build, model_classes=classes)


def _build(
    engine: str, version: str, options: tuple[str, ...], architectures: tuple[str, ...]
) -> EngineBuild:
    asked = Asked(version, "2.10.0", None, architectures, options, (QWEN,), ())
    record = Environment(
        name=f"{engine}-{version}",
        engine=engine,  # type: ignore[arg-type]
        target=">=7.0,<13.0" if architectures else "cpu",
        module="vllm.entrypoints.openai.api_server" if engine == "vllm" else "lmdeploy",
        python="3.11",
        asked=asked,
        installed_at="2026-11-30T00:00:00+00:00",
    )
    return build_of(Path(f"/engines/{record.name}"), record)


def stored(
    dtype: str = "BF16", n_bytes: int = 2 * GIB, *, method: str | None = None, bits: int = 4
) -> Stored:
    return Stored(
        folder="/models/tiny",
        n_bytes=((dtype, n_bytes),),
        dtype={"BF16": "bfloat16", "F16": "float16", "F32": "float32"}.get(dtype),  # type: ignore[arg-type]
        method=method,
        bits=bits if method else None,
        classes=(QWEN,),
    )


def model(**told: int) -> Model:
    return replace(builders.model(**told), format="safetensors")  # type: ignore[arg-type]


def machine(*cards: Gpu) -> Machine:
    return builders.machine(gpus=cards)


def plan(
    build: EngineBuild,
    *cards: Gpu,
    wish: Wish | None = None,
    files: Stored | None = None,
    shape: Model | None = None,
) -> Plan:
    return make_pooled_plan(
        machine(*cards), shape or model(), files or stored(), build, wish or Wish()
    )
