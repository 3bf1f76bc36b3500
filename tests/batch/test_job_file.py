"""Orders: job files, words on the command line, and every mistake in either."""

from pathlib import Path

import pytest

from workhorse.batch.job import Pace
from workhorse.batch.job_file import Words, job_of, order_of
from workhorse.batch.template_files import find_template
from workhorse.batch.windows import window_of
from workhorse.errors import EXIT_USAGE, AppError

WHOLE = """
input = "papers"
template = "summary-short"
output = "out/papers.csv"
language = "zh"
url = "http://127.0.0.1:9000"
model = "big"
attempts = 5
accept = ["*.md"]

[options]
words = 40

[pace]
streams = 6
yield_to_chat = true
windows = ["20:00-07:00"]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job file in a folder with its documents; the current folder is another one."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    jobs = tmp_path / "jobs"
    (jobs / "papers").mkdir(parents=True)
    (jobs / "papers" / "a.md").write_text("One.")
    (jobs / "job.toml").write_text(WHOLE)
    return jobs


def refused(path: Path, words: Words | None = None) -> str:
    with pytest.raises(AppError) as caught:
        order_of(path, words or Words())
    assert caught.value.exit_code == EXIT_USAGE
    assert caught.value.what.zh
    return str(caught.value)


def test_a_job_file_is_a_whole_order(folder: Path) -> None:
    order = order_of(folder / "job.toml", Words())
    job = job_of(order, find_template(order.template or "", folder), url="http://127.0.0.1:9000")
    assert (job.template, job.language, job.model, job.attempts) == (
        "summary-short", "zh", "big", 5,
    )  # fmt: skip
    assert job.options["words"] == 40
    assert job.pace == Pace(streams=6, yield_to_chat=True, windows=(window_of("20:00-07:00"),))
    assert order.accept == ("*.md",)
    # Paths are from the job file's folder on; the output's ending tells its form.
    assert (job.input, job.output, job.form) == (
        str(folder / "papers"), str(folder / "out" / "papers.csv"), "csv",
    )  # fmt: skip


def test_the_words_win_and_their_paths_are_from_here_on(folder: Path) -> None:
    words = Words(
        output=Path("mine.jsonl"),
        language="en",
        options={"words": "25"},
        streams=2,
        windows=(window_of("01:00-02:00"),),
        url="http://127.0.0.1:1",
        attempts=1,
        form="folder",
    )
    order = order_of(folder / "job.toml", words)
    job = job_of(order, find_template("summary-short", folder), url=order.url or "")
    assert (job.language, job.form, job.attempts, job.url) == (
        "en", "folder", 1, "http://127.0.0.1:1",
    )  # fmt: skip
    assert job.options["words"] == 25
    assert job.output == str(Path.cwd() / "mine.jsonl")
    assert job.pace.streams == 2
    assert job.pace.windows == (window_of("01:00-02:00"),)


def test_a_template_of_ones_own_beside_the_job_file(folder: Path) -> None:
    shipped = find_template("summary-short", folder).definition
    (folder / "mine.toml").write_text(shipped.replace("summary-short", "mine"))
    (folder / "job.toml").write_text('input = "papers"\ntemplate = "mine.toml"\n')
    order = order_of(folder / "job.toml", Words())
    found = find_template(order.template or "", folder / "none")
    assert found.template.name == "mine"
    job = job_of(order, found, url="http://127.0.0.1:1")
    assert job.output == str(Path.cwd() / "papers.mine.jsonl")


def test_documents_without_a_job_file(folder: Path) -> None:
    order = order_of(folder / "papers", Words(template="summary-short"))
    job = job_of(order, find_template("summary-short", folder), url="http://127.0.0.1:1")
    assert job.output == str(Path.cwd() / "papers.summary-short.jsonl")
    assert job.attempts == 3


def test_requests_have_no_template_and_no_options(folder: Path) -> None:
    requests = folder / "asks.jsonl"
    requests.write_text("{}\n")
    job = job_of(order_of(requests, Words()), None, url="http://127.0.0.1:1")
    assert (job.template, job.definition, job.form) == ("request", None, "openai")
    with pytest.raises(AppError, match="no template"):
        job_of(order_of(requests, Words(options={"words": "3"})), None, url="http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("streems = 3", "streems"),
        ("pace = { streems = 3 }", "streems"),
        ('pace = { windows = ["20-7"] }', "'20-7'"),
        ("pace = { streams = 0 }", "streams"),
        ("attempts = 0", "attempts"),
        ('language = "fr"', "language"),
        ('form = "pdf"', "form"),
        ("options = 3", "options"),
        ("= 3", "job.toml"),
    ],
)
def test_each_mistake_in_a_job_file_is_named(folder: Path, line: str, said: str) -> None:
    (folder / "job.toml").write_text(f'input = "papers"\n{line}\n')
    assert said in refused(folder / "job.toml")


@pytest.mark.parametrize(
    "content", [b"\xff\xfe", b"input = 3", b"", b"x = " + b"[" * 100_000, b" " * (1 << 21)]
)
def test_what_is_no_job_file_is_one_error(folder: Path, content: bytes) -> None:
    (folder / "job.toml").write_bytes(content)
    assert "job.toml" in refused(folder / "job.toml")


def test_documents_that_are_not_there(folder: Path) -> None:
    assert "There is no" in refused(folder / "nothing")
    (folder / "job.toml").write_text('input = "gone"\n')
    assert "gone" in refused(folder / "job.toml")


def test_results_are_not_written_over_what_is_there(folder: Path) -> None:
    taken = folder / "taken.jsonl"
    taken.write_text("mine")
    order = order_of(folder / "papers", Words(output=taken))
    found = find_template("summary-short", folder)
    with pytest.raises(AppError, match="taken") as caught:
        job_of(order, found, url="http://127.0.0.1:1")
    assert caught.value.exit_code == EXIT_USAGE
    assert job_of(order, found, url="http://127.0.0.1:1", overwrite=True).output == str(taken)
    assert taken.read_text() == "mine"


def test_an_option_that_the_template_does_not_have(folder: Path) -> None:
    order = order_of(folder / "papers", Words(options={"wrods": "3"}))
    with pytest.raises(AppError, match="wrods"):
        job_of(order, find_template("summary-short", folder), url="http://127.0.0.1:1")


def test_an_ending_that_cannot_be_written_is_refused(folder: Path) -> None:
    words = Words(template="summary-short", output=Path("q.docx"))
    found = find_template("summary-short", folder)
    with pytest.raises(AppError, match=r"The ending \.docx of q\.docx"):
        job_of(order_of(folder / "papers", words), found, url="http://127.0.0.1:1")
    plain = Words(template="summary-short", output=Path("q"))
    job = job_of(order_of(folder / "papers", plain), found, url="http://127.0.0.1:1")
    assert job.form == "jsonl"
