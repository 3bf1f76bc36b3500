"""The passages that a question is about are found, in English, in Chinese and in code."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from task_tools import Means

from workhorse.batch.retrieval.library import Library, Shelf
from workhorse.batch.retrieval.passages import LONGEST_CHARS, Passage, passages_of
from workhorse.batch.retrieval.ranking import MeaningRanking, WordRanking, fused
from workhorse.batch.retrieval.reading import read_folder, read_knowledge
from workhorse.batch.retrieval.words import words_of
from workhorse.batch.task import ItemFailed
from workhorse.errors import AppError

TEXTS = [
    "To replace a fan, switch the server off and pull the fan out.",
    "The warranty lasts three years from the day of delivery.",
    "更换风扇前请先关闭服务器电源，然后拔出风扇。",
    "保修期为自交货之日起三年。",
    "def parse_http_header(line): return HeaderParser(line).run()",
]


@pytest.mark.parametrize(
    ("question", "best"),
    [
        ("How do I get fans replaced?", 0),
        ("How long is the warranty?", 1),
        ("怎么更换风扇？", 2),
        ("保修多久？", 3),
        ("where is the HTTP header parsed", 4),
        ("parse_http_header", 4),
        ("What does headerparser do?", 4),
    ],
)
def test_the_text_that_it_is_about_comes_first(question: str, best: int) -> None:
    assert WordRanking(TEXTS).best(question, 3)[0] == best


@pytest.mark.parametrize("question", ["Who are you?", "的", "", "?!", "xylophone"])
def test_what_no_text_is_about_finds_none(question: str) -> None:
    assert WordRanking(TEXTS).best(question, 3) == []


def test_a_library_without_words_finds_none() -> None:
    assert WordRanking(["---", ""]).best("fan", 3) == []


def test_words() -> None:
    assert words_of("parseHTTPHeader2") == ["parsehttpheader2", "pars", "http", "header", "2"]
    assert words_of("风扇转速") == ["风扇", "扇转", "转速"]
    assert words_of("ＡＢ 风") == ["ab", "风"]


@given(st.text(max_size=400))
@settings(deadline=None, max_examples=50)
def test_words_of_anything(text: str) -> None:
    assert all(word and not word.isspace() for word in words_of(text))


def test_what_several_rankings_put_high_comes_first() -> None:
    assert fused([[1, 2, 3], [2, 4, 1]])[:2] == [2, 1]
    assert fused([[5], []]) == [5]
    assert fused([]) == []


def test_nearest_by_meaning() -> None:
    ranking = MeaningRanking([[1, 0], [0, 2], [3, 3], [0, 0]])
    assert ranking.best([0, 5], 2) == [1, 2]


@pytest.mark.parametrize("rows", [[], [[]], [[1, 2], [1]], [[float("nan"), 1]]])
def test_vectors_that_are_none_are_refused(rows: list[list[float]]) -> None:
    with pytest.raises(ValueError):
        MeaningRanking(rows)


MANUAL = """Before all.

# Fans

## Replacing

Pull it out.

```sh
# no heading
```

# Power

Switch it off.
"""


def test_a_passage_knows_its_headings() -> None:
    found = {one.place: one.text for one in passages_of(MANUAL, "text/markdown", "m.md")}
    assert list(found) == ["m.md", "m.md › Fans › Replacing", "m.md › Power"]
    assert "# no heading" in found["m.md › Fans › Replacing"]


@given(st.text(alphabet=st.sampled_from("ab 字。.\n#`|"), max_size=3000))
@settings(deadline=None, max_examples=50)
def test_nothing_of_a_document_is_lost(text: str) -> None:
    for media_type in ("text/plain", "text/x-python; charset=gb18030"):
        found = list(passages_of(text, media_type, "a"))
        assert "".join("".join(one.text.split()) for one in found) == "".join(text.split())
        assert all(len(one.text) <= max(LONGEST_CHARS.values()) for one in found)


def test_rows_keep_the_head_of_their_table() -> None:
    table = "part,price\n" + "".join(f"fan {n},{n}\n" for n in range(500))
    found = list(passages_of(table, "text/csv", "p.csv"))
    assert len(found) > 3
    assert {one.heading for one in found} == {"part,price"}


class WithVectors(Means):
    """A service that embeds: texts about fans are near to each other, others not."""

    def __init__(self, wrong: bool = False) -> None:
        super().__init__(lambda _: "")
        self.wrong = wrong
        self.embedded: list[int] = []

    async def embed(self, texts: Sequence[str]) -> Any:
        self.embedded.append(len(texts))
        if self.wrong:
            return [[1.0, float("nan")] for _ in texts]
        return [[1.0, 0.0] if "ventilator" in t or "fan" in t else [0.0, 1.0] for t in texts]


def shelf() -> Shelf:
    return Shelf([Passage(source=str(n), text=text) for n, text in enumerate(TEXTS)])


async def test_meaning_finds_what_no_word_does() -> None:
    library, means = Library(shelf), WithVectors()
    found = await library.find("ventilator", means, 2)
    assert found[0].source == "0"
    await library.find("warranty", means, 2)
    assert means.embedded == [5, 1, 1]  # the passages once, each question
    assert await Library(shelf).find("ventilator", Means(lambda _: ""), 2) == []


async def test_vectors_that_cannot_be_compared_fail_the_item() -> None:
    with pytest.raises(ItemFailed, match="embeddings cannot be compared"):
        await Library(shelf).find("fan", WithVectors(wrong=True), 2)


def test_a_folder_is_read_and_what_cannot_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(MANUAL, encoding="utf-8")
    (tmp_path / "b.txt").write_bytes("风扇在机箱前部。".encode("gb18030"))
    (tmp_path / "c.doc").write_bytes(b"\xd0\xcf\x11\xe0")
    found = read_folder(tmp_path)
    assert {one.source for one in found.passages} == {"a.md", "b.txt"}
    assert found.unread == ("c.doc",)


KNOWLEDGE = {
    "k.csv": 'id,Question,Answer\n1,How to return?,Send it back.\n2,,\n3,Price?,"10, or 12"\n',
    "zh.csv": "问题,答案\n如何退货？,寄回即可。\n价格？,10 元\n",
    "two.tsv": "asked\tsaid\nHow to return?\tSend it back.\nPrice?\t10\n",
    "k.md": "# How to return?\n\nSend it back.\n\n# Price?\n\n10\n",
    "k.txt": "Send it back.\n",
}


@pytest.mark.parametrize("name", KNOWLEDGE)
def test_a_knowledge_file_gives_its_entries(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(KNOWLEDGE[name], encoding="utf-8")
    passages = read_knowledge(path).passages
    assert [one.heading for one in passages][:1] in (["How to return?"], ["如何退货？"], [""])
    assert passages[0].text in ("Send it back.", "寄回即可。")
    assert name == "k.txt" or len(passages) == 2


def test_a_spreadsheet_of_several_sheets(tmp_path: Path) -> None:
    import xlsxwriter

    path = tmp_path / "k.xlsx"
    with xlsxwriter.Workbook(path) as book:
        book.add_worksheet("about").write_row(0, 0, ["a", "b", "c"])
        for name in ("returns", "prices"):
            sheet = book.add_worksheet(name)
            sheet.write_row(0, 0, ["No", "问题", "回答"])
            sheet.write_row(1, 0, [1, f"{name}？", "是 | 否"])
    assert [(one.heading, one.text) for one in read_knowledge(path).passages] == [
        ("returns？", "是 | 否"),
        ("prices？", "是 | 否"),
    ]


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("a.csv", "x,y,z\n1,2,3\n", "no columns for questions and answers"),
        ("b.csv", "question,answer\n", "no entries"),
        ("c.csv", "", "no entries"),
        ("d.xlsx", "no sheet", "d.xlsx"),
        ("e.md", "", "no text"),
        ("none.csv", None, "none.csv"),
    ],
)
def test_a_knowledge_file_that_is_none(
    name: str, data: str | None, why: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    if data is not None:
        path.write_text(data, encoding="utf-8")
    with pytest.raises(AppError, match=why):
        read_knowledge(path)
