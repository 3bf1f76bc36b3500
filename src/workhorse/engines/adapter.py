"""What an engine has to be told and asked: one adapter an engine, one way to get it.

An adapter is pure: it makes a Launch out of a Plan and judges what the engine wrote and answered.
Who starts, asks and stops it is `run/`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from workhorse.engines.fake.adapter import FakeEngine
from workhorse.engines.llamacpp_adapter import LlamaCpp
from workhorse.engines.lmdeploy.adapter import LmDeploy
from workhorse.engines.report import Asking, Metrics, Observed, Question, Skills
from workhorse.engines.vllm.adapter import Vllm
from workhorse.errors import Cause
from workhorse.records import EngineBuild, EngineName, Finding, Launch, Plan

__all__ = ["Adapter", "adapter_for", "adapter_named", "adapters"]


class Adapter(Protocol):
    """One engine: how it is started, understood, asked and watched."""

    @property
    def engine(self) -> EngineName:
        """Its name, as builds have it."""
        ...

    @property
    def title(self) -> str:
        """Its name as its makers write it."""
        ...

    @property
    def asking(self) -> Asking:
        """How the gateway has to ask it so that it stops when a client leaves."""
        ...

    @property
    def metrics(self) -> Metrics | None:
        """Where its metrics are and what they are called; None: it has none."""
        ...

    @property
    def skills(self) -> Skills:
        """What it can do."""
        ...

    def launch(self, plan: Plan, port: int, host: str = "127.0.0.1") -> Launch:
        """How to start what was planned; ready when `health_path` answers 200."""
        ...

    def observe(self, lines: Sequence[str]) -> Observed:
        """What the log says that it really did."""
        ...

    def judge(self, plan: Plan, lines: Sequence[str]) -> tuple[Finding, ...]:
        """What it did against what was planned; a blocker where it must not serve."""
        ...

    def explain(self, lines: Sequence[str]) -> Cause | None:
        """Why it died, from the end of its log; None when nothing in it says so."""
        ...

    def first_question(self, plan: Plan) -> Question:
        """What it is asked before anybody is served."""
        ...

    def judge_answer(self, plan: Plan, answer: Mapping[str, Any]) -> tuple[Finding, ...]:
        """Findings about the answer to the first question; empty when it is sound."""
        ...


_ADAPTERS: dict[EngineName, Adapter] = {
    "llama.cpp": LlamaCpp(),
    "vllm": Vllm(),
    "lmdeploy": LmDeploy(),
    "fake": FakeEngine(),
}


def adapters() -> tuple[Adapter, ...]:
    """Every engine that serves people."""
    return tuple(adapter for name, adapter in _ADAPTERS.items() if name != "fake")


def adapter_named(name: EngineName) -> Adapter:
    """The adapter of an engine."""
    return _ADAPTERS[name]


def adapter_for(build: EngineBuild) -> Adapter:
    """The adapter of a build's engine."""
    return _ADAPTERS[build.engine]
