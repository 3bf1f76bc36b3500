"""Comments and answers of the real model: what comes has the right form, whatever it says."""

import ast
from pathlib import Path

import pytest
from job_rig import added, new_ledger, pace, run
from real_engine import SLOTS, real_engine
from stand_ins import StandInBackend, gateway
from task_tools import job_of

from workhorse.batch.item import NewItem
from workhorse.batch.tasks import make_task

pytestmark = pytest.mark.real

CODE = "def area(width, height):\n    return width * height\n\n\ndef hello(): print('hello')\n"


async def test_a_file_and_a_question(real_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "documents"
    folder.mkdir()
    (folder / "fans.md").write_text("# Fans\n\nThe fan is red and turns left.\n", encoding="utf-8")
    (folder / "power.md").write_text("# Power\n\nThe supply has 750 watts.\n", encoding="utf-8")
    comments = make_task(job_of("code-comments", {"words": 20}))
    answers = make_task(job_of("answer", {"documents": str(folder), "words": 20}))
    with new_ledger(tmp_path) as ledger:
        code = NewItem(id="a.py", source="a.py", content=CODE, media_type="text/x-python")
        asked = NewItem(id="1", source="row 1", content="Which colour is the fan?")
        jobs = [added(ledger, [code]), added(ledger, [asked])]
        async with (
            real_engine(real_model, tmp_path / "log") as engine,
            gateway(StandInBackend(engine.url)) as url,
        ):
            for job_id, task in zip(jobs, (comments, answers), strict=True):
                await run(ledger, job_id, task, url, pace=pace(SLOTS))
        (file,), (answer,) = (list(ledger.items(job_id)) for job_id in jobs)
    assert file.result and file.result.text, file.reason
    tree = ast.parse(file.result.text)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert any(ast.get_docstring(node) for node in functions)
    assert "return width * height" in file.result.text
    if answer.result is None:  # a small model may not stop in time
        assert answer.reason is not None
        assert answer.reason.cause == "not valid"
    else:
        assert set(answer.result.value) == {"answer", "found", "sources"}
        assert answer.result.value["found"] == bool(answer.result.value["sources"])
