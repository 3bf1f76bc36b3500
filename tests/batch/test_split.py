"""Pieces joined are the text, no piece is too long, and the cuts lie at the joints."""

from hypothesis import given
from hypothesis import strategies as st

from workhorse.batch.split import split

SIGNS = st.text(alphabet="ab .\n`|#-，。\u0301\u200d👨🏽\r\t中第章", max_size=400)


@given(SIGNS, st.integers(min_value=1, max_value=60))
def test_nothing_is_lost_and_nothing_is_too_long(text: str, most: int) -> None:
    pieces = split(text, most)
    assert "".join(pieces) == text
    assert all(0 < len(piece) <= most for piece in pieces)


def test_pieces_end_where_paragraphs_end() -> None:
    paragraphs = [f"Paragraph {n}. " + "It says something. " * 8 for n in range(12)]
    pieces = split("\n\n".join(paragraphs), 700)
    assert all(piece.startswith("Paragraph") for piece in pieces)


def test_a_heading_begins_a_piece_though_a_paragraph_ends_later() -> None:
    text = "word " * 110 + "\n\n# Two\n\n" + "more. " * 18 + "\n\n" + "last " * 60
    first, second = split(text, 750)[:2]
    assert second.startswith("# Two")
    assert first.endswith("\n\n")


def test_a_hard_wrapped_sentence_is_not_torn() -> None:
    line = "so that it goes on over the end of\nthe line and stops only here. "
    assert all(piece.rstrip().endswith(".") for piece in split(line * 40, 500))


def test_chinese_is_cut_after_sentences() -> None:
    pieces = split("没有空格的句子，中间有逗号。还有一句！" * 60, 150)
    assert all(piece[-1] in "。！" for piece in pieces)


def test_a_code_block_stays_whole_where_it_can() -> None:
    code = "```python\n" + "x = 1\n\n" * 20 + "```\n"
    pieces = split("Some words. " * 30 + "\n\n" + code + "\n" + "More words. " * 30, 420)
    assert [piece for piece in pieces if code in piece]


def test_a_code_block_longer_than_a_piece_is_cut_between_its_lines() -> None:
    pieces = split("```\n" + "some_call(argument)\n" * 100 + "```\n", 300)
    assert all(piece.endswith("\n") for piece in pieces)


def test_a_table_is_cut_between_its_rows() -> None:
    table = "| name | what it is. It is long |\n|---|---|\n" + "| a b | c. d e. f |\n" * 80
    assert all(piece.endswith("|\n") for piece in split(table, 300))


def test_what_has_no_joint_is_cut_evenly() -> None:
    lengths = [len(piece) for piece in split("x" * 10_000, 3000)]
    assert sum(lengths) == 10_000
    assert max(lengths) <= 3000


def test_a_character_of_several_code_points_stays_whole() -> None:
    family = "👨\u200d👩\u200d👧"
    assert all(piece.replace(family, "") == "" for piece in split(family * 200, 32))
    assert all(not piece.startswith("\u0301") for piece in split("e\u0301" * 200, 7))
