"""Proves an engine by what it generates: one start, one answer, one stop, in a child process."""

import time
from dataclasses import dataclass
from pathlib import Path

from workhorse.config import HOST
from workhorse.engines.llamacpp import HEALTH_PATH, STOP_GRACE_S
from workhorse.engines.llamacpp_log import explain
from workhorse.engines.verify import golden_request, judge_answer
from workhorse.errors import AppError
from workhorse.knowledge.llamacpp_flags import spell
from workhorse.records import EngineBuild, Launch
from workhorse.run.ask import ask_engine
from workhorse.run.process import EngineProcess, free_port
from workhorse.text import Text

# An emulated CPU needs minutes for the first token.
READY_TIMEOUT_S = 300.0
# The golden prompt has about 110 tokens.
CONTEXT_TOKENS = 512
THREADS = 2


@dataclass(frozen=True, slots=True)
class FirstAnswer:
    """What an engine generated, and the seconds from its start to the end of the answer."""

    text: str
    took_s: float


async def first_answer(
    build: EngineBuild, model_path: Path, log_path: Path, ready_timeout_s: float = READY_TIMEOUT_S
) -> FirstAnswer:
    """Start the build with a small model and take its answer to the golden prompt.

    Raises AppError, speaker engine, when it dies, does not get ready or writes no text.
    """
    began_s = time.monotonic()
    process = EngineProcess(launch_for(build, model_path), log_path, explain=explain)
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


def launch_for(build: EngineBuild, model_path: Path) -> Launch:
    """One slot with a short context on a free port."""
    port, threads = free_port(HOST), str(THREADS)
    wanted = [
        ("--model", str(model_path)),
        ("--host", HOST),
        ("--port", str(port)),
        ("--ctx-size", str(CONTEXT_TOKENS)),
        ("--parallel", "1"),
        ("--threads", threads),
        ("--threads-batch", threads),
        # The CPU is proven; a card that is busy or too small says nothing of the build.
        ("--n-gpu-layers", "0"),
    ]
    words = [word for setting in wanted if setting[0] in build.knows for word in setting]
    for setting, value in (("fit", "off"), ("prompt cache", "0"), ("web page", "off")):
        words += spell(setting, value, build.knows, build.forms) or ()
    return Launch(
        argv=(*build.command, *words),
        env={},
        cpus=(),
        memory_nodes=None,
        host=HOST,
        port=port,
        health_path=HEALTH_PATH,
        stop_grace_s=STOP_GRACE_S,
    )
