"""Proves an engine by what it generates: one start, one answer, one stop, in a child process."""

import time
from dataclasses import dataclass
from pathlib import Path

from workhorse.config import HOST
from workhorse.engines.llamacpp_adapter import LlamaCpp
from workhorse.engines.verify import golden_request, judge_answer
from workhorse.errors import AppError
from workhorse.records import EngineBuild
from workhorse.run.ask import ask_engine
from workhorse.run.process import EngineProcess, free_port
from workhorse.text import Text

# An emulated CPU needs minutes for the first token.
READY_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class FirstAnswer:
    """What an engine generated, and the seconds from its start to the end of the answer."""

    text: str
    took_s: float


async def first_answer(
    build: EngineBuild, model_path: Path, log_path: Path, ready_timeout_s: float = READY_TIMEOUT_S
) -> FirstAnswer:
    """Start a build of llama.cpp with a small model and take its answer to the golden prompt.

    Raises AppError, speaker engine, when it dies, does not get ready or writes no text.
    """
    began_s = time.monotonic()
    adapter = LlamaCpp()
    launch = adapter.trial(build, model_path, free_port(HOST))
    process = EngineProcess(launch, log_path, explain=adapter.explain)
    try:
        await process.start()
        await process.wait_ready(ready_timeout_s)
        answer = await ask_engine(process, "/completion", golden_request())
    finally:
        await process.stop()
    for finding in judge_answer(answer):
        raise AppError(
            finding.seen,
            Text("Do not use this build.", "请勿使用该构建。"),
            speaker="engine",
        )
    return FirstAnswer(str(answer["content"]), time.monotonic() - began_s)
