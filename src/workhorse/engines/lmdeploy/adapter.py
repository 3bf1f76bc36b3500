"""LMDeploy: started with TurboMind or not at all. Pure.

`--backend turbomind` does not insist: `lmdeploy serve api_server` asks whether TurboMind supports
the model whatever was asked for, and takes its PyTorch engine if not (lmdeploy 0.18.0
cli/serve.py, archs.py, read 2026-11). All that it says is one line of warning.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from workhorse.engines import judge_pool, openai_proof, python_log
from workhorse.engines.python_log import bare
from workhorse.engines.report import Asking, Metrics, Observed, Question, Skills
from workhorse.engines.vllm.adapter import ISOLATED, KNOWN_AGAIN, caches, pool_of
from workhorse.errors import Cause
from workhorse.knowledge.engine_options import spell
from workhorse.records import EngineBuild, EngineName, Finding, Launch, Plan
from workhorse.text import Text

HEALTH_PATH = "/health"
STOP_GRACE_S = 15.0

# It takes the key of its port as an argument alone (0.18.0 cli/serve.py, read 2026-11), and an
# argument can be read by every user of the machine: so it becomes one inside the process.
KEY_VARIABLE = "WORKHORSE_ENGINE_KEY"
TAKE_KEY = (
    f"import os, runpy, sys; key = os.environ.pop('{KEY_VARIABLE}', None); "
    "sys.argv += ['--api-keys', key] if key else []; "
    "runpy.run_module('{module}', run_name='__main__', alter_sys=True)"
)

# lmdeploy 0.18.0 metrics/loggers.py, read 2026-11.
METRICS = Metrics(
    path="/metrics",
    running="lmdeploy:num_requests_running",
    waiting="lmdeploy:num_requests_waiting",
    kv_share="lmdeploy:gpu_cache_usage_perc",
    prompt_tokens="lmdeploy:prompt_tokens_total",
    generated_tokens="lmdeploy:generation_tokens_total",
)

QUANT_POLICY = {"auto": "0", "int8": "8", "fp8": "0"}
DTYPES = {"float16": "float16", "bfloat16": "bfloat16", "float32": "float16"}

_OTHER_ENGINE = re.compile(
    r"Fallback to pytorch engine|input backend=pytorch|turbomind is not built", re.IGNORECASE
)
_OTHER_DTYPE = re.compile(r"data type fallback to (\w+)")
_CONFIG = re.compile(r"backend_config=TurbomindEngineConfig\((.*)\)")
_FIELD = re.compile(r"(\w+)=(?:'([^']*)'|(\d+))")


class LmDeploy:
    """LMDeploy's OpenAI server."""

    engine: EngineName = "lmdeploy"
    title = "LMDeploy"
    # A whole answer too is cut when the client has left: it asks before each piece
    # (serve/core/chat_runner.py, endpoints/completions.py of 0.18.0, read 2026-11).
    asking: Asking = "as asked"
    metrics: Metrics | None = METRICS
    skills = Skills(
        formats=("safetensors",),
        weights=("F16", "BF16 (Ampere on)", "AWQ", "GPTQ", "MXFP4", "FP8"),
        kv=("as the weights", "int8", "int4"),
        main_memory=False,
        beside_card=False,
        cards=True,
        many_users=True,
        prefix_cache=True,
        embeddings=False,
    )

    def launch(self, plan: Plan, port: int, host: str = "127.0.0.1") -> Launch:
        """How to start the plan's engine on `host`:`port`."""
        pool, knows = pool_of(plan), plan.engine.knows
        words = [
            *("serve", "api_server", plan.model_path),
            *("--backend", "turbomind"),
            *("--server-name", host),
            *("--server-port", str(port)),
            *("--model-name", plan.model_name),
            *("--dtype", DTYPES[pool.dtype]),
            *("--tp", str(max(1, len(plan.gpu_indexes)))),
            *("--session-len", str(plan.context_tokens)),
            *("--max-batch-size", str(plan.slots)),
            *("--max-prefill-token-num", str(plan.batch_tokens)),
            # Its line about another engine is a warning, its settings are told at INFO.
            *("--log-level", "INFO"),
        ]
        if pool.memory_share is not None:
            words += ["--cache-max-entry-count", f"{pool.memory_share:.3f}"]
        for setting, value in (
            ("prefix cache", "on" if pool.prefix_cache else "off"),
            ("quantised cache", QUANT_POLICY[pool.kv_dtype]),
        ):
            said = spell("lmdeploy", setting, value, knows)
            words += said.words if said else ()
        return Launch(
            argv=(*command(plan.engine), *words),
            env={
                **ISOLATED,
                **KNOWN_AGAIN,
                **caches(plan.engine),
                "HF_HUB_OFFLINE": "1",
                "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
                "CUDA_VISIBLE_DEVICES": ",".join(
                    map(str, plan.gpu_indexes or (plan.gpu_index or 0,))
                ),
            },
            cpus=plan.cpus,
            memory_nodes=plan.memory_nodes,
            host=host,
            port=port,
            health_path=HEALTH_PATH,
            stop_grace_s=STOP_GRACE_S,
            key_variable=KEY_VARIABLE if takes_key(plan.engine) else None,
        )

    def observe(self, lines: Sequence[str]) -> Observed:
        """The settings that TurboMind took, or that it was not TurboMind."""
        found: dict[str, str] = {}
        fell_back: dict[str, None] = {}
        for line in lines:
            if match := _CONFIG.search(line):
                found |= {name: text or number for name, text, number in _FIELD.findall(match[1])}
            if match := _OTHER_DTYPE.search(line):
                found["dtype"] = match[1]
            if _OTHER_ENGINE.search(line) or _OTHER_DTYPE.search(line):
                fell_back[bare(line)[:300]] = None

        def number(name: str) -> int | None:
            value = found.get(name, "")
            return int(value) if value.isdigit() else None

        return Observed(
            device="gpu" if found else None,
            dtype=found.get("dtype") or None,
            slots=number("max_batch_size"),
            context_tokens=number("session_len"),
            fell_back=tuple(fell_back)[:8],
        )

    def judge(self, plan: Plan, lines: Sequence[str]) -> tuple[Finding, ...]:
        """Refused without TurboMind's own word; else device, arithmetic and room."""
        if said := slow_engine(lines):
            return (refuse_slow_engine(said),)
        if not any(_CONFIG.search(line) for line in lines):
            return (not_turbomind(),)
        return judge_pool.judge(plan, self.observe(lines), title=self.title)

    def explain(self, lines: Sequence[str]) -> Cause | None:
        """That it took its slow engine before anything that happened to that one."""
        if said := slow_engine(lines):
            finding = refuse_slow_engine(said)
            return Cause(finding.seen, finding.remedy)
        return python_log.explain(lines)

    def first_question(self, plan: Plan) -> Question:
        """The golden prompt by OpenAI's API."""
        return openai_proof.first_question(plan)

    def judge_answer(self, plan: Plan, answer: Mapping[str, Any]) -> tuple[Finding, ...]:
        """As of any engine."""
        return openai_proof.judge(plan, answer)


def takes_key(build: EngineBuild) -> bool:
    """Whether it can be told a key without showing it to other users."""
    return "--api-keys" in build.knows and build.command[1:2] == ("-m",)


def command(build: EngineBuild) -> tuple[str, ...]:
    """How the build is started: as it is, but for the key that it takes on the way."""
    if not takes_key(build):
        return build.command
    python, _, module, *more = build.command
    return (python, "-c", TAKE_KEY.replace("{module}", module), *more)


def slow_engine(lines: Sequence[str]) -> str | None:
    """The line with which it says that it took its PyTorch engine; None: it did not."""
    return next((bare(line) for line in lines if _OTHER_ENGINE.search(line)), None)


def not_turbomind() -> Finding:
    """The blocker for a log in which TurboMind does not say that it was taken."""
    return Finding(
        code="verify.slow_engine",
        level="blocker",
        seen=Text(
            "LMDeploy's log does not say that it took TurboMind.",
            "LMDeploy 的日志没有表明使用了 TurboMind。",
        ),
        why=Text(
            "It may be its PyTorch engine, which computes without tensor cores before Ampere.",
            "可能是其 PyTorch 引擎，在 Ampere 之前的显卡上不使用张量核心。",
        ),
        remedy=Text(
            "Free some space for the log if the disk is full, or install the version that is "
            "pinned here.",
            "若磁盘已满请清理空间以便写入日志，或安装此处固定的版本。",
        ),
        source="engine log; lmdeploy 0.18.0 async_engine.py, read 2026-11",
        command="workhorse engine install lmdeploy",
    )


def refuse_slow_engine(said: str) -> Finding:
    """The blocker for the PyTorch engine where TurboMind was planned."""
    return Finding(
        code="verify.slow_engine",
        level="blocker",
        seen=Text(
            f"LMDeploy took its PyTorch engine instead of TurboMind: {said[:200]}",
            f"LMDeploy 使用了 PyTorch 引擎而不是 TurboMind：{said[:200]}",
        ),
        why=Text(
            "Before Ampere that one computes without tensor cores: many users would wait for it.",
            "在 Ampere 之前的显卡上它不使用张量核心：多用户时会非常慢。",
        ),
        remedy=Text(
            "Serve a GGUF file of this model with llama.cpp, or take a model that TurboMind knows.",
            "请用 llama.cpp 运行该模型的 GGUF 文件，或换用 TurboMind 支持的模型。",
        ),
        source="engine log; lmdeploy 0.18.0 archs.py",
        evidence=(said[:300],),
    )
