"""vLLM: a Plan becomes a Launch; the log and the first answer are judged. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from workhorse.engines import judge_pool, openai_proof, python_log
from workhorse.engines.llamacpp import SPIN_COUNT
from workhorse.engines.report import Asking, Metrics, Observed, Question, Skills
from workhorse.engines.vllm import log
from workhorse.errors import Cause
from workhorse.knowledge.engine_options import Said, spell
from workhorse.records import EngineBuild, EngineName, Finding, Launch, Plan, Pool
from workhorse.units import GIB

HEALTH_PATH = "/health"

# A SIGTERM ended 0.32.0 in 1 to 3 s, its workers included (tried on a CPU, 2026-11); answers in
# flight are cut. What is left of the process group is killed with it (`run/process.py`).
STOP_GRACE_S = 15.0

# With it alone vLLM guards what begins with /v1, /v2, /inference and /cohere; routes of older forms
# that compute too (/invocations, /pooling, /score …) it leaves open (0.32.0 authenticate.py, read
# 2026-11). So a layer of ours is put around all of it, the only thing that its Python sees of us.
KEY_VARIABLE = "VLLM_API_KEY"
PORT_KEY = "workhorse_port_key.PortKey"
PORT_KEY_FOLDER = str(Path(__file__).parents[1] / "port_key")

# vllm 0.32.0 v1/metrics/loggers.py; gpu_cache_usage_perc up to 0.10.
METRICS = Metrics(
    path="/metrics",
    running="vllm:num_requests_running",
    waiting="vllm:num_requests_waiting",
    kv_share="vllm:kv_cache_usage_perc",
    prompt_tokens="vllm:prompt_tokens_total",
    generated_tokens="vllm:generation_tokens_total",
)

# Nothing is sent to its makers, and nothing is fetched behind the user's back (envs.py of 0.9.2
# to 0.32.0; huggingface_hub).
QUIET = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}

# Neither the user's own packages nor a clone of vLLM in the folder that the service was started
# from goes before the environment's (PYTHONSAFEPATH: Python 3.11 on; empty is unset).
ISOLATED = {"PYTHONPATH": "", "PYTHONHOME": "", "PYTHONSAFEPATH": "1"}

# vLLM names its processes, by default with the memory of their environment: that loses the marker
# by which those that a killed service left behind are known (setproctitle 1.3.8, tried 2026-11).
KNOWN_AGAIN = {"SPT_NOENV": "1"}


class Vllm:
    """Any vLLM since 0.9, on cards or on a CPU."""

    engine: EngineName = "vllm"
    title = "vLLM"
    # Every route that computes is cancelled with its connection: `with_cancellation` of
    # entrypoints/serve/utils/api_utils.py, and the stream's own watch (read in 0.32.0, 2026-11).
    asking: Asking = "as asked"
    metrics: Metrics | None = METRICS
    skills = Skills(
        formats=("safetensors",),
        weights=("F16", "BF16 (Ampere on)", "GPTQ", "AWQ (Turing on)", "FP8 (Ada on)"),
        kv=("as the weights", "fp8 (Ada on)"),
        main_memory=True,
        beside_card=False,
        cards=True,
        many_users=True,
        prefix_cache=True,
        embeddings=True,
    )

    def launch(self, plan: Plan, port: int, host: str = "127.0.0.1") -> Launch:
        """How to start the plan's engine on `host`:`port`."""
        pool = pool_of(plan)
        said = [spoken for spoken in _changed(plan, pool) if spoken is not None]
        words = [word for spoken in said for word in spoken.words]
        variables = dict(pair for spoken in said for pair in spoken.environment)
        if "--middleware" in plan.engine.knows:
            words += ["--middleware", PORT_KEY]
            variables["PYTHONPATH"] = PORT_KEY_FOLDER
        return Launch(
            argv=(*plan.engine.command, *settings(plan, pool, port, host), *words),
            env={**environment(plan), **variables},
            cpus=plan.cpus,
            # It binds its own workers to the nodes of their CPUs.
            memory_nodes=None,
            host=host,
            port=port,
            health_path=HEALTH_PATH,
            stop_grace_s=STOP_GRACE_S,
            key_variable=KEY_VARIABLE,
        )

    def observe(self, lines: Sequence[str]) -> Observed:
        """See `log.observe`."""
        return log.observe(lines)

    def judge(self, plan: Plan, lines: Sequence[str]) -> tuple[Finding, ...]:
        """Device, arithmetic, attention and room against the plan."""
        return judge_pool.judge(plan, log.observe(lines), title=self.title)

    def explain(self, lines: Sequence[str]) -> Cause | None:
        """The known cause, else the error that was raised first."""
        return python_log.explain(lines)

    def first_question(self, plan: Plan) -> Question:
        """The golden prompt by OpenAI's API."""
        return openai_proof.first_question(plan)

    def judge_answer(self, plan: Plan, answer: Mapping[str, Any]) -> tuple[Finding, ...]:
        """As of any engine."""
        return openai_proof.judge(plan, answer)


def pool_of(plan: Plan) -> Pool:
    """The plan's pool; a plan without one was made for another engine."""
    if plan.pool is None:
        raise ValueError("a plan for vLLM or LMDeploy has a pool")
    return plan.pool


def settings(plan: Plan, pool: Pool, port: int, host: str) -> tuple[str, ...]:
    """The command line after the program, without what changed between versions."""
    words = [
        *("--model", plan.model_path),
        *("--served-model-name", plan.model_name),
        *("--host", host),
        *("--port", str(port)),
        *("--dtype", pool.dtype),
        *("--max-model-len", str(plan.context_tokens)),
        *("--max-num-seqs", str(plan.slots)),
        *("--max-num-batched-tokens", str(plan.batch_tokens)),
        *("--tensor-parallel-size", str(max(1, len(plan.gpu_indexes)))),
    ]
    if pool.kv_dtype != "auto":
        words += ["--kv-cache-dtype", pool.kv_dtype]
    if pool.memory_share is not None:
        words += ["--gpu-memory-utilization", f"{pool.memory_share:.3f}"]
    else:
        # Compiling for the CPU needs a C++ compiler on the machine and half a minute more.
        words.append("--enforce-eager")
    return tuple(words)


def _changed(plan: Plan, pool: Pool) -> Iterable[Said | None]:
    """The settings whose spelling changed, in the words of this build."""
    knows = plan.engine.knows
    if pool.attention is not None:
        yield spell("vllm", "attention backend", pool.attention, knows)
    if pool.memory_share is None:
        exact = spell("vllm", "pool bytes", str(pool.kv_bytes), knows)
        gibibytes = str(-(-pool.kv_bytes // GIB))  # less than one request ends the start
        yield exact or spell("vllm", "pool gibibytes", gibibytes, knows)
    else:
        yield spell("vllm", "swap space", "0", knows)
    yield spell("vllm", "prefix cache", "on" if pool.prefix_cache else "off", knows)
    yield spell("vllm", "chunked prefill", "on" if pool.chunked_prefill else "off", knows)
    yield spell("vllm", "request log", "off", knows)
    yield spell("vllm", "access log", "off", knows)


def environment(plan: Plan) -> dict[str, str]:
    """What the plan adds to the engine's environment."""
    added = {**QUIET, **ISOLATED, **KNOWN_AGAIN, **caches(plan.engine)}
    if plan.gpu_index is None:
        # Parts of it are compiled when first used, whatever --enforce-eager says: minutes for a
        # first request with log probabilities, and a failure without g++ (0.32.0, 2026-11).
        added["TORCH_COMPILE_DISABLE"] = "1"
        if plan.spin == "bounded":
            added["GOMP_SPINCOUNT"] = SPIN_COUNT
        threads = plan.cpus[: plan.threads] if len(plan.cpus) > plan.threads else plan.cpus
        added["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, threads)) or "auto"
    else:
        # Without PCI order, CUDA's device 0 is the fastest card and not the driver's first.
        added["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        indexes = plan.gpu_indexes or (plan.gpu_index,)
        added["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, indexes))
    return added


def cache_folder(build: EngineBuild) -> PurePath:
    """Where it may keep what it compiles: in its own environment, so that removal removes it."""
    return PurePath(build.command[0]).parent.parent / "cache"


def caches(build: EngineBuild) -> dict[str, str]:
    """The variables that name that folder."""
    folder = cache_folder(build)
    return {
        "VLLM_CACHE_ROOT": str(folder / "vllm"),
        "VLLM_CONFIG_ROOT": str(folder / "vllm-config"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "HF_HOME": str(folder / "huggingface"),
    }
