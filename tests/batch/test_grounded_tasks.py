"""Answers and replies rest on passages that were given, or say that there are none."""

import json
import re
from pathlib import Path

import pytest
from task_tools import Means, Says, job_of, result_of

from workhorse.batch.job import Job
from workhorse.batch.task import ItemFailed

HANDBOOK = {
    "fans.md": "# Fans\n\n## Replacing\n\nPull the fan out. It takes 5 minutes.\n",
    "power.md": "# Power\n\nThe supply has 750 watts.\n",
    "风扇.md": "# 风扇\n\n更换风扇需要 5 分钟。\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "handbook"
    folder.mkdir()
    for name, text in HANDBOOK.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def knowledge(tmp_path: Path) -> Path:
    path = tmp_path / "faq.csv"
    path.write_text(
        "question,answer\nHow do I return a fan?,Send it back within 30 days.\n"
        "Where is my invoice?,It comes by mail.\n",
        encoding="utf-8",
    )
    return path


def says(answer: str, sources: list[int]) -> Says:
    return lambda _: json.dumps({"sources": sources, "answer": answer})


def asking(folder: Path, **options: object) -> Job:
    return job_of("answer", {"documents": str(folder), **options})


async def test_an_answer_names_its_sources(folder: Path) -> None:
    means = Means(says("Pull it out.", [1, 1]))
    result = await result_of(asking(folder), "How is a fan replaced?", means)
    assert result.value == {
        "answer": "Pull it out.",
        "found": True,
        "sources": ["fans.md › Fans › Replacing"],
    }
    assert result.notes == ()
    (prompt,) = means.prompts()
    assert "[1] fans.md › Fans › Replacing\nPull the fan out." in prompt
    assert prompt.endswith("How is a fan replaced?")
    schema = means.requests["answer"].body["response_format"]["json_schema"]["schema"]
    assert schema["properties"]["sources"]["items"]["enum"] == list(
        range(1, len(re.findall(r"^\[\d+\] ", prompt, re.MULTILINE)) + 1)
    )


async def test_a_question_in_chinese_is_answered_from_the_same_folder(folder: Path) -> None:
    means = Means(says("5 分钟。", [1]))
    result = await result_of(asking(folder), "更换风扇要多久？", means)
    assert result.value["sources"] == ["风扇.md › 风扇"]
    assert "问题：" in means.prompts()[0]


async def test_no_sources_is_no_answer(folder: Path) -> None:
    result = await result_of(asking(folder), "Is the fan red?", Means(says("Yes, red.", [])))
    assert result.value == {"answer": "The documents do not say.", "found": False, "sources": []}


async def test_what_no_document_is_about_is_not_even_asked(folder: Path) -> None:
    means = Means(says("Yes.", [1]))
    result = await result_of(asking(folder), "Xylophone?", means)
    assert result.value["found"] is False
    assert means.asked == 0


@pytest.mark.parametrize(
    "said", ['{"sources": [9], "answer": "Yes."}', '{"sources": [1], "answer": " "}', "Yes."]
)
async def test_a_source_that_was_not_given_is_refused(said: str, folder: Path) -> None:
    means = Means(lambda _: said)
    with pytest.raises(ItemFailed) as failed:
        await result_of(asking(folder), "How is a fan replaced?", means)
    assert failed.value.reason.cause == "not valid"
    assert means.asked == means.attempts


async def test_figures_that_no_passage_has_are_told(folder: Path) -> None:
    means = Means(says("In 5 minutes, for 49.90 and 750 W.", [1]))
    result = await result_of(asking(folder), "How long to replace a fan of power 750?", means)
    assert result.notes == ("check these figures, which no passage has: 49.90",)


async def test_passages_are_given_as_far_as_they_fit(folder: Path) -> None:
    for n in range(30):
        (folder / f"more{n}.txt").write_text(f"fan {n} " * 100, encoding="utf-8")
    means = Means(says("Yes.", [1]), context_tokens=1024)
    await result_of(asking(folder, passages=30), "Which fan?", means)
    assert 1 <= means.prompts()[0].count("\n[") <= 4
    with pytest.raises(ItemFailed) as failed:
        await result_of(asking(folder), "Which fan? " * 400, Means(lambda _: "", 1024))
    assert failed.value.reason.cause == "too long"


async def test_documents_that_could_not_be_read_are_told(folder: Path) -> None:
    (folder / "old.doc").write_bytes(b"\xd0\xcf\x11\xe0")
    result = await result_of(asking(folder), "How is a fan replaced?", Means(says("So.", [1])))
    assert result.notes == ("1 documents could not be read: old.doc",)


async def test_a_reply_rests_on_an_entry(knowledge: Path) -> None:
    job = job_of("customer-reply", {"knowledge": str(knowledge), "signature": "Fans Ltd"})
    means = Means(says("Please send it back.\nFans Ltd", [1]))
    result = await result_of(job, "Hello, I want to return my fan.", means)
    assert result.value == {
        "reply": "Please send it back.\nFans Ltd",
        "grounded": True,
        "sources": ["faq.csv row 2 › How do I return a fan?"],
    }
    assert "Fans Ltd" in str(means.requests["answer"].body["messages"][0])


async def test_a_reply_without_ground_says_so(knowledge: Path) -> None:
    job = job_of("customer-reply", {"knowledge": str(knowledge)})
    result = await result_of(job, "Do you sell umbrellas?", Means(says("Sure!", [])))
    assert result.value["grounded"] is False
    assert result.value["reply"].startswith("No draft: ")
    assert result.value["sources"] == []
