"""A batch job on the command line: ordered, forecast, run with a bar, told."""

import argparse
import asyncio
import sys
import time
from collections import Counter
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import msgspec

from workhorse.batch.add_items import nothing_in_it
from workhorse.batch.census import Census
from workhorse.batch.conduct import (
    Prepared,
    Reached,
    conduct,
    deliver,
    prepare,
    reached,
    report_now,
)
from workhorse.batch.documents import Skipped, read_input
from workhorse.batch.expect import expect
from workhorse.batch.item import NewItem
from workhorse.batch.job import Job, JobRecord
from workhorse.batch.job_file import Order, Words, job_of, order_of
from workhorse.batch.ledger import Ledger
from workhorse.batch.output import claim_output
from workhorse.batch.report import JobReport, markdown
from workhorse.batch.template_files import Found, find_template
from workhorse.batch.windows import open_s_a_day
from workhorse.bench.job import Where
from workhorse.cli.batch_bar import BatchBar
from workhorse.cli.batch_tables import hours, print_forecast, print_report
from workhorse.cli.bench import check_writable
from workhorse.cli.progress import LateBar
from workhorse.cli.service_options import DEFAULT_URL, api_key, authorities
from workhorse.cli.until_stopped import until_stopped
from workhorse.codec import to_json
from workhorse.config import Places
from workhorse.errors import EXIT_FAILED, EXIT_GOOD, EXIT_NO, EXIT_USAGE, AppError
from workhorse.store import Store
from workhorse.text import Text

READING = Text("reading documents", "读取文档")
TOLD_EVERY = 50  # documents: a bar that is moved for each costs more than it tells


def new_job(args: argparse.Namespace, words: Words, ledger: Ledger, where: Places) -> int:
    """Read the input, tell the forecast, and run the job, unless it is a dry run."""
    check_writable(args.report)
    order = order_of(Path(args.job), words)
    found = template_of(order, where)
    url = order.url or running_service(where)
    service = Where(url, api_key(args.api_key_file), order.model, authorities(args.ca_file))
    job = job_of(order, found, url=url, overwrite=args.overwrite)
    store = Store(where.store)
    if args.dry_run:
        code = asyncio.run(until_stopped(dry_run(args, order, job, service, ledger, store)))
        return EXIT_FAILED if code is None else code
    refuse_twin(ledger, job)
    return told_end(args, ledger, run_new(args, order, job, service, ledger, store))


def template_of(order: Order, where: Places) -> Found | None:
    """The template; None for a file of requests. AppError where neither is clear."""
    if order.template is not None:
        return find_template(order.template, where.templates)
    first = next(read_input(order.input), None) if order.input.suffix == ".jsonl" else None
    if first is not None and first.kind == "request":
        return None
    raise AppError(
        Text("It is not told what to do with the documents.", "没有说明要对文档做什么。"),
        Text(
            "Name a template, such as --template summary-short; `workhorse templates list` "
            "shows them.",
            "请指定模板，例如 --template summary-short；用 `workhorse templates list` 查看。",
        ),
        exit_code=EXIT_USAGE,
    )


def running_service(where: Places) -> str:
    """The address of the service that runs on this machine, else the usual one."""
    from workhorse.up.outside import services

    urls = list(dict.fromkeys(file.url for file in services(where)))
    if len(urls) > 1 and DEFAULT_URL not in urls:
        raise AppError(
            Text(
                f"Several services run here: {', '.join(urls)}.",
                f"本机有多个服务在运行：{'、'.join(urls)}。",
            ),
            Text("Choose one with --url.", "请用 --url 选择一个。"),
            exit_code=EXIT_USAGE,
        )
    return DEFAULT_URL if DEFAULT_URL in urls or not urls else urls[0]


def refuse_twin(ledger: Ledger, job: Job) -> None:
    """An `AppError` when a job that is not done will write to the same place."""
    for record in ledger.jobs():
        if record.state in ("running", "stopped") and record.job.output == job.output:
            raise AppError(
                Text(
                    f"Job {record.id}, which is not done, writes to {job.output}.",
                    f"任务 {record.id} 尚未完成，它的输出就是 {job.output}。",
                ),
                Text(
                    f"Go on with it: `workhorse batch resume {record.id}`; or name another "
                    "--output.",
                    f"继续该任务：`workhorse batch resume {record.id}`，或用 --output 另行指定。",
                ),
                exit_code=EXIT_USAGE,
            )


async def dry_run(
    args: argparse.Namespace, order: Order, job: Job, where: Where, ledger: Ledger, store: Store
) -> int:
    """The forecast alone; EXIT_NO when one day's hours do not hold the work."""
    async with reached(where, store) as there:
        job = named(job, there)
        census = Census()
        for _ in census.passing(documents(args, order)):
            pass
        if not census.chars:  # a table without rows: no job either
            raise nothing_in_it()
        expected = await expect(there.client, there.offer, census, job, ledger)
    found, windows = expected.forecast, job.pace.windows
    if args.json:
        print(to_json(found))
    else:
        title = Text(
            f"forecast: {job.template} over {order.input}, {there.offer.service.url}",
            f"预测：{job.template}，输入 {order.input}，{there.offer.service.url}",
        )
        print_forecast(found, title, windows, args.lang)
    too_long = windows and found.seconds and found.seconds.value > open_s_a_day(windows)
    return EXIT_NO if too_long else EXIT_GOOD


async def run_new(
    args: argparse.Namespace, order: Order, job: Job, where: Where, ledger: Ledger, store: Store
) -> JobRecord:
    """Keep the job with its documents, then run it."""
    async with reached(where, store) as there:
        record = ledger.add(named(job, there), documents(args, order), time.time())
        if record.job.output is not None:
            output, form = Path(record.job.output), record.job.form
            try:
                claim_output(output, form, record.id, replace=args.overwrite)
            except AppError:
                ledger.forget(record.id)
                raise
        return await run_on(args, ledger, record, there)


async def run_on(
    args: argparse.Namespace, ledger: Ledger, record: JobRecord, there: Reached
) -> JobRecord:
    """Run a job with a bar; what is told comes on stderr."""
    prepared = await prepare(ledger, record, there)
    print(expectation(prepared).in_language(args.lang), file=sys.stderr)
    with BatchBar(args.lang) as bar:
        try:
            return await conduct(ledger, prepared, there, bar)
        except asyncio.CancelledError:
            raise Stopped(record.id) from None


class Stopped(Exception):
    """Ctrl-C or a signal has ended the run of a job in order."""

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id)
        self.job_id = job_id


def expectation(prepared: Prepared) -> Text:
    """One line before it begins."""
    record, found = prepared.record, prepared.expected.forecast
    left, counts = found.documents, record.counts
    what, what_zh = f"{left} documents", f"{left} 篇文档"
    if left != counts.all:  # the report counts all of them
        what = (
            f"{left} of {counts.all} documents to do ({counts.done} done, {counts.failed} failed)"
        )
        what_zh = (
            f"共 {counts.all} 篇文档，待处理 {left}（完成 {counts.done}，失败 {counts.failed}）"
        )
    tokens = f"{found.prompt_tokens.value:,.0f}", f"{found.output_tokens.value:,.0f}"
    span = "" if found.seconds is None else f", {hours(found.seconds)}"
    return Text(
        f"job {record.id}: {what}, about {tokens[0]} tokens in, {tokens[1]} out{span}, "
        f"{found.streams} at once; Ctrl-C stops it, `workhorse batch resume {record.id}` goes on",
        f"任务 {record.id}：{what_zh}，约输入 {tokens[0]}、输出 {tokens[1]} token{span}，"
        f"{found.streams} 个并发；按 Ctrl-C 停止，用 `workhorse batch resume {record.id}` 继续",
    )


def go_on(args: argparse.Namespace, record: JobRecord, ledger: Ledger, where: Places) -> int:
    """Run a job that is in the ledger."""
    check_writable(args.report)
    if record.state in ("done", "cancelled"):
        deliver(ledger, record)
        return tell_end(args, ledger, record)
    url = args.url or record.job.url
    service = Where(url, api_key(args.api_key_file), record.job.model, authorities(args.ca_file))

    async def work() -> JobRecord:
        async with reached(service, Store(where.store)) as there:
            return await run_on(args, ledger, record, there)

    return told_end(args, ledger, work())


def named(job: Job, there: Reached) -> Job:
    """The job with the model and the address as the service has them."""
    service = there.offer.service
    return msgspec.structs.replace(job, url=service.url, model=service.model)


def documents(args: argparse.Namespace, order: Order) -> Iterator[NewItem]:
    """The input's items; what is none of them is counted and told at the end."""
    passed: Counter[str] = Counter()

    def skipped(one: Skipped) -> None:
        passed[one.why.in_language(args.lang)] += 1

    with LateBar(READING, args.lang) as bar:
        items = read_input(
            order.input,
            column=order.column,
            id_column=order.id_column,
            accept=order.accept,
            skipped=skipped,
        )
        for number, item in enumerate(items):
            if number % TOLD_EVERY == 0:
                bar.step(number, None)
            yield item
    if passed:
        kinds = ", ".join(f"{count} × {why}" for why, count in passed.most_common())
        words = Text(f"passed over: {kinds}", f"已略过：{kinds}")
        print(words.in_language(args.lang), file=sys.stderr)


def told_end(args: argparse.Namespace, ledger: Ledger, work: Coroutine[Any, Any, JobRecord]) -> int:
    """Run a job and tell its end; EXIT_FAILED when a signal has stopped it."""
    try:
        record = asyncio.run(until_stopped(work))
    except Stopped as stopped:
        record = ledger.job(stopped.job_id)
        counts = record.counts
        words = Text(
            f"Stopped: {counts.done} of {counts.all} documents are done, nothing is lost. "
            f"Go on with: workhorse batch resume {record.id}",
            f"已停止：{counts.all} 篇文档已完成 {counts.done} 篇，没有丢失任何结果。"
            f"继续请运行：workhorse batch resume {record.id}",
        )
        print(words.in_language(args.lang), file=sys.stderr)
        if args.json:
            print(to_json(report_now(ledger, record.id)))
        return EXIT_FAILED
    if record is None:
        print(Text("Stopped.", "已停止。").in_language(args.lang), file=sys.stderr)
        return EXIT_FAILED
    return tell_end(args, ledger, record)


def tell_end(args: argparse.Namespace, ledger: Ledger, record: JobRecord) -> int:
    """The report; EXIT_GOOD when every document has its result."""
    report = report_now(ledger, record.id)
    tell_report(report, args)
    return EXIT_GOOD if report.counts.done == report.counts.all else EXIT_FAILED


def tell_report(report: JobReport, args: argparse.Namespace) -> None:
    """On stdout, and into the file of --report."""
    if args.json:
        print(to_json(report))
    else:
        print_report(report, args.lang)
    if args.report is not None:
        try:
            args.report.write_text(markdown(report, args.lang), encoding="utf-8")
        except OSError as error:
            raise AppError(
                Text(
                    f"{args.report} cannot be written: {error}.",
                    f"无法写入 {args.report}：{error}。",
                ),
                Text("Name another file with --report.", "请用 --report 指定其他文件。"),
            ) from error
