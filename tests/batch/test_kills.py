"""A runner that is killed without a word, again and again, loses nothing and does nothing twice."""

import asyncio
import os
import random
import signal
import sys
from pathlib import Path

import pytest
from job_rig import PATIENCE_S, added, new_ledger, said_to, standing, texts, until

from workhorse.batch.item import Result
from workhorse.batch.job import Counts

ITEMS = 60
RUNNER = Path(__file__).with_name("run_in_process.py")


async def started(*arguments: str) -> asyncio.subprocess.Process:
    """A runner in a process of its own."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return await asyncio.create_subprocess_exec(sys.executable, RUNNER, *arguments, env=environ)


@pytest.mark.parametrize("stop_with", [signal.SIGKILL, signal.SIGINT])
async def test_ended_at_random_points_and_gone_on_with(
    tmp_path: Path, stop_with: signal.Signals
) -> None:
    seed = random.SystemRandom().randrange(2**32)
    chance = random.Random(seed)
    with new_ledger(tmp_path) as ledger:
        job_id = added(ledger, texts(ITEMS))
        async with standing(gap_s=0.005) as there:
            for _ in range(3):
                wanted = ledger.job(job_id).counts.done + chance.randint(1, ITEMS // 8)
                process = await started(str(tmp_path), job_id, there.url)
                await until(lambda: ledger.job(job_id).counts.done >= wanted)  # noqa: B023
                process.send_signal(stop_with)
                await process.wait()
                counts = ledger.job(job_id).counts
                assert counts.all == ITEMS and counts.failed == counts.cancelled == 0, seed
                assert ledger.job(job_id).state == "stopped"
            last = await started(str(tmp_path), job_id, there.url)
            async with asyncio.timeout(PATIENCE_S):
                assert await last.wait() == 0, seed
        assert ledger.job(job_id).state == "done"
        assert ledger.job(job_id).counts == Counts(done=ITEMS), seed
        for item in ledger.items(job_id, content=True):
            assert item.result == Result(text=said_to(said_to(item.content))), seed
        # Each step was kept once, however often its runner was killed.
        assert ledger.usage(job_id).requests == 2 * ITEMS, seed
        with ledger._file.reading() as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            assert connection.execute("SELECT count(*) FROM step").fetchone() == (0,)
