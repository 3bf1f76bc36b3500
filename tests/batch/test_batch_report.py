"""The report of a job: counts, failures and why, tokens, and the share of the bench."""

from dataclasses import replace
from typing import get_args

import pytest

from workhorse.batch.capacity import Capacity, Range
from workhorse.batch.item import Cause, Item, Reason, Result, Usage
from workhorse.batch.job import Counts, Job, JobRecord
from workhorse.batch.report import ADVICE, CAUSES, JobReport, Spent, markdown, report_of, rows_of
from workhorse.text import same

JOB = Job(
    template="summary-short",
    definition=None,
    input="papers",
    output="papers.jsonl",
    url="http://127.0.0.1:8080",
    model="small",
)
CAPACITY = Capacity(4, Range(390, 400, 410), Range(95, 100, 105), same("bench run 7"), benched=True)


def item(number: int, cause: Cause | None = None, notes: tuple[str, ...] = ()) -> Item:
    reason = None
    if cause is not None:
        reason = Reason(cause=cause, seen=f"It was | `{cause}` {number}.", seen_zh="如此。")
    return Item(
        number=number,
        id=f"{number}.md",
        source=f"{number}.md",
        kind="text",
        content="",
        media_type="text/plain",
        state="failed" if cause else "done",
        attempts=0,
        result=None if cause else Result(text="x", notes=notes),
        reason=reason,
    )


def report(usage: Usage, spent: Spent, *items: Item) -> JobReport:
    failed = sum(one.state == "failed" for one in items)
    record = JobRecord(
        id="bcdfgh",
        job=JOB,
        state="done",
        cancelling=False,
        created_unix_s=0.0,
        ended_unix_s=1.0,
        counts=Counts(done=len(items) - failed, failed=failed),
    )
    return report_of(record, items, usage, spent)


USAGE = Usage(prompt_tokens=5000, cached_tokens=1000, output_tokens=3000, requests=12)


def test_failures_are_grouped_by_their_cause_the_most_first() -> None:
    items = [item(0), item(1, "not valid"), *(item(n, "no answer") for n in range(2, 9))]
    found = report(USAGE, Spent(), *items)
    assert [(one.cause, one.count) for one in found.failures] == [
        ("no answer", 7), ("not valid", 1),
    ]  # fmt: skip
    assert [source for source, _ in found.failures[0].examples] == ["2.md", "3.md", "4.md"]
    assert found.noted == 0
    assert report(USAGE, Spent(), item(0, notes=("repaired",))).noted == 1


def test_the_share_is_the_benchs_time_over_the_time_it_took() -> None:
    """4000 computed at 400 a second and 3000 written at 100 a second: 40 s, in 50 s."""
    found = report(USAGE, Spent(worked_s=50.0, sessions=2, capacity=CAPACITY), item(0))
    assert found.bench_share == pytest.approx(0.8)
    words = dict(rows_of(found))
    (share,) = [value for name, value in words.items() if name.en == "share of the bench"]
    assert share.en.startswith("80 %")
    assert "400" in share.en
    assert "bench run 7" in share.en
    assert found.output_tokens_per_s == pytest.approx(60)


def test_every_cause_has_its_words_and_its_advice() -> None:
    assert set(CAUSES) == set(ADVICE) == set(get_args(Cause))


def test_no_share_is_claimed_where_nothing_was_measured() -> None:
    assert report(USAGE, Spent(worked_s=50.0), item(0)).bench_share is None
    assert report(USAGE, Spent(capacity=CAPACITY), item(0)).bench_share is None
    guessed = replace(CAPACITY, benched=False)
    assert report(USAGE, Spent(50.0, capacity=guessed), item(0)).bench_share is None


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_page_holds_what_was_seen_and_its_advice(language: str) -> None:
    found = report(USAGE, Spent(50.0, 1, 4, CAPACITY), item(0), item(1, "not valid"))
    page = markdown(found, "zh" if language == "zh" else "en")
    assert CAUSES["not valid"].in_language("zh" if language == "zh" else "en") in page
    assert ADVICE["not valid"].in_language("zh" if language == "zh" else "en") in page
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    # What an engine said cannot break the table.
    assert all(line.count("|") - line.count("\\|") == 3 for line in rows)
    assert "`1.md`" in page
