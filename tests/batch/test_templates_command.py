"""`workhorse templates`: what there is, how it looks, one of one's own; and the page about it."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from workhorse.batch.tasks import checked
from workhorse.batch.template_files import find_template, settle_options, template_names
from workhorse.cli import main
from workhorse.errors import EXIT_FAILED, EXIT_GOOD, EXIT_USAGE

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the user's own templates."""
    monkeypatch.setenv("WORKHORSE_HOME", str(tmp_path))
    return tmp_path / "templates"


@pytest.mark.parametrize(
    ("language", "parts"),
    [
        ("en", ["summary-short", "words=60", "labels (required)", "as JSON"]),
        ("zh", ["summary-short", "words=60", "labels (必填)", "内置", "要点列表"]),
    ],
)
def test_the_list_tells_names_options_and_what_each_does(
    language: str, parts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["templates", "list", "--lang", language]) == EXIT_GOOD
    out = capsys.readouterr().out
    assert [part for part in parts if part not in out] == []


def test_a_copy_is_the_users_own_and_comes_first(
    own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["templates", "new", "entities", "--from", "summary-long"]) == EXIT_GOOD
    assert capsys.readouterr().out == f"{own / 'entities.toml'}\n"
    assert main(["templates", "show", "entities"]) == EXIT_GOOD
    shown = capsys.readouterr().out
    assert tomllib.loads(shown)["task"] == "summary"
    assert shown == (own / "entities.toml").read_text(encoding="utf-8")
    assert main(["templates", "list", "--json"]) == EXIT_GOOD
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["entities"]["own"]
    assert not rows["translate"]["own"]
    assert rows["entities"]["options"]["words"]["default"] == 300


def test_one_that_is_there_is_not_written_over(
    own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["templates", "new", "mine"]) == EXIT_GOOD
    (own / "mine.toml").write_text("edited", encoding="utf-8")
    assert main(["templates", "new", "mine"]) == EXIT_FAILED
    assert (own / "mine.toml").read_text(encoding="utf-8") == "edited"
    assert "already" in capsys.readouterr().err


def test_one_that_cannot_be_used_is_listed_with_the_reason(
    own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own.mkdir()
    (own / "bad.toml").write_text("name = bad\n", encoding="utf-8")
    (own / "other.toml").write_bytes(b"\xff\xfe\x00")
    definition = find_template("translate", own).definition
    (own / "renamed.toml").write_text(definition, encoding="utf-8")
    assert main(["templates", "list", "--json"]) == EXIT_GOOD
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert "line 1" in rows["bad"]["error"]
    assert "UTF-8" in rows["other"]["error"]
    assert "translate" in rows["renamed"]["error"]
    assert "error" not in rows["translate"]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["show"], "NAME"),
        (["new"], "NAME"),
        (["list", "entities"], "NAME"),
        (["show", "entities", "--from", "translate"], "--from"),
        (["show", "entitys"], "entities"),
        (["new", "../mine"], "../mine"),
        (["new", "mine", "--from", "none"], "none"),
        (["show", "none/mine.toml"], "none/mine.toml"),
        (["show", "/dev/null"], "/dev/null"),
    ],
)
def test_a_mistake_is_told(words: list[str], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["templates", *words]) == EXIT_USAGE
    assert part in capsys.readouterr().err


@pytest.mark.parametrize("page", ["templates.md", "templates.zh.md"])
def test_the_page_shows_what_works_and_names_all(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    template, job = re.findall(r"^```toml\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    assert checked(template, page).name == "minutes"
    order = tomllib.loads(job)
    settle_options(find_template(order["template"], Path("none")).template, order["options"], DOCS)
    names = template_names(Path("none"))
    assert {name for name in names if f"`{name}`" not in text} == set()
