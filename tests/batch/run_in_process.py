"""Runs a job in a process of its own: `run_in_process.py FOLDER JOB URL`."""

import asyncio
import signal
import sys
from pathlib import Path

from job_rig import asking, new_ledger, run

from workhorse.batch.item import Item, Result
from workhorse.batch.task import Tools


async def two_steps(item: Item, tools: Tools) -> Result:
    """The second question is the first one's answer."""
    first = await tools.ask(asking(item.content, "first"))
    second = await tools.ask(asking(first.text, "second"))
    return Result(text=second.text)


async def main(folder: str, job_id: str, url: str) -> None:
    with new_ledger(Path(folder)) as ledger:
        await run(ledger, job_id, two_steps, url)


if __name__ == "__main__":
    # A shell that runs the tests in the background has it ignored, and that is inherited.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    asyncio.run(main(*sys.argv[1:]))
