"""Text out of bytes: whatever the encoding, the same words come out, or a plain refusal."""

import pytest

from workhorse.batch.documents.refusal import Unreadable
from workhorse.batch.documents.streams import charset_of, csv_text
from workhorse.batch.documents.text import decoded, decoded_python

SIMPLIFIED = "服务器机房的空调坏了，温度达到四十度。\n请派人检查风扇和电源模块，并更换滤网。\n"
TRADITIONAL = "機房的空調壞了，溫度達到四十度。\n請派人檢查風扇與電源模組，並更換濾網。\n"
JAPANESE = "サーバー室のエアコンが故障しました。温度は四十度です。ファンを確認してください。\n"
GERMAN = (
    "Die Lüfter müssen geprüft werden; größere Mängel beim Gehäuse.\nÜber 40 °C, naïve Käufer.\n"
)
RUSSIAN = "Кондиционер в серверной сломался, температура достигла сорока градусов.\n"


@pytest.mark.parametrize(
    ("words", "encoding"),
    [
        (SIMPLIFIED, "utf-8"),
        (SIMPLIFIED, "utf-8-sig"),
        (SIMPLIFIED, "utf-16"),
        (SIMPLIFIED + "Fan 3: OK, no fault found\n" * 3, "utf-16-le"),
        (SIMPLIFIED + "Fan 3: OK, no fault found\n" * 3, "utf-16-be"),
        (SIMPLIFIED, "utf-32"),
        (SIMPLIFIED, "gbk"),
        (SIMPLIFIED, "gb18030"),
        ("标题\n" + SIMPLIFIED * 50 + "㐀㐁\n", "gb18030"),  # four bytes each at the end
        ("Fan 3 风扇故障\n", "gbk"),
        (TRADITIONAL, "big5"),
        (TRADITIONAL * 20, "big5hkscs"),
        (JAPANESE, "shift_jis"),
        (JAPANESE, "euc_jp"),
        (GERMAN, "cp1252"),
        (RUSSIAN, "cp1251"),
        ("plain ASCII\nand no more\n", "ascii"),
    ],
)
def test_the_words_come_out_as_they_went_in(words: str, encoding: str) -> None:
    found = decoded(words.encode(encoding))
    assert found.text == words
    assert found.text.encode(found.charset) == words.encode(encoding)


def test_a_long_text_is_told_by_its_beginning() -> None:
    assert decoded((SIMPLIFIED * 5000).encode("gbk")).text == SIMPLIFIED * 5000
    one_line = SIMPLIFIED.replace("\n", "") * 2000
    assert decoded(one_line.encode("gbk")).text == one_line


def test_one_broken_character_in_utf8_is_shown_and_nothing_else_changes() -> None:
    data = (SIMPLIFIED * 10).encode()
    broken = data[:31] + b"\xff" + data[31:]
    text = decoded(broken).text
    assert text.count("\ufffd") >= 1
    assert text.endswith(SIMPLIFIED * 9)


@pytest.mark.parametrize(
    "data",
    [
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0",
        b"\x7fELF\x02\x01\x01\0\0\0\0\0",
        bytes(range(32)) * 40,
        b"\xff\xfe" + b"\x01\x00\x02\x00" * 50,
    ],
)
def test_what_is_no_text_is_refused(data: bytes) -> None:
    with pytest.raises(Unreadable, match="binary"):
        decoded(data)


@pytest.mark.parametrize("data", [b"", b"\xef\xbb\xbf", b"\xff\xfe", b"\xff", b"\x80\x81", b"\0"])
def test_scraps_never_raise_anything_else(data: bytes) -> None:
    try:
        assert isinstance(decoded(data).text, str)
    except Unreadable as error:
        assert error.seen_zh


def test_a_python_file_is_read_by_its_own_rules() -> None:
    words = "# -*- coding: gbk -*-\r\nname = '风扇'\r\n"
    found = decoded_python(words.encode("gbk"))
    assert found.text == words
    assert found.text.encode(found.charset) == words.encode("gbk")
    assert decoded_python(b"\xef\xbb\xbfx = 1\n") == ("x = 1\n", "utf-8-sig")


@pytest.mark.parametrize(
    "data", [b"# coding: nonsense\n", b"# coding: ascii\nx = '\xe9'\n", b"x = 1\0\n\xff"]
)
def test_a_python_file_that_breaks_them_is_refused(data: bytes) -> None:
    with pytest.raises(Unreadable):
        decoded_python(data)


def test_a_table_that_is_ascii_for_a_megabyte_is_told_by_the_rest(tmp_path) -> None:
    path = tmp_path / "mails.csv"
    head = b"id,text\n" + b"1,nothing is wrong with fan number 3\n" * 40_000
    path.write_bytes(head + ("2," + SIMPLIFIED.replace("\n", "") + "\n").encode("gbk") * 30)
    assert charset_of(path) == "gb18030"
    with csv_text(path) as rows:
        *_, last = rows
    assert last[1] == ["2", SIMPLIFIED.replace("\n", "")]
