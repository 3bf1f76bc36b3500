"""Questions answered out of a folder of documents, with the places that the answers rest on."""

from functools import partial
from pathlib import Path

from workhorse.batch.job import Job
from workhorse.batch.retrieval.library import Library
from workhorse.batch.retrieval.reading import read_folder
from workhorse.batch.tasks.grounded import Grounded, Names
from workhorse.batch.tasks.kind import TaskKind
from workhorse.batch.tasks.wording import Wording
from workhorse.batch.template import Template
from workhorse.text import Text

_NAMES = Names("answer", "found", Text("The documents do not say.", "资料中没有相关内容。"))


def make(template: Template, job: Job) -> Grounded:
    """The task of a job; its folder is read when the first question comes."""
    wording = Wording(template, job)
    folder = Path(wording.options["documents"])
    return Grounded(wording, Library(partial(read_folder, folder)), _NAMES)


KIND = TaskKind(
    make=make,
    prompts={"answer": frozenset({"passages", "text"})},
    options=frozenset({"documents", "passages", "words"}),
)
