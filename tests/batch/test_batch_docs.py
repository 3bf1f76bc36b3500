"""docs/batch*.md: its commands can be typed, its job file is one, both languages show the same."""

import re
import shlex
from pathlib import Path

import pytest

from workhorse.batch.job_file import Words, job_of, order_of
from workhorse.batch.template_files import find_template
from workhorse.cli import VERBS, build_parser
from workhorse.cli.batch import VERBS as WORDS

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ("batch.md", "batch.zh.md")


def blocks(page: str, language: str) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES)
def test_every_command_can_be_typed(page: str) -> None:
    lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
    assert len(lines) > 8
    for line in lines:
        program, verb, *_ = words = shlex.split(line)
        assert program == "workhorse"
        assert verb in VERBS
        args = build_parser("en", only=verb).parse_args(words[1:])
        if verb == "batch" and args.job not in WORDS and not args.job.endswith(".toml"):
            assert find_template(args.template, Path("none")), line


@pytest.mark.parametrize("page", PAGES)
def test_the_job_file_is_one(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = blocks(page, "toml")
    (tmp_path / "papers").mkdir()
    (tmp_path / "night.toml").write_text(block, encoding="utf-8")
    order = order_of(Path("night.toml"), Words())
    job = job_of(order, find_template("summary-short", tmp_path), url="http://127.0.0.1:8080")
    assert (job.form, job.options["words"], len(job.pace.windows)) == ("csv", 40, 1)


def test_both_languages_show_the_same() -> None:
    for language in ("sh", "toml"):
        assert blocks(PAGES[0], language) == blocks(PAGES[1], language)
    counts = [
        [(DOCS / page).read_text(encoding="utf-8").count(mark) for mark in ("\n## ", "\n|", "\n- ")]
        for page in PAGES
    ]
    assert counts[0] == counts[1]
