"""Pages of HTML as text: what is content keeps its form, what is not is gone."""

from pathlib import Path

import pytest

from workhorse.batch.documents.apart import ReaderApart
from workhorse.batch.documents.markup import decoded_page, markdown_of

PAGE = """<!DOCTYPE html><html><head><title>Fan manual</title><style>p { color: red }</style>
<script>track("secret")</script></head><body>
<nav><ul><li><a href="/">Home</a></li><li><a href="/shop">Shop</a></li></ul></nav>
<header role="banner">Our company</header>
<div><h1>Replacing  a
fan</h1>
<p>Switch the server <b>off</b>, then open the
lid &amp; pull &lt;here&gt;.<br>Wait.</p>
<h2>Tools</h2>
<ul><li>A screwdriver
  <ul><li>flat</li><li>cross</li></ul></li><li><p>A fan</p></li></ul>
<ol start="3"><li>Pull</li><li>Push</li></ol>
<pre><code class="language-sh">ipmitool sdr \\
  | grep FAN
</code></pre>
<p>Run <code>ipmitool</code> as root. <img src="x.png" alt="The fan"> <img src="dot.gif"></p>
<table><caption>Fans</caption><tr><th>Fan</th><th>Speed</th></tr>
<tr><td>1 | a</td><td>4,000<br>rpm</td></tr><tr><td colspan="2">all others off</td></tr></table>
<blockquote><p>Never run it open.</p></blockquote>
<form><input value="x"><button>Send</button>Write to us</form>
<p hidden>unseen</p><p aria-hidden="true">unseen</p><noscript>no script</noscript>
</div><footer>Imprint</footer></body></html>"""

TEXT = """# Replacing a fan

Switch the server off, then open the lid & pull <here>.
Wait.

## Tools

- A screwdriver
  - flat
  - cross
- A fan

3. Pull
4. Push

```sh
ipmitool sdr \\
  | grep FAN
```

Run `ipmitool` as root. ![The fan]

Fans

| Fan | Speed |
| --- | --- |
| 1 \\| a | 4,000 rpm |
| all others off |  |

> Never run it open.

Write to us"""


def test_a_page_keeps_its_form_and_loses_what_is_no_content() -> None:
    assert markdown_of(PAGE) == TEXT


def test_the_main_part_is_enough_where_there_is_one() -> None:
    page = "<body><div>Ads</div><main><p>Content</p></main><div>More ads</div></body>"
    assert markdown_of(page) == "Content"


def test_the_title_is_a_heading_where_the_page_has_none() -> None:
    assert markdown_of("<title>A &amp; B</title><p>Words") == "# A & B\n\nWords"


def test_a_table_that_lays_out_a_page_is_read_as_a_page() -> None:
    page = """<table><tr><td><h1>News</h1><p>One.</p></td><td><table><tr><th>a</th><th>b</th></tr>
    <tr><td>1</td><td>2</td></tr></table></td></tr></table>"""
    assert markdown_of(page) == "# News\n\nOne.\n\n| a | b |\n| --- | --- |\n| 1 | 2 |"


def test_a_page_that_is_one_menu_is_still_read() -> None:
    assert markdown_of("<body><nav><a>Fans</a> <a>Pumps</a></nav></body>") == "Fans Pumps"


def test_line_ends_in_chinese_are_no_spaces() -> None:
    page = "<p>服务器机房\n    的空调坏了 Fan 3\n坏了</p>"
    assert markdown_of(page) == "服务器机房的空调坏了 Fan 3 坏了"


@pytest.mark.parametrize("charset", ["gb2312", "gbk", "big5", "utf-8", "shift_jis"])
def test_a_page_says_what_its_encoding_is(charset: str) -> None:
    codec = "gb18030" if charset == "gb2312" else charset
    words = "機房溫度" if charset == "big5" else "温度達到四十度"
    page = (
        f'<html><meta http-equiv="Content-Type" content="text/html; charset={charset}"><p>{words}'
    )
    assert markdown_of(decoded_page(page.encode(codec)).text) == words


def test_a_charset_that_is_a_lie_is_not_believed() -> None:
    page = "<meta charset='gbk'><p>温度達到四十度 — ünder “quotes”"
    assert "温度達到四十度 — ünder “quotes”" in decoded_page(page.encode()).text
    nonsense = b"<meta charset='rot13'><p>plain"
    assert markdown_of(decoded_page(nonsense).text) == "plain"


@pytest.mark.parametrize(
    "page",
    [
        "<div>" * 20_000 + "deep",
        "<ul><li>" * 20_000 + "deep",
        "<table><tr><td>" * 5_000 + "deep",
        "<b><i><a>" * 20_000 + "deep",
        "<table><tr><td colspan=99999999999999999999>deep</td><td colspan='&#178;'>x</table>",
        "</td></table></ul></pre></code>deep",
        "<td><tr><li><pre><code>deep",
        "<pre><table><tr><td><pre>deep",
        "deep " * 50 + "\0\ufffe<",
    ],
)
def test_hostile_pages_end_and_keep_their_words(page: str, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(page)
    with ReaderApart() as apart:
        assert "deep" in apart.text(tmp_path / "page.html", "html")
