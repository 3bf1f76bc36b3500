"""A job on the real engine with the real model."""

from pathlib import Path
from typing import Any

import pytest
from job_rig import added, asking, new_ledger, pace, run
from real_engine import SLOTS, real_engine
from stand_ins import StandInBackend, gateway

from workhorse.batch.item import Item, NewItem, Result
from workhorse.batch.job import Counts
from workhorse.batch.task import Tools

pytestmark = pytest.mark.real

COLOUR = {
    "type": "object",
    "properties": {"colour": {"type": "string", "enum": ["red", "green", "blue"]}},
    "required": ["colour"],
    "additionalProperties": False,
}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "colour", "schema": COLOUR}}
TEXTS = ("Grass in spring.", "A cloudless sky.", "A fire engine.", "龙的血。")


async def test_small_texts(real_model: Path, tmp_path: Path) -> None:
    """Its tokens counted, its answers in the form that was asked for, its slots both at work."""
    counts: dict[str, int] = {}

    async def colour_of(item: Item, tools: Tools) -> Result:
        assert tools.context_tokens == 8192
        counts[item.content] = await tools.count_tokens(item.content)
        answer = await tools.ask(
            asking(f"Which colour? {item.content}", tokens=24, response_format=FORMAT)
        )
        return Result(text=answer.text)

    items = [NewItem(id=str(n), source=text, content=text) for n, text in enumerate(TEXTS)]
    with new_ledger(tmp_path) as ledger:
        job_id = added(ledger, items)
        async with (
            real_engine(real_model, tmp_path / "log") as engine,
            gateway(StandInBackend(engine.url)) as url,
        ):
            record = await run(ledger, job_id, colour_of, url, pace=pace(SLOTS))
        assert record.counts == Counts(done=len(TEXTS))
        for item in ledger.items(job_id):
            assert item.result and item.result.text
            assert '"colour"' in item.result.text
            assert item.usage.output_tokens > 0 and item.usage.requests == 1
    assert counts["A cloudless sky."] < len("A cloudless sky.") / 2
    assert counts["龙的血。"] > 0
