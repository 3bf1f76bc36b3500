"""Lines of a terminal: Chinese breaks at any character, English at blanks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from workhorse.cli.wrap import wrapped

CHINESE = (
    "GDDR 显存的校验位占用十六分之一容量，关闭后可放下更大的模型（需重启）；位翻转将无法察觉。"
)


def test_chinese_fills_its_lines() -> None:
    lines = wrapped(CHINESE, 30)
    assert all(25 <= cell_len(line) <= 30 for line in lines[:-1])


def test_english_breaks_at_blanks() -> None:
    assert wrapped("one two three", 8) == ["one two", "three"]
    assert wrapped("a\n\nb", 8) == ["a", "", "b"]
    assert wrapped("", 8) == [""]


@pytest.mark.parametrize("width", range(12, 40))
def test_no_line_begins_with_punctuation(width: int) -> None:
    lines = wrapped(CHINESE, width)
    assert not [line for line in lines if line[0] in "，。；）"]
    assert not [line for line in lines if line[-1] == "（"]


def test_a_word_that_is_too_long_stays_whole() -> None:
    assert wrapped("see kernel.numa_balancing now", 10) == ["see", "kernel.numa_balancing", "now"]


@given(st.text(alphabet="ab ，。（显存x\n", max_size=80), st.integers(8, 40))
def test_nothing_is_lost_but_blanks(words: str, width: int) -> None:
    lines = wrapped(words, width)
    assert "".join("".join(lines).split()) == "".join(words.split())
