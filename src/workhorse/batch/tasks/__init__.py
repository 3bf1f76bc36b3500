"""The ways of working that templates name: each module turns an item into its result."""

from importlib import import_module

from workhorse.batch.job import Job
from workhorse.batch.task import Task
from workhorse.batch.tasks.kind import TaskKind
from workhorse.batch.template import Template, read_template, unusable
from workhorse.text import Text

# Each with the module that has its `KIND`; loaded when a template names it.
TASKS: dict[str, str] = {
    "answer": "answer",
    "classify": "classify",
    "comments": "comments",
    "extract": "extract",
    "reply": "reply",
    "summary": "summary",
    "translate": "translate",
}


def checked(definition: str, where: str) -> Template:
    """The template in a TOML text, fit for its task; AppError tells the place of a mistake."""
    template = read_template(definition, where)
    kind_of(template, where).check(template, where)
    return template


def kind_of(template: Template, where: str) -> TaskKind:
    """The way of working that a template names."""
    module = TASKS.get(template.task)
    if module is None:
        known = ", ".join(sorted(TASKS))
        raise unusable(
            where,
            Text(
                f"there is no task `{template.task}`; there are {known}",
                f"没有任务 `{template.task}`；可用：{known}",
            ),
        )
    kind: TaskKind = import_module(f"{__name__}.{module}").KIND
    return kind


def make_task(job: Job) -> Task:
    """What a job does with each of its items, by the template that it was ordered with.

    ValueError for a job of requests, which are sent as they are.
    """
    if job.definition is None:
        raise ValueError(job.template)
    template = checked(job.definition, job.template)
    return kind_of(template, job.template).make(template, job)
