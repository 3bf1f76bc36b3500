"""Items that have ended, the job they are of, and writing them."""

from pathlib import Path

from workhorse.batch.item import Item, Reason, Result
from workhorse.batch.job import Counts, Job, JobRecord, OutputForm
from workhorse.batch.output import Written, write_output

SCHEMA = '[schema.properties.people]\ntype = "array"\n[schema.properties.place]\ntype = "string"\n'
FORMS: tuple[OutputForm, ...] = ("jsonl", "csv", "xlsx", "folder", "openai")


def record(job_id: str = "abc", definition: str | None = "", **options: object) -> JobRecord:
    job = Job(
        template="t", definition=definition, options=options, input="in", output="out", url="u"
    )
    return JobRecord(
        id=job_id,
        job=job,
        state="done",
        cancelling=False,
        created_unix_s=0.0,
        ended_unix_s=1.0,
        counts=Counts(),
    )


def names_in(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir())


def item(number: int, item_id: str, **more: object) -> Item:
    values: dict[str, object] = {
        "number": number,
        "id": item_id,
        "source": item_id,
        "kind": "text",
        "content": "",
        "media_type": "text/plain",
        "state": "done" if "result" in more else "failed",
        "attempts": 0,
    }
    return Item(**(values | more))  # type: ignore[arg-type]


BROKEN = Reason(cause="no answer", seen="HTTP 500, 3 times", seen_zh="HTTP 500，共 3 次")
ITEMS = [
    item(0, "b.txt", result=Result(text="Zusammenfassung: 风扇", notes=("repaired",))),
    item(1, "a.txt", reason=BROKEN),
    item(2, "c.txt", result=Result(value={"people": ["Wang", "Li"], "place": "=1+1", "more": 1})),
    item(3, "d.txt", state="cancelled"),
]


def write(
    path: Path, form: OutputForm, items: list[Item], job: JobRecord | None = None, **how: bool
) -> Written:
    return write_output(path, form, iter(items), job or record(definition=SCHEMA), **how)
