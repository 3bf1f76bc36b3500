"""llama.cpp behind the adapter: `llamacpp.py` composes, `llamacpp_log.py` reads."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workhorse.engines import llamacpp, llamacpp_log, verify
from workhorse.engines.report import Asking, Metrics, Observed, Question, Skills
from workhorse.errors import Cause
from workhorse.knowledge.llamacpp_flags import spell
from workhorse.records import EngineBuild, EngineName, Finding, Launch, Plan

# For a trial: the golden prompt has about 110 tokens.
TRIAL_CONTEXT_TOKENS, TRIAL_THREADS = 512, 2

EMBEDDED_WANTS = (
    *("--alias", "trial", "--batch-size", "512", "--ubatch-size", "512"),
    *("--cache-type-k", "f16", "--cache-type-v", "f16"),
)

# llama-server 0.5.0, tools/server/server-context.cpp (commit 0c1e570, 2026-10-01).
METRICS = Metrics(
    path="/metrics",
    running="llamacpp:requests_processing",
    waiting="llamacpp:requests_deferred",
    kv_share=None,
    prompt_tokens="llamacpp:prompt_tokens_total",
    generated_tokens="llamacpp:tokens_predicted_total",
)


class LlamaCpp:
    """The embedded server and any `llama-server`."""

    engine: EngineName = "llama.cpp"
    title = "llama.cpp"
    asking: Asking = "progress"
    metrics: Metrics | None = METRICS
    skills = Skills(
        formats=("gguf",),
        weights=("F16", "BF16", "F32", "GGUF quants (Q2 to Q8, IQ, MXFP4)"),
        kv=("f16", "q8_0", "q4_0"),
        main_memory=True,
        beside_card=True,
        cards=True,
        many_users=False,
        prefix_cache=True,
        embeddings=True,
        reranking=True,
    )

    def launch(self, plan: Plan, port: int, host: str = "127.0.0.1") -> Launch:
        """See `llamacpp.launch`."""
        return llamacpp.launch(plan, port, host)

    def trial(self, build: EngineBuild, model_path: Path, port: int) -> Launch:
        """One slot with a short context."""
        threads = str(TRIAL_THREADS)
        wanted = [
            ("--model", str(model_path)),
            ("--host", "127.0.0.1"),
            ("--port", str(port)),
            ("--ctx-size", str(TRIAL_CONTEXT_TOKENS)),
            ("--parallel", "1"),
            ("--threads", threads),
            ("--threads-batch", threads),
            # The CPU is proven; a card that is busy or too small says nothing of the build.
            ("--n-gpu-layers", "0"),
        ]
        words = [word for setting in wanted if setting[0] in build.knows for word in setting]
        said = [("fit", "off"), ("prompt cache", "0"), ("web page", "off")]
        if build.kind == "embedded":  # its launcher wants to be told everything
            words += EMBEDDED_WANTS
            said += [("load mode", "none"), ("flash attention", "on"), ("log level", "4")]
        for setting, value in said:
            words += spell(setting, value, build.knows, build.forms) or ()
        return Launch(
            argv=(*build.command, *words),
            env={},
            cpus=(),
            memory_nodes=None,
            host="127.0.0.1",
            port=port,
            health_path=llamacpp.HEALTH_PATH,
            stop_grace_s=llamacpp.STOP_GRACE_S,
            key_variable=llamacpp.key_variable(build),
        )

    def observe(self, lines: Sequence[str]) -> Observed:
        """Slots, context and device, as far as the log has them."""
        report = llamacpp_log.read_report(lines)
        weights = {device for device, kind in report.buffers if kind == "model"}
        on_card = any(device.startswith("CUDA") for device in weights)
        return Observed(
            device=("gpu" if on_card else "cpu") if weights else None,
            slots=report.slots,
            context_tokens=report.slot_context_tokens,
            kv_tokens=(
                report.slots * report.slot_context_tokens
                if report.slots and report.slot_context_tokens
                else None
            ),
            attention=(
                None
                if report.flash_attention is None
                else ("flash attention" if report.flash_attention else "plain")
            ),
        )

    def judge(self, plan: Plan, lines: Sequence[str]) -> tuple[Finding, ...]:
        """See `verify.judge_log`."""
        return verify.judge_log(plan, llamacpp_log.read_report(lines))

    def explain(self, lines: Sequence[str]) -> Cause | None:
        """See `llamacpp_log.explain`."""
        return llamacpp_log.explain(lines)

    def first_question(self, plan: Plan) -> Question:
        """The golden prompt; one embedding of a model for those, an order of one that ranks."""
        if plan.reranks:
            return Question("/v1/rerank", verify.ranking_request())
        if plan.embeddings:
            return Question("/v1/embeddings", {"input": verify.GOLDEN_PROMPT})
        return Question("/completion", verify.golden_request())

    def judge_answer(self, plan: Plan, answer: Mapping[str, Any]) -> tuple[Finding, ...]:
        """See `verify`."""
        if plan.reranks:
            return verify.judge_ranking(answer)
        return verify.judge_embedding(answer) if plan.embeddings else verify.judge_answer(answer)
