"""What a person may write wrong in a template is told with its place; options take their kind."""

from pathlib import Path
from typing import Any

import pytest

from workhorse.batch.tasks import checked
from workhorse.batch.template import check_options, fill, language_of
from workhorse.batch.template_files import SHIPPED, find_template, settle_options, template_names
from workhorse.errors import EXIT_USAGE, AppError

GOOD = """
name = "mine"
task = "summary"
[options.words]
default = 60
least = 10
[prompts.en]
system = "Be short. {{language}} {{words}}"
whole = "All: {{text}}"
part = "Part: {{text}}"
merge = "Together: {{text}}"
"""
SHIPPED_NAMES = template_names(Path("none"))


def test_a_template_of_one_language_and_few_lines_is_enough() -> None:
    template = checked(GOOD, "mine.toml")
    assert template.form == "jsonl"
    assert template.options["words"].kind == "integer"


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ('name = "mine"', "", "`name`"),
        ('name = "mine"', 'name = "no/way"', "`name`"),
        ('name = "mine"', 'name = "mine"\nnmae = 1', "`nmae`"),
        ('task = "summary"', 'task = "sumary"', "sumary"),
        ("default = 60", 'default = "60', "line"),
        ("default = 60", "default = 5", "`options.words`"),
        ("least = 10", "lest = 10", "options.words.lest"),
        ("[options.words]", "[options.Words]", "`options.Words`"),
        ("[options.words]", "[options.words]\nkind = 'labels'", "`options.words`"),
        ("{{words}}", "{{word}}", "{{word}}"),
        ("{{words}}", "{{text}}", "`prompts.en.system`"),
        ("All: {{text}}", "All:", "`prompts.en.whole`"),
        ('merge = "Together: {{text}}"', "", "`merge`"),
        ("[prompts.en]", "[prompts.en]\nwhloe = ''", "whloe"),
        ("[prompts.en]", "[prompts.fr]", "prompts"),
        ("[prompts.en]", "[prompts.en]\nsystem2 = 5", "prompts.en"),
        ("default = 60", "default = 60\nabout = 'words'", "`options.words.about`"),
        ("[prompts.en]", "[schema]\ntype = 'object'\n[prompts.en]", "`schema`"),
        ("[options.words]", "[request]\nmessages = []\n[options.words]", "`request.messages`"),
        ('task = "summary"', 'task = "extract"', "`schema`"),
        ('task = "summary"', 'task = "classify"', "`options.labels`"),
    ],
)
def test_a_mistake_is_told_with_its_place(old: str, new: str, part: str) -> None:
    assert old in GOOD
    with pytest.raises(AppError) as refused:
        checked(GOOD.replace(old, new), "mine.toml")
    error = refused.value
    assert error.exit_code == EXIT_USAGE
    for said in (error.what.en, error.what.zh):
        assert "mine.toml" in said
        assert part in said


@pytest.mark.parametrize("name", SHIPPED_NAMES)
def test_what_ships_is_whole_in_both_languages(name: str) -> None:
    template = find_template(name, Path("none")).template
    assert template.prompts.keys() == {"en", "zh"}
    told = [template.about, *(option.about for option in template.options.values())]
    assert all(about.en and about.zh and about.en != about.zh for about in told)


def test_what_the_issue_names_ships() -> None:
    assert {
        "summary-short",
        "summary-long",
        "summary-bullets",
        "entities",
        "classify",
        "translate",
    } <= set(SHIPPED_NAMES)


OPTIONS = """
name = "o"
task = "summary"
[options]
n = { default = 1, least = 1, most = 9 }
x = { default = 0.5 }
b = { default = false }
t = { default = "s", choices = ["s", "l"] }
l = { default = ["a"] }
labels = { kind = "labels", required = true }
[prompts.en]
system = "s"
whole = "{{text}}"
part = "{{text}}"
merge = "{{text}}"
"""


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, {"n": 1, "x": 0.5, "b": False, "t": "s", "l": ["a"]}),
        ({"n": "9", "x": "1e3", "b": "yes"}, {"n": 9, "x": 1000.0, "b": True}),
        ({"l": "one, two，三、四", "t": "l"}, {"l": ["one", "two", "三", "四"], "t": "l"}),
        ({"n": None}, {"n": 1}),
    ],
)
def test_options_are_taken_from_files_and_from_words(given: Any, found: Any) -> None:
    options = check_options(checked(OPTIONS, "o"), {"labels": "p,q", **given})
    assert options["labels"] == {"p": "", "q": ""}
    assert {name: options[name] for name in found} == found


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"nn": 1}, "`nn`"),
        ({"n": "many"}, "many"),
        ({"n": 10}, "10"),
        ({"n": True}, "true"),
        ({"n": 1.5}, "1.5"),
        ({"x": "nan"}, "nan"),
        ({"b": "perhaps"}, "perhaps"),
        ({"t": "m"}, "s, l"),
        ({"l": "a,a"}, "a,a"),
        ({"l": []}, "[]"),
        ({"labels": {"p": 1}}, "`labels`"),
        ({"labels": None}, "`labels`"),
    ],
)
def test_options_that_cannot_be_are_refused_with_the_value(given: Any, part: str) -> None:
    with pytest.raises(AppError) as refused:
        check_options(checked(OPTIONS, "o"), {"labels": ["p"], **given})
    assert part in refused.value.what.en
    assert part in refused.value.what.zh
    assert refused.value.exit_code == EXIT_USAGE


def test_a_slip_of_the_pen_is_recognised() -> None:
    with pytest.raises(AppError) as refused:
        check_options(checked(GOOD, "mine"), {"wrods": 3})
    assert "`words`" in refused.value.next_step.en


def test_files_of_options_are_found_from_the_jobs_folder(tmp_path: Path) -> None:
    template = find_template("extract", tmp_path).template
    (tmp_path / "form.json").write_text('{"type": "object"}', encoding="utf-8")
    assert settle_options(template, {"schema": "form.json"}, tmp_path)["schema"] == {
        "type": "object"
    }
    (tmp_path / "broken.json").write_text('{"type": ', encoding="utf-8")
    (tmp_path / "wrong.json").write_text('{"type": "thing"}', encoding="utf-8")
    (tmp_path / "list.json").write_text("[]", encoding="utf-8")
    for name in ("none.json", "broken.json", "wrong.json", "list.json", "."):
        with pytest.raises(AppError) as refused:
            settle_options(template, {"schema": name}, tmp_path)
        assert "schema" in refused.value.what.zh


def test_placeholders_are_filled_in_one_pass() -> None:
    values = {"text": "a {{words}} b {{text}}", "words": "5"}
    assert fill("{{ words }}: {{text}} {{other}}", values) == "5: a {{words}} b {{text}} {{other}}"


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("The fans are loud.", "en"),
        ("风扇很吵，请换用 PWM 风扇 A12x25。", "zh"),
        ("Please see 附件 for the words that you asked about.", "en"),
        ("ファンがうるさいので交換してください。", "en"),
        ("Les ventilateurs sont bruyants.", "en"),
        ("12345", "en"),
        ("", "en"),
    ],
)
def test_the_prompts_language_is_the_documents(text: str, language: str) -> None:
    assert language_of(text) == language


def test_shipped_files_are_named_as_their_templates() -> None:
    names = {path.stem for path in SHIPPED.glob("*.toml")}
    assert names == set(SHIPPED_NAMES)
