"""`workhorse batch`: a job over many documents; its verbs go on with it, show it, end it."""

import argparse
import sys
import time
from typing import TYPE_CHECKING

from workhorse.cli.batch_options import add_arguments
from workhorse.codec import to_json
from workhorse.config import Places, places
from workhorse.errors import EXIT_FAILED, EXIT_GOOD, EXIT_USAGE, AppError
from workhorse.text import Text

if TYPE_CHECKING:
    from workhorse.batch.job import JobRecord
    from workhorse.batch.job_file import Words
    from workhorse.batch.ledger import Ledger

__all__ = ["add_arguments", "run"]

# What the first word does when it is one of these; a folder of such a name is ./status.
VERBS = ("resume", "status", "cancel", "retry")
# Which verbs an option goes with; all others are of a new job alone.
OF_VERBS = {
    "url": ("resume", "retry"),
    "model": (),
    "api_key_file": ("resume", "retry"),
    "ca_file": ("resume", "retry"),
    "report": ("resume", "retry", "status"),
}


def run(args: argparse.Namespace) -> int:
    """Do what the first word says; 0: all done, 1: something failed or was stopped, 3: no."""
    from workhorse.batch.ledger import Ledger

    refuse_misplaced(args)
    where = places()
    ledger = Ledger(where.batch)
    try:
        if args.job not in VERBS:
            from workhorse.cli.batch_run import new_job

            return new_job(args, words_of(args), ledger, where)
        return {"status": status, "cancel": cancel, "resume": resume, "retry": retry}[args.job](
            args, ledger, where
        )
    finally:
        ledger.close()


def refuse_misplaced(args: argparse.Namespace) -> None:
    """An `AppError` for an option that the word does not take, and for no word at all."""
    if args.job is None:
        raise usage(
            Text("There is nothing to work on.", "没有指定要处理的内容。"),
            Text(
                "Name a folder of documents: workhorse batch FOLDER --template summary-short",
                "请指定文档目录：workhorse batch 目录 --template summary-short",
            ),
        )
    if args.job not in VERBS:
        if args.id is not None:
            raise usage(
                Text(f"{args.id} is one input too many.", f"{args.id} 是多余的输入。"),
                Text("Put the documents into one folder.", "请把文档放进同一个目录。"),
            )
        return
    own = {"job", "id", "json", "lang", "verb"}
    for name, value in vars(args).items():
        if name in own or value in (None, False) or args.job in OF_VERBS.get(name, ()):
            continue
        option = "--" + name.replace("_", "-")
        raise usage(
            Text(
                f"`batch {args.job}` takes no {option}.", f"`batch {args.job}` 没有 {option} 选项。"
            ),
            Text(
                "What a job does is told when it is ordered; order another one.",
                "任务的内容在下达时确定；如需更改请新建任务。",
            ),
        )


def words_of(args: argparse.Namespace) -> "Words":
    """What the command line says of a new job."""
    from workhorse.batch.job_file import Words

    return Words(
        template=args.template,
        output=args.output,
        form=args.form,
        language=args.language,
        column=args.column,
        id_column=args.id_column,
        accept=tuple(args.accept or ()),
        url=args.url,
        model=args.model,
        attempts=args.attempts,
        options=dict(args.set or ()),
        streams=args.streams,
        yield_to_chat=args.yield_to_chat,
        windows=tuple(args.window or ()),
    )


def status(args: argparse.Namespace, ledger: "Ledger", where: Places) -> int:  # noqa: ARG001
    """All jobs, or the report of one."""
    from workhorse.batch.conduct import report_now
    from workhorse.cli.batch_run import tell_report
    from workhorse.cli.batch_tables import print_jobs

    if args.id is not None:
        report = report_now(ledger, args.id)
        tell_report(report, args)
        return EXIT_GOOD
    records = ledger.jobs()
    if args.report is not None:
        raise usage(
            Text("--report is of one job.", "--report 只用于单个任务。"),
            Text("Name it: workhorse batch status ID", "请指定任务：workhorse batch status ID"),
        )
    if args.json:
        print(to_json(records))
    elif records:
        print_jobs(records, args.lang)
    else:
        print(Text("There are no jobs yet.", "还没有任务。").in_language(args.lang))
    return EXIT_GOOD


def cancel(args: argparse.Namespace, ledger: "Ledger", where: Places) -> int:  # noqa: ARG001
    """End a job for good; what is done stays, and is written."""
    from workhorse.batch.conduct import deliver

    record = chosen(ledger, args.id, ("running", "stopped"), "cancel")
    ledger.cancel(record.id, time.time())
    record = ledger.job(record.id)
    if record.state == "done":  # it was, or became so in this moment
        words = Text(f"Job {record.id} has ended already", f"任务 {record.id} 早已完成")
    elif record.state == "cancelled":
        deliver(ledger, record)
        words = Text(f"Job {record.id} is cancelled", f"任务 {record.id} 已取消")
    else:
        words = Text(
            f"Job {record.id} is told to end; it does within seconds",
            f"已通知任务 {record.id} 结束，数秒内生效",
        )
    done, output = record.counts.done, record.job.output
    words = Text(
        f"{words.en}. Done were {done:,}" + (f": {output}" if output else "."),
        f"{words.zh}。已完成 {done:,} 个" + (f"：{output}" if output else "。"),
    )
    if args.json:
        print(to_json(record))
    else:
        print(words.in_language(args.lang), file=sys.stderr)
    return EXIT_GOOD


def resume(args: argparse.Namespace, ledger: "Ledger", where: Places) -> int:
    """Go on with a job that was stopped, or died."""
    from workhorse.cli.batch_run import go_on

    record = chosen(ledger, args.id, ("stopped", "running"), "resume")  # done: written again
    return go_on(args, record, ledger, where)


def retry(args: argparse.Namespace, ledger: "Ledger", where: Places) -> int:
    """Do those again that failed, with all their attempts."""
    from workhorse.batch.conduct import report_now
    from workhorse.batch.hold import runs_already
    from workhorse.cli.batch_run import go_on

    if args.id is not None:
        records = [ledger.job(args.id)]
        if (pid := ledger.runner(records[0].id)) is not None:  # whose counts would be wrong then
            raise runs_already(records[0].id, pid)
    else:
        records = [
            one
            for one in ledger.jobs()
            if one.state in ("done", "cancelled", "stopped") and one.job.owner is None
            if one.counts.failed + one.counts.cancelled
        ]
    for record in records:
        if ledger.retry(record.id):
            return go_on(args, ledger.job(record.id), ledger, where)
    if not records:
        raise no_job("retry")
    record = records[0]
    if failed := record.counts.failed:  # asking once more does not make them readable
        words = Text(
            f"Nothing of job {record.id} can be tried again: {failed:,} could not be read. "
            "Mend them and order a job over them.",
            f"任务 {record.id} 没有可重试的文档：{failed:,} 篇无法读取。请修复后重新下达任务。",
        )
    else:
        words = Text(
            f"No document of job {record.id} failed.", f"任务 {record.id} 没有失败的文档。"
        )
    print(words.in_language(args.lang), file=sys.stderr)
    if args.json:
        print(to_json(report_now(ledger, record.id)))
    return EXIT_GOOD


def chosen(ledger: "Ledger", job_id: str | None, states: tuple[str, ...], verb: str) -> "JobRecord":
    """The named job, else the latest in one of these states; AppError where there is none."""
    if job_id is not None:
        return ledger.job(job_id)
    for record in ledger.jobs():
        if record.state in states and record.job.owner is None:
            return record
    raise no_job(verb)


def no_job(verb: str) -> AppError:
    """None of the jobs is one that a verb is for."""
    return AppError(
        Text(f"There is no job to {verb}.", f"没有可以 {verb} 的任务。"),
        Text(
            "`workhorse batch status` shows all of them.", "用 `workhorse batch status` 查看全部。"
        ),
        exit_code=EXIT_FAILED,
    )


def usage(what: Text, next_step: Text) -> AppError:
    """A mistake on the command line."""
    return AppError(what, next_step, exit_code=EXIT_USAGE)
