"""A document of any length is summed up whole: every part of it is read, nothing is cut off."""

import re

import pytest
from task_tools import Means, job_of, result_of, tokens_of

from workhorse.batch.item import Reason
from workhorse.batch.task import ItemFailed
from workhorse.batch.tasks.summary import grouped

WORDS = [f"word{n}" for n in range(20_000)]


def paragraphs(words: int) -> str:
    return "\n\n".join(" ".join(WORDS[n : n + 40]) + "." for n in range(0, words, 40))


def first_words(prompt: str) -> str:
    """A summary that tells what it was made of: the first and the last of its words."""
    found = re.findall(r"word\d+", prompt)
    return f"From {found[0]} to {found[-1]}."


async def test_what_fits_is_asked_about_at_once() -> None:
    means = Means(first_words)
    result = await result_of(job_of("summary-short"), paragraphs(200), means)
    assert result.text == "From word0 to word199."
    assert result.notes == ()
    assert list(means.requests) == ["whole"]


@pytest.mark.parametrize("context_tokens", [1024, 4096, 32768])
@pytest.mark.parametrize("n_words", [2_000, 20_000])
async def test_every_word_is_read_whatever_the_context(context_tokens: int, n_words: int) -> None:
    means = Means(first_words, context_tokens)
    text = paragraphs(n_words)
    result = await result_of(job_of("summary-short"), text, means)
    parts = [
        said for step, said in zip(means.requests, means.prompts(), strict=True) if "part" in step
    ]
    read = re.findall(r"word\d+", "\n".join(parts or means.prompts()))
    assert read == WORDS[:n_words]
    assert result.text is not None
    assert result.text.startswith("From word0 to ")
    # One count for the text and one a piece, and no more requests than the context asks for.
    assert len(means.counted) <= 2 * len(parts) + 8
    asked_at_once = min(6000, context_tokens / 2)  # the template's piece_tokens
    assert len(parts) <= 2.5 * tokens_of(text) / asked_at_once + 1


async def test_as_many_levels_as_it_takes() -> None:
    means = Means(lambda prompt: first_words(prompt) + " and more" * 60, context_tokens=1024)
    result = await result_of(job_of("summary-short"), paragraphs(20_000), means)
    levels = {step.split(".")[0] for step in means.requests if step.startswith("merge")}
    assert len(levels) >= 3
    assert result.text is not None
    assert result.text.startswith("From word0 to word")


async def test_all_requests_begin_alike_and_end_with_the_document() -> None:
    means = Means(first_words, context_tokens=1024)
    job = job_of("summary-short")
    for text in (paragraphs(3_000), paragraphs(100)):
        means.requests.clear()
        await result_of(job, text, means)
        bodies = [request.body for request in means.requests.values()]
        assert {body["messages"][0]["content"] for body in bodies} == {
            bodies[0]["messages"][0]["content"]
        }
        for step, prompt in zip(means.requests, means.prompts(), strict=True):
            if "part" in step or step == "whole":
                assert prompt.rstrip(".").endswith(re.findall(r"word\d+", prompt)[-1])


async def test_an_answer_that_is_cut_off_is_asked_for_shorter() -> None:
    asked: list[str] = []

    def says(prompt: str) -> tuple[str, str]:
        asked.append(prompt)
        return ("It goes on and", "length") if "60 words" in prompt else ("Short.", "stop")

    result = await result_of(job_of("summary-short"), "A text.", Means(says))
    assert result.text == "Short."
    assert "at most 30 words" in asked[1]


@pytest.mark.parametrize(("said", "part"), [(("on and on", "length"), "cut off"), ("", "empty")])
async def test_what_never_becomes_a_whole_answer_is_no_result(
    said: str | tuple[str, str], part: str
) -> None:
    with pytest.raises(ItemFailed) as failed:
        await result_of(job_of("summary-short"), "A text.", Means(lambda _: said))
    assert failed.value.reason.cause == "not valid"
    assert part in failed.value.reason.seen


@pytest.mark.parametrize("text", ["", "  \n\n \t"])
@pytest.mark.parametrize("template", ["summary-short", "entities", "translate"])
async def test_an_empty_document_is_told_and_asks_nothing(template: str, text: str) -> None:
    means = Means(lambda _: "x")
    with pytest.raises(ItemFailed) as failed:
        await result_of(job_of(template), text, means)
    assert failed.value.reason == Reason(
        cause="unreadable", seen="The document has no text.", seen_zh="文档中没有文字。"
    )
    assert means.requests == {}


async def test_a_context_that_holds_the_prompt_alone_is_told_with_its_figures() -> None:
    with pytest.raises(ItemFailed) as failed:
        await result_of(job_of("summary-short"), "A text.", Means(first_words, context_tokens=256))
    assert failed.value.reason.cause == "too long"
    assert "256" in failed.value.reason.seen


@pytest.mark.parametrize(
    "text",
    ["没有空格的中文" * 4000, "x=1;" * 12_000, "word0 " * 12_000, "👨\u200d👩\u200d👧" * 4000],
    ids=["chinese", "minified", "one paragraph", "emoji"],
)
async def test_texts_without_joints_are_read_whole(text: str) -> None:
    read: list[str] = []

    def says(prompt: str) -> str:
        read.append(prompt.partition("\n\nPart:\n")[2] or prompt.partition("这一部分：\n")[2])
        return "ok"

    await result_of(job_of("summary-short"), text, Means(says, context_tokens=2048))
    assert "".join("".join(read).split()) == "".join(text.split())


async def test_a_document_may_hold_what_looks_like_a_placeholder() -> None:
    means = Means(lambda _: "ok")
    await result_of(job_of("summary-short"), "Write {{words}} and {{text}}.", means)
    assert "Write {{words}} and {{text}}." in means.prompts()[0]
    assert "at most 60 words" in means.prompts()[0]


@pytest.mark.parametrize(
    ("language", "text", "part"),
    [
        ("auto", "风扇很吵。", "请用中文书写"),
        ("auto", "Le ventilateur est bruyant.", "Write in the language of the document"),
        ("en", "风扇很吵。", "Write in English"),
        ("zh", "The fan is loud.", "请用中文书写"),
    ],
)
async def test_the_language_is_the_documents_or_the_jobs(
    language: str, text: str, part: str
) -> None:
    means = Means(lambda _: "ok")
    await result_of(job_of("summary-short", language=language), text, means)
    (request,) = means.requests.values()
    assert part in request.body["messages"][0]["content"]


@pytest.mark.parametrize(
    ("tokens", "most", "groups"),
    [
        ([10, 10], 100, [(0, 2)]),
        ([40] * 5, 100, [(0, 2), (2, 4), (4, 5)]),
        ([90, 90, 90], 100, [(0, 2), (2, 3)]),  # two at least, or it would never end
        ([20] * 8, 100, [(0, 4), (4, 8)]),
    ],
)
def test_neighbours_are_merged_in_groups(
    tokens: list[int], most: int, groups: list[tuple[int, int]]
) -> None:
    assert grouped(tokens, most) == groups
