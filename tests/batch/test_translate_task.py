"""A translation has the document's structure, whatever the model makes of it."""

import re

import pytest
from task_tools import Means, job_of, result_of

from workhorse.batch.blocks import blocks_of
from workhorse.batch.task import ItemFailed

DOCUMENT = """# Fans

First stop it. Then clean it.

- brush
- cloth

```sh
echo "not a word"
```

| part | price |
|------|-------|
| fan  | 12    |

Done, finally.
"""


def asked_for(prompt: str) -> str:
    return re.split(r":\n\n|：\n\n", prompt, maxsplit=1)[1]


def capitals(prompt: str) -> str:
    """A faithful translation: every word in capitals."""
    return asked_for(prompt).upper()


async def test_the_form_stays_and_code_is_not_sent() -> None:
    means = Means(capitals)
    result = await result_of(job_of("translate", {"to": "French"}), DOCUMENT, means)
    assert result.text == DOCUMENT.upper().replace(
        'ECHO "NOT A WORD"', 'echo "not a word"'
    ).replace("```SH", "```sh")
    assert result.file
    assert result.notes == ()
    assert not any("echo" in prompt for prompt in means.prompts())
    assert len(means.requests) == 2  # before the code and after it


async def test_a_model_that_joins_paragraphs_is_asked_for_each() -> None:
    result = await result_of(
        job_of("translate", {"to": "French"}),
        DOCUMENT,
        Means(lambda prompt: " ".join(capitals(prompt).split())),
    )
    assert result.text is not None
    before = [(block.before, bool(block.words)) for block in blocks_of(DOCUMENT)]
    after = [(block.before, bool(block.words)) for block in blocks_of(result.text)]
    assert after == before
    assert "- BRUSH\n- CLOTH\n" in result.text


async def test_what_cannot_be_used_stays_and_is_told() -> None:
    def says(prompt: str) -> str | tuple[str, str]:
        words = asked_for(prompt)
        if "|" in words:
            return "cells are gone"
        return ("on and on", "length") if words.startswith("Bad") else words.upper()

    rows = "| part | price |\n|---|---|\n| fan | good |\n\n"
    good = "This is translated well. " * 6
    result = await result_of(
        job_of("translate", {"to": "French"}), f"{rows}Bad one.\n\n# Bad\n\n{good}\n", Means(says)
    )
    assert result.text == f"{rows}Bad one.\n\n# Bad\n\n{good.upper()}\n"
    assert result.notes == ("left as they were, for no answer could be used: 4 passages",)


@pytest.mark.parametrize("context_tokens", [1024, 8192])
async def test_a_long_document_is_translated_in_order_and_whole(context_tokens: int) -> None:
    sentences = [f"Sentence number {n} is here." for n in range(900)]
    one = " ".join(sentences)
    document = f"# Title\n\n{one}\n\n\n  Indented a little.\n\n{one}"
    means = Means(capitals, context_tokens)
    result = await result_of(job_of("translate", {"to": "French"}), document, means)
    assert result.text == document.upper()
    assert all(len(asked_for(prompt)) < 2400 for prompt in means.prompts())
    assert len(means.counted) <= len(means.requests) + 8


async def test_text_without_spaces_is_translated_whole() -> None:
    text = "没有空格的一段文字，只有逗号，没有句号" * 300
    means = Means(asked_for, context_tokens=2048)
    result = await result_of(job_of("translate"), text, means)
    assert result.text == text
    assert "English" not in means.prompts()[0]
    assert "翻译成英文" in means.prompts()[0]
    assert result.notes  # it is still Chinese: that is told


async def test_a_cut_answer_is_asked_for_in_halves() -> None:
    def says(prompt: str) -> str | tuple[str, str]:
        return capitals(prompt) if len(asked_for(prompt)) < 300 else (capitals(prompt), "length")

    text = "This goes on for a while. " * 40
    result = await result_of(job_of("translate", {"to": "French"}), text, Means(says))
    assert result.text == text.upper()


@pytest.mark.parametrize("said", [("on and on", "length"), ""])
async def test_a_document_of_which_nothing_is_translated_is_no_result(
    said: str | tuple[str, str],
) -> None:
    with pytest.raises(ItemFailed) as failed:
        await result_of(job_of("translate"), "Short words.", Means(lambda _: said))
    assert failed.value.reason.cause == "not valid"


async def test_chinese_into_chinese_is_not_asked_for() -> None:
    means = Means(capitals)
    result = await result_of(job_of("translate", {"to": "zh"}), "已经是中文了。", means)
    assert result.text == "已经是中文了。"
    assert means.requests == {}
    assert result.notes


async def test_a_fence_round_the_answer_is_taken_off() -> None:
    means = Means(lambda prompt: f"```\n{capitals(prompt)}\n```")
    result = await result_of(job_of("translate", {"to": "French"}), "A few words.", means)
    assert result.text == "A FEW WORDS."


async def test_a_heading_stays_one_line() -> None:
    means = Means(lambda prompt: f"{capitals(prompt)}\nThat was French.")
    result = await result_of(job_of("translate", {"to": "French"}), "## Fans\n", means)
    assert result.text == "## FANS That was French.\n"
