"""Blocks joined are the document; code, addresses and figures are no words to translate."""

from hypothesis import given
from hypothesis import strategies as st

from workhorse.batch.blocks import blocks_of, lines_of, same_form

DOCUMENT = """---
title: Fans
date: 2026-11-02
---

# How to clean fans

First stop the machine.
Then take it out.

- brush
- cloth

```sh
rm -rf dust   # not a heading

echo done
```

    systemctl stop fans; echo $?

| part | price |
|------|-------|
| fan  | 12    |

https://example.invalid/fans

1234.56

> Ask first.
"""


@given(st.text(alphabet="ab# -`|>.\n\r\t 中。1:/", max_size=300))
def test_nothing_is_lost(text: str) -> None:
    assert "".join(block.text for block in blocks_of(text)) == text
    assert "".join(block.text for block in lines_of(text)) == text


def test_what_has_words_is_translated_and_all_else_stays() -> None:
    words = [block.words for block in blocks_of(DOCUMENT) if block.words]
    assert words == [
        "How to clean fans",
        "First stop the machine.\nThen take it out.",
        "- brush\n- cloth",
        "| part | price |\n|------|-------|\n| fan  | 12    |",
        "Ask first.",
    ]


def test_marks_of_single_lines_stay() -> None:
    marks = [
        block.before for block in blocks_of("## Two\n\n  3. Three\n\n> - quoted") if block.words
    ]
    assert marks == ["## ", "  3. ", "> - "]


def test_a_rule_at_the_beginning_is_no_front_matter() -> None:
    text = "---\nA sentence that is no field.\n\n---\nAnother.\n"
    assert any("A sentence" in block.words for block in blocks_of(text))


def test_lines_keep_their_marks_and_ends() -> None:
    found = lines_of("- one\r\n- 22\n|---|\n* two")
    assert [(line.before, line.words, line.after) for line in found] == [
        ("- ", "one", "\r\n"),
        ("- 22\n", "", ""),
        ("|---|\n", "", ""),
        ("* ", "two", ""),
    ]


def test_a_translation_is_compared_by_its_form() -> None:
    asked = "# A\n\n- b\n- c\n\n| d | e |\n|---|---|\n\nf"
    assert same_form(asked, "# 甲\n\n- 乙\n- 丙\n\n| 丁 | 戊 |\n|---|---|\n\n己")
    for lost in (
        "# 甲\n\n- 乙 丙\n\n| 丁 | 戊 |\n|---|---|\n\n己",  # a list item
        "# 甲\n\n- 乙\n- 丙\n\n| 丁 戊 |\n|---|---|\n\n己",  # a cell
        "甲\n\n- 乙\n- 丙\n\n| 丁 | 戊 |\n|---|---|\n\n己",  # the heading's mark
        "# 甲\n\n- 乙\n- 丙\n\n| 丁 | 戊 |\n|---|---|\n己",  # a paragraph
    ):
        assert not same_form(asked, lost)
