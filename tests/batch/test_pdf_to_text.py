"""The text of PDFs: paragraphs over line ends, divided words, tables, pages, Chinese."""

from pathlib import Path

import matplotlib
import pytest
from document_builder import column, pdf, pdf_of_objects

from workhorse.batch.documents.lines import Line, joined, known_words, pages_as_text, paragraphs
from workhorse.batch.documents.pdf import pdf_text
from workhorse.batch.documents.refusal import Unreadable

PROSE = [
    "The fans of the server have to be replaced every five years, since their bear-",
    "ings dry out. A well-known sign is a noise that comes and goes with the temper-",
    "ature of the room. Replace all of them at once.",
]
WHOLE = (
    "The fans of the server have to be replaced every five years, since their bearings dry out. "
    "A well-known sign is a noise that comes and goes with the temperature of the room. Replace "
    "all of them at once."
)


def text_of(data: bytes, folder: Path) -> str:
    (folder / "document.pdf").write_bytes(data)
    return pdf_text(folder / "document.pdf")


def test_lines_become_paragraphs_and_pages_are_marked(tmp_path: Path) -> None:
    first = [
        (72, 760, 20, "Fans"),
        *column(PROSE, top=730),
        *column(["Second paragraph, which is short."], top=730 - 3 * 14 - 10),
    ]
    second = [*column(["- the lid", "- the fan cage"]), *column(PROSE, top=680)]
    assert text_of(pdf([first, second]), tmp_path) == "\n\n".join(
        [
            "[page 1]",
            "Fans",
            WHOLE,
            "Second paragraph, which is short.",
            "[page 2]",
            "- the lid",
            "- the fan cage",
            WHOLE,
        ]
    )


def test_chinese_lines_join_without_a_space(tmp_path: Path) -> None:
    lines = [
        "　　服务器的风扇每五年需要更换一次，因为轴承会逐渐干涸，噪声随着机",
        "房温度的变化而时大时小，这是常见的征兆。",
        "　　请一次性更换全部风扇。",
    ]
    prints = [
        (72 + 22, 720, 11, lines[0].strip("　")),
        (72, 706, 11, lines[1]),
        (72 + 22, 692, 11, lines[2].strip("　")),
    ]
    assert text_of(pdf([prints]), tmp_path).split("\n\n")[1:] == [
        "服务器的风扇每五年需要更换一次，因为轴承会逐渐干涸，噪声随着机"
        "房温度的变化而时大时小，这是常见的征兆。",
        "请一次性更换全部风扇。",
    ]


def test_the_columns_of_a_table_stay_apart(tmp_path: Path) -> None:
    rows = [("Fan", "Speed", "State"), ("1", "4,000 rpm", "good"), ("2", "0 rpm", "broken")]
    prints = [
        (left, 700 - 14 * at, 11, words)
        for at, row in enumerate(rows)
        for left, words in zip((72, 200, 330), row, strict=True)
    ]
    assert text_of(pdf([prints]), tmp_path).split("\n\n")[1] == (
        "Fan | Speed | State\n1 | 4,000 rpm | good\n2 | 0 rpm | broken"
    )


def test_running_heads_are_told_once(tmp_path: Path) -> None:
    pages = [
        [
            (72, 770, 9, "Fan manual"),
            *column(PROSE, top=700),
            (300, 40, 9, f"page {number} of 5"),
        ]
        for number in range(1, 6)
    ]
    text = text_of(pdf(pages), tmp_path)
    assert text.count("Fan manual") == 1
    assert text.count(" of 5") == 1
    assert text.count(WHOLE) == 5


def test_a_scan_says_that_it_is_one(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="2 pages of pictures and no text: it was scanned"):
        text_of(pdf([[], []]), tmp_path)


def test_icons_that_a_package_ships_have_no_text() -> None:
    icons = sorted((Path(matplotlib.get_data_path()) / "images").glob("*.pdf"))
    assert icons
    with pytest.raises(Unreadable, match="no text"):
        pdf_text(icons[0])


def test_what_a_plotting_library_writes_is_read(tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure()
    figure.text(0.1, 0.5, "Throughput of two slots")
    figure.savefig(tmp_path / "plot.pdf")
    assert "Throughput of two slots" in pdf_text(tmp_path / "plot.pdf")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"%PDF-1.7\n",
        b"not a PDF at all",
        pdf([column(["words"])])[:200],
        pdf_of_objects(
            ["<< /Type /Catalog /Pages 2 0 R >>", "<< /Type /Pages /Kids [2 0 R] /Count 9 >>"]
        ),
    ],
)
def test_damaged_files_are_refused(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(Unreadable):
        text_of(data, tmp_path)


# --- lines, without a file -----------------------------------------------------------------------


def printed(*texts: str, left: float = 72, width: float = 400, top: float = 700) -> list[Line]:
    """Lines that all reach to the same place."""
    return [Line(text, left, left + width, top - 14 * row, 11) for row, text in enumerate(texts)]


@pytest.mark.parametrize(
    ("above", "below", "elsewhere", "whole"),
    [
        ("inter-", "national", "", "international"),
        ("well-", "known", "a well-known fan", "well-known"),
        ("well-", "known", "wellknown and well-known", "wellknown"),
        ("Hewlett-", "Packard", "", "Hewlett-Packard"),
        ("2020-", "2021", "", "2020-2021"),
        ("inter\xad", "national", "", "international"),
        ("用 inter-", "national 标准", "", "用 international 标准"),
        ("温度", "达到", "", "温度达到"),
        ("fan", "温度", "", "fan 温度"),
    ],
)
def test_two_lines_as_one(above: str, below: str, elsewhere: str, whole: str) -> None:
    assert joined(above, below, known_words([elsewhere])) == whole


def test_a_line_that_had_room_for_the_next_word_ends_a_paragraph() -> None:
    full, short = printed("one two three", "four five six")
    short = short._replace(right=150)
    after = printed("seven eight", top=672)[0]
    assert paragraphs([full, short, after]) == ["one two three four five six", "seven eight"]


def test_a_new_column_goes_on_where_the_sentence_does() -> None:
    left = printed("the fans of the", "server have to", width=200)
    right = printed("be replaced soon.", "A new one costs 20.", left=320, width=200)
    assert paragraphs(left + right)[0].startswith("the fans of the server have to be replaced")


def test_pages_without_lines_are_no_trouble() -> None:
    assert pages_as_text([[], printed("words"), []]) == "[page 2]\n\nwords"
    assert pages_as_text([]) == ""
