"""Drafts of replies to customers out of a knowledge file, with the entries that they rest on."""

from functools import partial
from pathlib import Path

from workhorse.batch.job import Job
from workhorse.batch.retrieval.library import Library
from workhorse.batch.retrieval.reading import read_knowledge
from workhorse.batch.tasks.grounded import Grounded, Names
from workhorse.batch.tasks.kind import TaskKind
from workhorse.batch.tasks.wording import Wording
from workhorse.batch.template import Template
from workhorse.text import Text

_NAMES = Names(
    "reply",
    "grounded",
    Text(
        "No draft: the knowledge file has nothing on this. A person has to answer it.",
        "无草稿：知识库中没有相关内容，需要人工回复。",
    ),
)


def make(template: Template, job: Job) -> Grounded:
    """The task of a job; its knowledge is read when the first message comes."""
    wording = Wording(template, job)
    knowledge = Path(wording.options["knowledge"])
    return Grounded(wording, Library(partial(read_knowledge, knowledge)), _NAMES)


KIND = TaskKind(
    make=make,
    prompts={"answer": frozenset({"passages", "text"})},
    options=frozenset({"knowledge", "passages", "words"}),
)
