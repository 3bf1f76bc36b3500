"""The test engine behind the adapter: it speaks like llama-server and is asked like it."""

from dataclasses import replace

from workhorse.engines.llamacpp import HEALTH_PATH, KEY_VARIABLE, STOP_GRACE_S
from workhorse.engines.llamacpp_adapter import LlamaCpp
from workhorse.engines.report import Metrics
from workhorse.records import EngineName, Launch, Plan


class FakeEngine(LlamaCpp):
    """Started with the settings that it knows; judged as llama.cpp is."""

    engine: EngineName = "fake"
    title = "the fake engine"
    metrics: Metrics | None = None
    skills = replace(LlamaCpp.skills, embeddings=False, reranking=False)

    def launch(self, plan: Plan, port: int, host: str = "127.0.0.1") -> Launch:
        """The told behaviour is in the build's command."""
        argv = (*plan.engine.command, "--model", plan.model_name, "--host", host)
        argv += ("--slots", str(plan.slots), "--context", str(plan.context_tokens))
        return _launch((*argv, "--port", str(port)), port, host)


def _launch(argv: tuple[str, ...], port: int, host: str) -> Launch:
    return Launch(argv, {}, (), None, host, port, HEALTH_PATH, STOP_GRACE_S, KEY_VARIABLE)
