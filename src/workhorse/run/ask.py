"""Asks a running engine, with errors that a user can act on."""

from typing import Any

import aiohttp

from workhorse.errors import AppError
from workhorse.run.process import EngineProcess
from workhorse.text import Text

# A long prompt on an old CPU takes minutes.
ANSWER_TIMEOUT_S = 600.0


async def ask_engine(process: EngineProcess, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The engine's JSON answer; an `AppError` for anything that is none."""
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S)) as client,
            client.post(
                f"{process.base_url}{path}", json=body, headers=process.address.headers
            ) as answer,
        ):
            document = await answer.json(content_type=None)
            if answer.status == 200 and isinstance(document, dict):
                return document
            said = f"HTTP {answer.status}: {str(document)[:200]}"
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        said = f"{type(error).__name__} {error}"
    raise AppError(
        Text(
            f"The engine did not answer the first prompt: {said}.",
            f"引擎没有正确回答第一个提示词：{said}。",
        ),
        Text(f"Read its log: {process.log_path}", f"请查看引擎日志：{process.log_path}"),
        speaker="engine",
    )
